package verify

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/sandbox/cgroup"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
)

// The sandboxes that rows share. A row that may end its sandbox, or measures it,
// uses another than the harmless rows.
const (
	mainSession   = "main"
	secondSession = "second" // another tenant's, as far as the host knows
	limitsSession = "limits"
	slowSession   = "slow" // with slowCPUs: a busy host still shows a broken bound
)

// slowCPUs is the bound on CPU time in slowSession.
const slowCPUs = 0.25

// scene is one driver under one profile, and the sandboxes that rows use.
type scene struct {
	o        Options
	profile  *profile
	driver   *oci.Driver
	groups   *cgroup.Hierarchy
	instance string
	stateDir string
	dir      string // for what profiles and observers put on the host
	prepared prepared
	sessions map[string]*session
}

// openScene opens a driver of an instance of its own.
func openScene(ctx context.Context, o Options, p *profile) (_ *scene, err error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &scene{o: o, profile: p, instance: newInstance(), sessions: map[string]*session{}}
	s.stateDir = filepath.Join("/run/workbench", s.instance)
	if s.dir, err = os.MkdirTemp("", "workbench-verify-"); err != nil {
		return nil, err
	}
	// A secret that a server's environment might hold, to be looked for inside.
	if err := os.Setenv("WORKBENCH_VERIFY_CANARY", canary); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(context.WithoutCancel(ctx)))
		}
	}()
	if err := os.Chmod(s.dir, 0o711); err != nil { // runc walks through it as a mapped user
		return nil, err
	}
	options := oci.Options{
		Kind: o.Kind, Instance: s.instance, Binary: o.Binary, Guest: o.Guest, StateDir: s.stateDir, Log: o.Log,
	}
	if p.bare && o.Kind == oci.Runsc {
		options.Kind, options.Binary = oci.Runc, o.Bare
	}
	if p != shipped {
		if p.prepare != nil {
			if s.prepared, err = p.prepare(ctx, s); err != nil {
				return nil, fmt.Errorf("prepare profile %s: %w", p.name, err)
			}
		}
		options.Weaken = p.weakening(s, options.Kind)
		if s.prepared.binary != "" {
			options.Binary = s.prepared.binary
		}
	}
	if s.driver, err = oci.Open(options); err != nil {
		return nil, err
	}
	s.groups, err = cgroup.Open(cgroup.DefaultRoot, "workbench-"+s.instance+"-"+string(options.Kind))
	return s, err
}

func newInstance() string {
	const letters = "abcdefghijklmnopqrstuvwxyz234567"
	raw := make([]byte, 12)
	_, _ = rand.Read(raw)
	for i, b := range raw {
		raw[i] = letters[b%32]
	}
	return string(raw)
}

// close ends every sandbox and removes what the scene put on the host.
func (s *scene) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var errs []error
	if s.driver != nil {
		for _, b := range s.sessions {
			errs = append(errs, b.end(ctx))
		}
		errs = append(errs, s.driver.Close(ctx))
	}
	if s.prepared.end != nil {
		errs = append(errs, s.prepared.end())
	}
	if s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}

// promised are the limits that rows hold sandboxes to.
func (s *scene) promised() workbench.Limits { return workbench.DefaultLimits() }

// class is what sandboxes are started as: the standard size, or what the
// profile makes of it.
func (s *scene) class() sandbox.Class {
	l := s.promised()
	c := sandbox.Class{
		Image: s.o.Image, Tier: workbench.DefaultSize, CPUs: l.CPUs, MemoryBytes: l.MemoryBytes, WorkspaceBytes: l.WorkspaceBytes,
		ScratchBytes: l.ScratchBytes, WorkspaceInodes: l.WorkspaceFiles, Tasks: l.Tasks,
	}
	if s.profile.wide {
		c.CPUs, c.MemoryBytes, c.WorkspaceBytes, c.ScratchBytes = 2, 1<<30, 192<<20, 192<<20
		c.WorkspaceInodes, c.Tasks = 40_000, 400
	}
	if s.prepared.rootfs != "" {
		c.Image = sandbox.Image{ID: "broken", Rootfs: s.prepared.rootfs}
	}
	return c
}

func (s *scene) openFiles() int {
	if s.profile.wide {
		return min(4096, 2*s.promised().OpenFiles)
	}
	return s.promised().OpenFiles
}

// session returns a shared sandbox, starting it when it is not there or has
// ended.
func (s *scene) session(ctx context.Context, name string) (*session, error) {
	if b := s.sessions[name]; b != nil {
		if b.alive(ctx) == nil {
			return b, nil
		}
		if err := s.drop(ctx, name); err != nil {
			return nil, err
		}
	}
	class := s.class()
	if name == slowSession && !s.profile.wide {
		class.CPUs = slowCPUs
	}
	b, err := s.start(ctx, class)
	if err != nil {
		return nil, err
	}
	b.name = name
	s.sessions[name] = b
	return b, nil
}

// drop ends a shared sandbox.
func (s *scene) drop(ctx context.Context, name string) error {
	b := s.sessions[name]
	if b == nil {
		return nil
	}
	delete(s.sessions, name)
	return b.end(ctx)
}

// rootfs is the root that the scene's sandboxes have, on the host.
func (s *scene) rootfs() string { return s.class().Image.Rootfs }

// outerBound holds everything of a broken scene together.
var outerBound = cgroup.Limits{MemoryBytes: 3 << 30, CPUs: 2, Tasks: 60_000}

// weakening translates a profile for the driver.
func (p *profile) weakening(s *scene, kind oci.Kind) *oci.Weakening {
	w := &oci.Weakening{Bound: outerBound, AnyImage: p.anyImage, Guest: nil}
	if len(p.guest) > 0 {
		w.Guest = []string{"--weaken=" + joined(p.guest)}
	}
	w.Spec = func(spec *specs.Spec) {
		if p.spec != nil {
			p.spec(s, kind, spec)
		}
	}
	w.Args = func(args []string) []string {
		if kind == oci.Runsc {
			// Later flags win over earlier ones; the command follows them.
			at := slices.Index(args, "run")
			args = slices.Concat(args[:at], p.flags, args[at:])
		}
		return args
	}
	return w
}
