package oci_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
	"github.com/workbenchdev/workbench/internal/sandbox/sandboxtest"
)

func (g *standin) MustCheckpoint(dir string) {
	g.t.Helper()
	if err := g.Sandbox.(sandbox.Checkpointer).Checkpoint(g.t.Context(), dir); err != nil {
		g.t.Fatalf("checkpoint: %v", err)
	}
}

func MustRestore(t testing.TB, d *oci.Driver, c sandbox.Class, dir string) *standin {
	t.Helper()
	s, err := d.Restore(t.Context(), c, dir, nil)
	if err != nil {
		t.Fatalf("restore: %v", err)
	}
	return &standin{t: t, Sandbox: s, r: bufio.NewReader(s.Stream())}
}

// The pages of a checkpoint in memory are charged to the sandbox that writes
// them: one that is full needs room for twice its memory.
func TestCheckpointOfAFullSandbox(t *testing.T) {
	d := MustOpen(t, options(t, oci.Runsc))
	c := class(t)
	g := MustStart(t, d, c)
	if got := g.Ask("eat 450"); got != "eaten" {
		t.Fatalf("got %q", got)
	}
	dir := sandboxtest.MustMemoryDir(t)
	began := time.Now()
	g.MustCheckpoint(dir)
	t.Logf("checkpoint took %v", time.Since(began))
	if exit := MustEnd(t, g, 0); exit.Reason != sandbox.ExitKilled {
		t.Errorf("it ended as %+v, want killed", exit)
	}
	sandboxtest.MustNothingLeft(t, g.ID(), 0)
	began = time.Now()
	back := MustRestore(t, d, c, dir)
	t.Logf("restore took %v", time.Since(began))
	if got := back.Ask("ping"); got != "pong" {
		t.Errorf("the restored sandbox said %q", got)
	}
	if stats, err := back.Stats(t.Context()); err != nil || stats.MemoryLimit != 688<<20 || stats.OOMKills != 0 {
		t.Errorf("stats %+v, %v; want the limit of its class, %d", stats, err, 688<<20)
	}
}

func TestCheckpointFails(t *testing.T) {
	d := MustOpen(t, options(t, oci.Runsc))
	g := MustStart(t, d, class(t))
	before, err := g.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	goesOn := func(t *testing.T) {
		t.Helper()
		if got := g.Ask("ping"); got != "pong" {
			t.Errorf("the sandbox said %q", got)
		}
		if stats, err := g.Stats(t.Context()); err != nil || stats.MemoryLimit != before.MemoryLimit {
			t.Errorf("its bound is %d, %v; want %d as before", stats.MemoryLimit, err, before.MemoryLimit)
		}
	}
	refused := func(name string, code workbench.Code, dir func(t *testing.T) string) {
		t.Run(name, func(t *testing.T) {
			into := dir(t)
			if err := g.Sandbox.(sandbox.Checkpointer).Checkpoint(t.Context(), into); !workbench.HasCode(err, code) {
				t.Errorf("got %v, want %s", err, code)
			}
			goesOn(t)
		})
	}
	refused("no room", workbench.CodeUnavailable, func(t *testing.T) string {
		dir := sandboxtest.MustMemoryDir(t)
		MustRun(t, "mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", dir)
		t.Cleanup(func() {
			if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
				t.Errorf("%v, %v left in the directory", left, err)
			}
			MustRun(t, "umount", "--lazy", dir) // gVisor keeps what it could not write open
		})
		return dir
	})
	refused("a file in the directory", workbench.CodeInternal, func(t *testing.T) string {
		dir := sandboxtest.MustMemoryDir(t)
		if err := os.WriteFile(filepath.Join(dir, "gcs_opts.json"), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	})
	refused("a directory open to others", workbench.CodeInternal, func(t *testing.T) string {
		dir := sandboxtest.MustMemoryDir(t)
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		return dir
	})
	refused("no directory", workbench.CodeInternal, func(t *testing.T) string { return "/nonexistent/dir" })
	t.Run("paused", func(t *testing.T) {
		if err := g.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := g.Sandbox.(sandbox.Checkpointer).Checkpoint(t.Context(), sandboxtest.MustMemoryDir(t)); !workbench.HasCode(err, workbench.CodeConflict) {
			t.Errorf("got %v, want conflict", err)
		}
		if err := g.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		goesOn(t)
	})
	t.Run("and works afterwards", func(t *testing.T) {
		dir := sandboxtest.MustMemoryDir(t)
		g.MustCheckpoint(dir)
		if got := MustRestore(t, d, g.Class(), dir).Ask("ping"); got != "pong" {
			t.Errorf("the restored sandbox said %q", got)
		}
	})
	t.Run("ended", func(t *testing.T) {
		if err := g.Sandbox.(sandbox.Checkpointer).Checkpoint(t.Context(), sandboxtest.MustMemoryDir(t)); !workbench.HasCode(err, workbench.CodeSandboxLost) {
			t.Errorf("got %v, want sandbox_lost", err)
		}
	})
}

