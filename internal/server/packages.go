package server

import (
	"context"
	"net/url"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/packages"
	"github.com/workbenchdev/workbench/internal/seal"
)

// packagesDir is where the server keeps packages that code installed.
func (s *Server) packagesDir() string { return s.data.join("packages") }

// packages makes the service that installs packages.
func (s *Server) packages(sealer *seal.Sealer) error {
	python, err := registry(s.o.PythonIndex, "python-index")
	if err != nil {
		return err
	}
	npm, err := registry(s.o.NPMRegistry, "npm-registry")
	if err != nil {
		return err
	}
	service, err := packages.Open(packages.Options{Dir: s.packagesDir(), Keys: sealer, Store: s.store, Python: python, NPM: npm,
		CacheBytes: s.o.PackagesCache, Log: s.o.Log,
		Workshop: func(ctx context.Context, imageID string) (*guestwire.Client, func(), error) {
			return s.engine.Workshop(ctx, imageID)
		}})
	if err != nil {
		return err
	}
	s.closers = append(s.closers, service.Close)
	s.o.Services.Packages = service
	return nil
}

// registry reads the address of one. It may hold a password, so it is not repeated.
func registry(address, flag string) (*url.URL, error) {
	if address == "" {
		return nil, nil //nolint:nilnil // none is named
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, workbench.E(workbench.CodeInvalidRequest, "--%s must be the http or https address of a registry", flag).WithField(flag)
	}
	return u, nil
}
