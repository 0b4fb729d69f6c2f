package cgroup_test

import (
	"testing"
)

func TestInner(t *testing.T) {
	t.Run("version 2", func(t *testing.T) {
		f := MustFixture(t, pureV2)
		g := MustCreate(t, f.h, "one", standard)
		if err := g.CreateInner("code", 300<<20); err != nil {
			t.Fatal(err)
		}
		for file, want := range map[string]string{
			parent + "/one/cgroup.subtree_control": "+cpu +memory +pids",
			parent + "/one/code/memory.max":        "314572800",
			parent + "/one/code/memory.swap.max":   "0",
			parent + "/one/code/memory.oom.group":  "1",
			parent + "/one/code/pids.max":          "max",
		} {
			if got := f.MustRead(file); got != want {
				t.Errorf("%s is %q, want %q", file, got, want)
			}
		}
		f.write(parent+"/one/memory.events.local", "oom_kill 1\n")
		if got := g.OwnOOMKills(); got != 1 {
			t.Errorf("%d kills at the outer bound, want 1", got)
		}
		if got := g.Stats().OOMKills; got != 2 { // the kernel sums
			t.Errorf("%d kills in all, want 2", got)
		}
	})
	t.Run("hybrid", func(t *testing.T) {
		f := MustFixture(t, hybrid)
		g := MustCreate(t, f.h, "one", standard)
		if err := g.CreateInner("code", 300<<20); err != nil {
			t.Fatal(err)
		}
		for file, want := range map[string]string{
			"memory/" + parent + "/one/code/memory.limit_in_bytes":       "314572800",
			"memory/" + parent + "/one/code/memory.memsw.limit_in_bytes": "314572800",
			"memory/" + parent + "/one/code/memory.swappiness":           "0",
		} {
			if got := f.MustRead(file); got != want {
				t.Errorf("%s is %q, want %q", file, got, want)
			}
		}
		f.write("memory/"+parent+"/one/code/memory.oom_control", "under_oom 0\noom_kill 4\n")
		if own, all := g.OwnOOMKills(), g.Stats().OOMKills; own != 3 || all != 7 {
			t.Errorf("%d kills at the outer bound and %d in all, want 3 and 7", own, all)
		}
		if err := g.Remove(t.Context()); err != nil || g.Exists() {
			t.Errorf("the group is still there: %v", err)
		}
	})
	t.Run("a name that is a path is refused", func(t *testing.T) {
		g := MustCreate(t, MustFixture(t, hybrid).h, "one", standard)
		for _, name := range []string{"", "a/b", "..", "a\x00"} {
			if g.CreateInner(name, 1<<20) == nil {
				t.Errorf("%q was accepted", name)
			}
		}
	})
}
