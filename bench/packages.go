package main

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// index serves one Python package: what is measured is a set that is there, so the
// registry is asked once.
type index struct {
	url     string
	service *http.Server
}

const wheelName = "benchpackage-1.0-py3-none-any.whl"

func openIndex(ctx context.Context) (*index, error) {
	var wheel bytes.Buffer
	z := zip.NewWriter(&wheel)
	for name, text := range map[string]string{
		"benchpackage/__init__.py":                 "VALUE = 1\n",
		"benchpackage-1.0.dist-info/METADATA":      "Metadata-Version: 2.1\nName: benchpackage\nVersion: 1.0\n",
		"benchpackage-1.0.dist-info/WHEEL":         "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"benchpackage-1.0.dist-info/RECORD":        "",
		"benchpackage-1.0.dist-info/top_level.txt": "benchpackage\n",
	} {
		w, err := z.Create(name)
		if err != nil {
			return nil, err
		}
		if _, err := w.Write([]byte(text)); err != nil {
			return nil, err
		}
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(wheel.Bytes())
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	i := &index{url: "http://" + listener.Addr().String() + "/simple/"}
	i.service = &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/simple/benchpackage/":
			w.Header().Set("Content-Type", "text/html")
			_, _ = fmt.Fprintf(w, "<a href=\"/%s#sha256=%s\">%s</a>", wheelName, hex.EncodeToString(sum[:]), wheelName)
		case "/" + wheelName:
			_, _ = w.Write(wheel.Bytes())
		default:
			http.NotFound(w, r)
		}
	})}
	go func() { _ = i.service.Serve(listener) }() // ends with close
	return i, nil
}

func (i *index) close() error { return i.service.Close() }

// What it takes to have the packages is timed inside, by the code that asks: the run
// around it is the same without.
const packagesProgram = `
import time
began = time.perf_counter()
workbench.packages.install("benchpackage==1.0")
import benchpackage
print((time.perf_counter() - began) * 1e9)
`

// packages measures what a cached set adds to the first run of a new session, whose
// sandbox comes from the pool. It has a server of its own: the image must have pip.
func packages(ctx context.Context, o options, dir string) (rows []row, err error) {
	registry, err := openIndex(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, registry.close()) }()
	o.image = "standard"
	w, err := openWorld(ctx, o, dir, setting{warm: 2, suspendAfter: -1, watched: true, pythonIndex: registry.url})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	admin, err := sdk.New(sdk.Options{BaseURL: w.url, Key: w.server.AdminKey()})
	if err != nil {
		return nil, err
	}
	allow := `permit(principal, action == Action::"use", resource == Service::"packages");`
	if _, err := admin.ChangeRules(ctx, sdk.ChangeRules{Put: []sdk.RuleText{{Name: "packages", Text: allow}}}); err != nil {
		return nil, err
	}
	return measure(ctx, o, []contender{{name: namePackages, language: string(workbench.Python), few: true, rest: w.rest, run: w.withPackages}})
}

// withPackages is one sample: what code measures in the first run of a session.
func (w *world) withPackages(ctx context.Context) (took time.Duration, err error) {
	session, err := w.session(ctx, sdk.CreateSession{})
	if err != nil {
		return 0, err
	}
	defer func() {
		_, closed := w.client.CloseAgentSession(ctx, session)
		err = errors.Join(err, closed)
	}()
	r, err := w.submit(ctx, session, job(workbench.Python, packagesProgram), time.Minute)
	if err != nil {
		return 0, err
	}
	ns, err := strconv.ParseFloat(strings.TrimSpace(r.Output()), 64)
	if err != nil {
		return 0, fmt.Errorf("the run ended %s (%s) %s: %s", r.Status, r.Reason, r.Message, r.ErrorOutput())
	}
	return time.Duration(ns), nil
}
