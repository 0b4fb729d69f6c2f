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
			parent + "/one/code/memory.oom.group":  "0",
			parent + "/one/code/pids.max":          "max",
		} {
			if got := f.MustRead(file); got != want {
				t.Errorf("%s is %q, want %q", file, got, want)
			}
		}
		f.write(parent+"/one/code/memory.events", "oom 1\noom_kill 1\n")
		if inner, all := g.InnerOOMKills("code"), g.Stats().OOMKills; inner != 1 || all != 2 { // the kernel sums
			t.Errorf("%d kills in code and %d in all, want 1 and 2", inner, all)
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
		if inner, all := g.InnerOOMKills("code"), g.Stats().OOMKills; inner != 4 || all != 7 {
			t.Errorf("%d kills in code and %d in all, want 4 and 7", inner, all)
		}
		if got := g.InnerOOMKills("none"); got != 0 {
			t.Errorf("%d kills in a group that is none", got)
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
