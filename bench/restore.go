package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// restorer is the peer of a return with memory: gVisor's own restore of a
// Python that holds as much, with the image of its memory in memory too.
type restorer struct {
	p       *peers
	runtime []string
	bundle  string
	image   string // on a tmpfs
}

// holdLive holds what a session's cell holds, waits for a line, and answers.
const holdLive = `import os, sys
data = os.urandom(30 << 20)
print("ready", flush=True)
sys.stdin.readline()
print("hello" if len(data) == 30 << 20 else "lost", flush=True)`

// inMemory is a file system in memory that every Linux host has.
const inMemory = "/dev/shm"

// bareRestore makes the image.
func (p *peers) bareRestore(ctx context.Context, o options, dir string) (_ *restorer, err error) {
	binary, annotations, err := p.runscOf(o)
	if err != nil {
		return nil, err
	}
	r := &restorer{p: p, runtime: []string{binary, "--root", dir, "--platform", "systrap", "--network", "none"}}
	if r.bundle, err = p.bundle("restore", []string{"python3", "-c", holdLive}, annotations); err != nil {
		return nil, err
	}
	if r.image, err = os.MkdirTemp(inMemory, "workbench-bench-"); err != nil {
		return nil, err
	}
	if err := r.checkpoint(ctx); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *restorer) close() error { return os.RemoveAll(r.image) }

// checkpoint starts the program, and keeps it as it waits.
func (r *restorer) checkpoint(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, peerWithin)
	defer cancel()
	id := r.p.name()
	started, err := r.start(ctx, "run", "--bundle", r.bundle, id)
	if err != nil {
		return err
	}
	line, err := started.out.ReadString('\n')
	if err == nil && line != "ready\n" {
		err = fmt.Errorf("it said %q", line)
	}
	if err == nil {
		err = r.do(ctx, "checkpoint", "--image-path", r.image, "--compression=none", "--exclude-committed-zero-pages", id)
	}
	_ = r.do(ctx, "delete", "--force", id) // it ended with its checkpoint
	return errors.Join(err, started.end(err != nil))
}

// run times a restore up to what the program answers.
func (r *restorer) run(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, peerWithin)
	defer cancel()
	id := r.p.name()
	began := time.Now()
	restored, err := r.start(ctx, "restore", "--image-path", r.image, "--bundle", r.bundle, id)
	if err != nil {
		return 0, err
	}
	if _, err := restored.in.WriteString("go\n"); err != nil {
		return 0, errors.Join(err, restored.end(true))
	}
	line, err := restored.out.ReadString('\n')
	took := time.Since(began)
	if err == nil && line != helloText {
		err = fmt.Errorf("it said %q", line)
	}
	if endErr := restored.end(err != nil); endErr != nil {
		err = errors.Join(err, endErr, r.do(ctx, "delete", "--force", id))
	}
	return took, err
}

func (r *restorer) do(ctx context.Context, args ...string) error {
	all := slices.Concat(r.runtime, args)
	cmd := exec.CommandContext(ctx, all[0], all[1:]...)
	cmd.Env = peerEnv
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("runsc %s: %w: %s", args[0], err, bytes.TrimSpace(out))
	}
	return nil
}

// talking is a runtime's command whose program is spoken to.
type talking struct {
	cmd *exec.Cmd
	in  *os.File
	out *bufio.Reader
	err *bytes.Buffer
	end func(kill bool) error
}

func (r *restorer) start(ctx context.Context, args ...string) (*talking, error) {
	all := slices.Concat(r.runtime, args)
	t := &talking{cmd: exec.CommandContext(ctx, all[0], all[1:]...), err: &bytes.Buffer{}}
	inside, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, said, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, inside.Close(), in.Close())
	}
	t.in, t.out = in, bufio.NewReader(out)
	t.cmd.Env, t.cmd.Stdin, t.cmd.Stdout, t.cmd.Stderr = peerEnv, inside, said, t.err
	t.end = func(kill bool) error {
		_ = in.Close()
		if kill {
			_ = t.cmd.Process.Kill() // it may have ended
		}
		err := t.cmd.Wait()
		_ = out.Close()
		if err != nil && t.err.Len() > 0 {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(t.err.String()))
		}
		return err
	}
	err = t.cmd.Start()
	_ = inside.Close()
	_ = said.Close()
	if err != nil {
		return nil, errors.Join(err, in.Close(), out.Close())
	}
	return t, nil
}

// runscOf is the runtime that Workbench ships, and what makes a bundle's root the
// EROFS image, as Workbench has it.
func (p *peers) runscOf(o options) (binary string, annotations map[string]string, err error) {
	if binary, err = filepath.Abs(filepath.Join(o.bin, "runsc")); err != nil {
		return "", nil, err
	}
	if p.image.EROFS != "" {
		annotations = map[string]string{"dev.gvisor.spec.rootfs.source": p.image.EROFS,
			"dev.gvisor.spec.rootfs.type": "erofs", "dev.gvisor.spec.rootfs.overlay": "memory"}
	}
	return binary, annotations, nil
}