// MustWrap makes a runtime that is another one, but for one command.
func MustWrap(t testing.TB, binary, command, instead string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runsc")
	script := fmt.Sprintf("#!/bin/bash\nfor a; do if [ \"$a\" = %s ]; then %s; fi; done\nexec %s \"$@\"\n", command, instead, binary)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// A runtime that does not answer may be writing still: nothing of the sandbox is
// kept then.
func TestCheckpointHangs(t *testing.T) {
	o := options(t, oci.Runsc)
	o.Binary, o.CheckpointTimeout = MustWrap(t, o.Binary, "checkpoint", "sleep 300; exit 0"), time.Second
	g := MustStart(t, MustOpen(t, o), class(t))
	if err := g.Sandbox.(sandbox.Checkpointer).Checkpoint(t.Context(), sandboxtest.MustMemoryDir(t)); !workbench.HasCode(err, workbench.CodeSandboxLost) {
		t.Errorf("got %v, want sandbox_lost", err)
	}
	MustEnd(t, g, 10*time.Second)
	sandboxtest.MustNothingLeft(t, g.ID(), time.Second)
}

// checkpointed is a checkpoint to spoil copies of.
type checkpointed struct {
	d     *oci.Driver
	class sandbox.Class
	dir   string
}

func (c checkpointed) MustCopy(t testing.TB) string {
	t.Helper()
	dir := sandboxtest.MustMemoryDir(t)
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		raw, err := os.ReadFile(filepath.Join(c.dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		MustWrite(t, filepath.Join(dir, e.Name()), raw)
	}
	return dir
}

func MustWrite(t testing.TB, path string, raw []byte) {
	t.Helper()
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

func MustRead(t testing.TB, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// MustAgree makes the driver's own file agree with what the others hold, as if
// the runtime had written them so, and changes one of its fields.
func MustAgree(t testing.TB, dir, field string, value any) {
	t.Helper()
	path := filepath.Join(dir, "workbench.json")
	var m map[string]any
	if err := json.Unmarshal(MustRead(t, path), &m); err != nil {
		t.Fatal(err)
	}
	files := []any{}
	for _, name := range []string{"checkpoint.img", "pages.img", "pages_meta.img"} {
		raw := MustRead(t, filepath.Join(dir, name))
		files = append(files, map[string]any{"name": name, "size": len(raw), "crc32c": crc32.Checksum(raw, crc32.MakeTable(crc32.Castagnoli))})
	}
	m["files"] = files
	if field != "" {
		m[field] = value
	}
	raw, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	MustWrite(t, path, raw)
}

func TestRestoreRefuses(t *testing.T) {
	o := options(t, oci.Runsc)
	d := MustOpen(t, o)
	c := checkpointed{d: d, class: class(t), dir: sandboxtest.MustMemoryDir(t)}
	MustStart(t, d, c.class).MustCheckpoint(c.dir)

	refused := func(name string, code workbench.Code, spoil func(t *testing.T, dir string)) {
		t.Run(name, func(t *testing.T) {
			dir := c.MustCopy(t)
			spoil(t, dir)
			began := time.Now()
			if _, err := d.Restore(t.Context(), c.class, dir, nil); !workbench.HasCode(err, code) {
				t.Errorf("got %v, want %s", err, code)
			}
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("it took %v", took)
			}
			if left, err := d.List(t.Context()); err != nil || len(left) != 0 {
				t.Errorf("listed %v, %v; want nothing", left, err)
			}
		})
	}
	for _, name := range []string{"checkpoint.img", "pages.img", "pages_meta.img", "workbench.json"} {
		path := func(dir string) string { return filepath.Join(dir, name) }
		refused(name+" is missing", workbench.CodeCorrupt, func(t *testing.T, dir string) { MustRun(t, "rm", path(dir)) })
		refused(name+" is cut short", workbench.CodeCorrupt, func(t *testing.T, dir string) {
			raw := MustRead(t, path(dir))
			MustWrite(t, path(dir), raw[:len(raw)/2])
		})
		refused(name+" is a link", workbench.CodeCorrupt, func(t *testing.T, dir string) {
			MustRun(t, "mv", path(dir), path(dir)+".moved")
			MustSymlink(t, path(dir)+".moved", path(dir))
		})
	}
	refused("one bit of a page differs", workbench.CodeCorrupt, func(t *testing.T, dir string) {
		raw := MustRead(t, filepath.Join(dir, "pages.img"))
		raw[len(raw)/2] ^= 1
		MustWrite(t, filepath.Join(dir, "pages.img"), raw)
	})
	refused("another file", workbench.CodeCorrupt, func(t *testing.T, dir string) { MustWrite(t, filepath.Join(dir, "gcs_opts.json"), []byte("{}")) })
	refused("nothing", workbench.CodeCorrupt, func(t *testing.T, dir string) { MustRun(t, "sh", "-c", "rm "+dir+"/*") })

	// What the runtime itself must notice.
	for _, name := range []string{"checkpoint.img", "pages.img", "pages_meta.img"} {
		wrong := func(how string, change func(raw []byte) []byte) {
			refused(name+" was written "+how, workbench.CodeSandboxStart, func(t *testing.T, dir string) {
				MustWrite(t, filepath.Join(dir, name), change(MustRead(t, filepath.Join(dir, name))))
				MustAgree(t, dir, "", nil)
			})
		}
		wrong("by half", func(raw []byte) []byte { return raw[:len(raw)/2&^4095] })
		wrong("empty", func([]byte) []byte { return nil })
		if name != "pages.img" { // any bytes are pages
			wrong("with zeros in it", func(raw []byte) []byte {
				copy(raw[len(raw)/2:], bytes.Repeat([]byte{0}, 4000))
				return raw
			})
		}
	}

	refused("of another version of gVisor", workbench.CodeSandboxStart, func(t *testing.T, dir string) { MustAgree(t, dir, "runtime", "release-20250101.0") })
	refused("of a sandbox made differently", workbench.CodeSandboxStart, func(t *testing.T, dir string) { MustAgree(t, dir, "likeness", strings.Repeat("0", 64)) })
	t.Run("of another class", func(t *testing.T) {
		other := c.class
		other.MemoryBytes *= 2
		if _, err := d.Restore(t.Context(), other, c.MustCopy(t), nil); !workbench.HasCode(err, workbench.CodeSandboxStart) {
			t.Errorf("got %v, want sandbox_start_failed", err)
		}
	})
	t.Run("of another guest", func(t *testing.T) {
		o := o
		o.Instance, o.Guest = sandboxtest.NewInstance(), filepath.Join(t.TempDir(), "guest")
		MustWrite(t, o.Guest, append(MustRead(t, MustStandin(t)), 0))
		MustRun(t, "chmod", "755", o.Guest)
		if _, err := MustOpen(t, o).Restore(t.Context(), c.class, c.MustCopy(t), nil); !workbench.HasCode(err, workbench.CodeSandboxStart) {
			t.Errorf("got %v, want sandbox_start_failed", err)
		}
	})
	t.Run("given up", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		if _, err := d.Restore(ctx, c.class, c.MustCopy(t), nil); !workbench.HasCode(err, workbench.CodeCancelled) {
			t.Errorf("got %v, want request_cancelled", err)
		}
		if left, err := d.List(t.Context()); err != nil || len(left) != 0 {
			t.Errorf("listed %v, %v; want nothing", left, err)
		}
	})
	t.Run("another server of the same instance takes it", func(t *testing.T) {
		other := o
		other.Instance = sandboxtest.NewInstance()
		if got := MustRestore(t, MustOpen(t, other), c.class, c.dir).Ask("ping"); got != "pong" {
			t.Errorf("the restored sandbox said %q", got)
		}
	})
}

// A server that is killed in the middle leaves nothing that the next one does
// not remove.
func TestCrashedWhileCheckpointing(t *testing.T) {
	for _, stage := range []string{"checkpointing\n", "restoring\n"} {
		for _, after := range []time.Duration{5 * time.Millisecond, 60 * time.Millisecond, 150 * time.Millisecond, 400 * time.Millisecond} {
			t.Run(fmt.Sprintf("%s, %v", strings.TrimSpace(stage), after), func(t *testing.T) {
				o := options(t, oci.Runsc)
				dir := sandboxtest.MustMemoryDir(t)
				cmd := MustOwner(t, o, ownerOrder{Class: class(t), Standin: true, Checkpoint: dir})
				for {
					line, err := cmd.said.ReadString('\n')
					if err != nil {
						t.Fatalf("the owner ended: %v", err)
					}
					if line == stage {
						break
					}
				}
				time.Sleep(after)
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
				d := MustOpen(t, o)
				if got, err := d.Reap(t.Context()); err != nil || len(got.Left) != 0 {
					t.Errorf("Reap: %+v, %v; want nothing left", got, err)
				}
				if left, err := d.List(t.Context()); err != nil || len(left) != 0 {
					t.Errorf("listed %v, %v; want nothing", left, err)
				}
			})
		}
	}
}
