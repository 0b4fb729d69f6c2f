package oci_test

import (
	"slices"
	"testing"

	"github.com/workbenchdev/workbench/internal/sandbox/oci"
)

func TestParseVersion(t *testing.T) {
	for _, c := range []struct {
		text, name, version string
		ok                  bool
	}{
		{"runsc version release-20260914.0\nspec: 1.2.1\n", "runsc", "release-20260914.0", true},
		{"runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1+deb12u1\nspec: 1.0.2-dev\n", "runc", "1.1.5+ds1", true},
		{"warning: something\nrunc version 1.4.0-rc.2\n", "runc", "1.4.0-rc.2", true},
		{"crun version 1.8.1\n", "", "", false},
		{"", "", "", false},
		{"\x00\xff\x1b[2J garbage", "", "", false},
	} {
		name, version, ok := oci.ParseVersion(c.text)
		if name != c.name || version != c.version || ok != c.ok {
			t.Errorf("%q: got %q, %q, %v; want %q, %q, %v", c.text, name, version, ok, c.name, c.version, c.ok)
		}
	}
}

// TestOldRuntimes is H125.
func TestOldRuntimes(t *testing.T) {
	for version, old := range map[string]bool{
		"1.1.5+ds1": true, "1.1.12": true, "1.2.7": true, "1.2.8": false, "1.2.10": false, "1.3.2": true, "1.3.3": false,
		"1.4.0-rc.2": true, "1.4.0-rc.3": false, "1.4.0": false, "1.5.3": false, "v1.5.3": false, "2.0.0": false,
		"0.9.9": true, "unknown": true,
	} {
		if _, got := oci.OldRunc(version); got != old {
			t.Errorf("runc %s: old is %v, want %v", version, got, old)
		}
	}
	for version, old := range map[string]bool{
		"v0.0.0-20260905035102-160fafc42237": false, "v0.0.0-20260905035102-160fafc42237 (module)": false,
		"release-20260914.0": false, "release-20260820.0": true, "unknown": true,
	} {
		if _, got := oci.OldRunsc(version); got != old {
			t.Errorf("runsc %s: old is %v, want %v", version, got, old)
		}
	}
}

func TestMountsBelow(t *testing.T) {
	const info = `22 1 254:0 / / rw - ext4 /dev/vda rw
30 22 0:30 / /run/workbench/abc rw - tmpfs tmpfs rw
31 30 0:31 / /run/workbench/abc/sbx_1 rw - tmpfs tmpfs rw
32 31 0:4 net:[4026532181] /run/workbench/abc/sbx_1/r/null\040netns rw - nsfs nsfs rw
33 22 0:33 / /run/workbench/abc/sbx_10 rw - tmpfs tmpfs rw
short line
`
	want := []string{"/run/workbench/abc/sbx_1", "/run/workbench/abc/sbx_1/r/null netns"}
	if got := oci.MountsBelow(info, "/run/workbench/abc/sbx_1"); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
