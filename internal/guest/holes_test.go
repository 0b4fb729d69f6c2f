package guest_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
)

// Files with holes, and many names of one file, make a tree larger than the
// workspace. What fits is committed, the rest is named, and nothing is read for
// minutes to find that out.
func TestScanOfWhatWouldNotFitElsewhere(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		s.code(t, workbench.Python, `
import os
for name, size in (("a1", 10 << 40), ("a2", 60 << 30), ("a3", 1 << 62), ("a4", 65 << 20)):
    with open(name, "wb") as f: f.truncate(size)
open("b", "w").write("small")
open("c", "wb").truncate(40 << 20)
open("d", "wb").truncate(40 << 20)
open("e", "wb").write(b"x" * 100_000)
os.mkdir("links")
for i in range(400): os.link("e", "links/%03d" % i)
open("z", "w").write("last")
`).want(t, 0, "")
		began := time.Now()
		f, res := s.scan(t, "")
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("the scan took %s", took)
		}
		skipped := map[guestwire.Path]string{}
		for _, k := range res.Skipped {
			skipped[k.Path] = k.Why
		}
		for _, path := range []guestwire.Path{"a1", "a2", "a3", "a4", "d"} {
			if skipped[path] != "too_large" {
				t.Errorf("%s: skipped for %q, want too_large", path, skipped[path])
			}
		}
		for _, path := range []string{"b", "c", "e", "links/000", "z"} {
			if !slices.Contains(f.order, "added "+path) {
				t.Errorf("%s is not committed", path)
			}
		}
		if res.Bytes > 64<<20 {
			t.Errorf("%d bytes are committed from a workspace of 64 MiB", res.Bytes)
		}
		// What is committed can be committed again, and the rest once it fits.
		s.code(t, workbench.Bash, "rm -r a? links c; ls | tr '\\n' ' '").want(t, 0, "b d e z ")
		f, res = s.scan(t, res.Token)
		if res.SkippedN != 0 || !slices.Contains(f.order, "added d") || !slices.Contains(f.order, "removed c") {
			t.Errorf("%d skipped, changes %s", res.SkippedN, fmt.Sprint(f.order[:min(len(f.order), 10)]))
		}
	})
}

// Entries that are not committed are named as far as an answer has room.
func TestScanOfLongNamesThatAreSkipped(t *testing.T) {
	s := MustSession(t, oci.Runsc)
	s.code(t, workbench.Python, `
import os
for i in range(12):
    os.mkdir("d" * 250); os.chdir("d" * 250)
for i in range(300): os.mkfifo("%03d" % i + "f" * 247)
`).want(t, 0, "")
	_, res := s.scan(t, "")
	if res.SkippedN != 300 || len(res.Skipped) < 50 || len(res.Skipped) >= 300 {
		t.Errorf("%d entries are skipped, %d of them named", res.SkippedN, len(res.Skipped))
	}
	s.code(t, workbench.Bash, "rm -r d*; echo x > a").want(t, 0, "")
	f, res := s.scan(t, res.Token)
	if res.SkippedN != 0 || string(f.content["a"]) != "x\n" {
		t.Errorf("afterwards %d are skipped, %q", res.SkippedN, f.content["a"])
	}
}
