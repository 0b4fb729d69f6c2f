package oci_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
	"github.com/workbenchdev/workbench/internal/sandbox/sandboxtest"
)

// buildStandin builds the stand-in guest once for this process.
var buildStandin = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "workbench-standin-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "standin")
	cmd := exec.Command("go", "build", "-o", path, "./testdata/standin")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

func MustStandin(t testing.TB) string {
	t.Helper()
	path, err := buildStandin()
	if err != nil {
		t.Fatalf("the stand-in guest does not build: %v", err)
	}
	return path
}

// bothKinds runs a test with each runtime.
func bothKinds(t *testing.T, f func(t *testing.T, kind oci.Kind)) {
	for _, kind := range []oci.Kind{oci.Runsc, oci.Runc} {
		t.Run(string(kind), func(t *testing.T) { f(t, kind) })
	}
}

// runtimePath is where make setup puts a runtime.
func runtimePath(t testing.TB, kind oci.Kind) string {
	t.Helper()
	path, err := filepath.Abs("../../../bin/" + string(kind))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("no runtime at %s: run make setup", path)
	}
	return path
}

// options are a driver's with the stand-in guest, for a new instance.
func options(t testing.TB, kind oci.Kind) oci.Options {
	t.Helper()
	return oci.Options{
		Kind: kind, Instance: sandboxtest.NewInstance(), Binary: runtimePath(t, kind), Guest: MustStandin(t),
		Log: slog.New(slog.DiscardHandler),
	}
}

// MustOpen opens a driver that is closed, and leaves nothing, when the test
// ends.
func MustOpen(t testing.TB, o oci.Options) *oci.Driver {
	t.Helper()
	d, err := oci.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := d.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		sandboxtest.MustNothingLeft(t, o.Instance, time.Second)
	})
	return d
}

// MustRoot makes a root that holds nothing but the places to mount on.
func MustRoot(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "workbench-root-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"dev", "proc", "sys", "run", "tmp", "etc", "mnt/files", "opt/workbench/bin", "opt/workbench/packages"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// class is a small sandbox of an empty root.
func class(t testing.TB) sandbox.Class {
	return sandboxtest.Standard(sandbox.Image{ID: "empty", Rootfs: MustRoot(t)})
}

// standin talks to the stand-in guest.
type standin struct {
	t testing.TB
	sandbox.Sandbox
	r *bufio.Reader
}

func MustStart(t testing.TB, d *oci.Driver, c sandbox.Class) *standin {
	t.Helper()
	s, err := d.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	g := &standin{t: t, Sandbox: s, r: bufio.NewReader(s.Stream())}
	if got := g.line(); got != "hello supervise" {
		t.Fatalf("the first line is %q, want \"hello supervise\"", got)
	}
	return g
}

func (g *standin) line() string {
	g.t.Helper()
	line, err := g.r.ReadString('\n')
	if err != nil {
		g.t.Fatalf("read from the sandbox: %v (%+v)", err, g.Exit())
	}
	return strings.TrimSuffix(line, "\n")
}

// Ask sends a line and returns the answer.
func (g *standin) Ask(line string) string {
	g.t.Helper()
	if _, err := fmt.Fprintln(g.Stream(), line); err != nil {
		g.t.Fatalf("write to the sandbox: %v", err)
	}
	return g.line()
}

// MustEnd waits until the sandbox has ended.
func MustEnd(t testing.TB, s sandbox.Sandbox, d time.Duration) sandbox.Exit {
	t.Helper()
	select {
	case <-s.Done():
		return s.Exit()
	default:
	}
	select {
	case <-s.Done():
	case <-time.After(d):
		t.Fatalf("the sandbox has not ended after %v", d)
	}
	return s.Exit()
}
