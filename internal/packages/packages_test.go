package packages_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/packages"
)

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		m    workbench.PackageManager
		in   []string
		want []string
	}{
		{workbench.PackagesPip, []string{"pandas"}, []string{"pandas"}},
		{workbench.PackagesPip, []string{" requests [security] >= 2.31, <3 ", "Pillow==11.*", "a"}, []string{"Pillow==11.*", "a", "requests[security]>=2.31,<3"}},
		{workbench.PackagesPip, []string{"x", "x"}, []string{"x"}},
		{workbench.PackagesPip, []string{"a~=1.0", "b===1.0+local", "c!=2"}, []string{"a~=1.0", "b===1.0+local", "c!=2"}},
		{workbench.PackagesNpm, []string{"lodash", "@types/node@^20", "x@>=1 <2 || 3.x", "left-pad@latest"}, []string{"@types/node@^20", "left-pad@latest", "lodash", "x@>=1 <2 || 3.x"}},
		{workbench.PackagesPip, []string{"-r x"}, nil},
		{workbench.PackagesPip, []string{"--index-url=http://x"}, nil},
		{workbench.PackagesPip, []string{"x @ https://h/x.whl"}, nil},
		{workbench.PackagesPip, []string{"x; python_version > '3'"}, nil},
		{workbench.PackagesPip, []string{"./x"}, nil},
		{workbench.PackagesPip, []string{"../x.whl"}, nil},
		{workbench.PackagesPip, []string{"x\x00y"}, nil},
		{workbench.PackagesPip, []string{""}, nil},
		{workbench.PackagesPip, []string{strings.Repeat("x", 201)}, nil},
		{workbench.PackagesPip, nil, nil},
		{workbench.PackagesPip, make([]string, 65), nil},
		{workbench.PackagesPip, []string{"x.whl"}, nil},
		{workbench.PackagesPip, []string{"x-1.0.tar.gz"}, nil},
		{workbench.PackagesPip, []string{"x==1.zip"}, nil},
		{workbench.PackagesNpm, []string{"chart.js@4.*", "x@1.0.0-a.tar-b"}, []string{"chart.js@4.*", "x@1.0.0-a.tar-b"}},
		{workbench.PackagesNpm, []string{"x.tgz"}, nil},
		{workbench.PackagesNpm, []string{"x@y.TGZ"}, nil},
		{workbench.PackagesNpm, []string{"x@."}, nil},
		{workbench.PackagesNpm, []string{"x@.."}, nil},
		{workbench.PackagesNpm, []string{"x@npm:y"}, nil},
		{workbench.PackagesNpm, []string{"x@file:../y"}, nil},
		{workbench.PackagesNpm, []string{"git+ssh://h/x"}, nil},
		{workbench.PackagesNpm, []string{"user/repository"}, nil},
		{workbench.PackagesNpm, []string{"--registry"}, nil},
		{workbench.PackagesNpm, []string{"@scope"}, nil},
		{workbench.PackagesNpm, []string{"../x"}, nil},
		{"conda", []string{"x"}, nil},
	} {
		got, err := packages.Check(c.m, c.in)
		if !slices.Equal(got, c.want) || (c.want == nil) != (workbench.HasCode(err, workbench.CodeInvalidRequest)) {
			t.Errorf("Check(%s, %q) = %q, %v; want %q", c.m, c.in, got, err, c.want)
		}
	}
}

// keys are those of one tenant each.
type keys struct{}

func (keys) ContentID(_ context.Context, tenantID string, sum [sha256.Size]byte) (string, error) {
	id := sha256.Sum256(append([]byte(tenantID), sum[:]...))
	return "c_" + hex.EncodeToString(id[:]), nil
}

// book remembers who has which set.
type book struct {
	sets []workbench.PackageSet
	used map[string]bool
	err  error
}

func (b *book) AddPackages(_ context.Context, _ string, _ int64, set workbench.PackageSet) error {
	b.sets = append(b.sets, set)
	return b.err
}

func (b *book) PackagesInUse(context.Context) (map[string]bool, error) { return b.used, nil }

func TestWhatIsHalfDoneIsRemovedAndSetsCannotBeListed(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "tmp", "half"), 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := packages.Open(packages.Options{Dir: dir, Keys: keys{}, Store: &book{}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if left, err := os.ReadDir(filepath.Join(dir, "tmp")); err != nil || len(left) != 0 {
		t.Errorf("an earlier server left %v (%v)", left, err)
	}
	info, err := os.Stat(packages.SetsDir(dir))
	if err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("the sets' directory has mode %v (%v)", info.Mode(), err)
	}
}

// A workshop that cannot be had is the caller's error, and leaves nothing.
func TestNoWorkshop(t *testing.T) {
	dir := t.TempDir()
	refusal := workbench.E(workbench.CodeCapacity, "no sandbox came free in time")
	s, err := packages.Open(packages.Options{Dir: dir, Keys: keys{}, Store: &book{}, Workshop: func(context.Context, string) (*guestwire.Client, func(), error) {
		return nil, nil, refusal
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, err = s.Install(t.Context(), packages.Request{TenantID: "ten_1", ImageID: "img_1", Manager: workbench.PackagesPip, Packages: []string{"x"}})
	if !errors.Is(err, refusal) {
		t.Errorf("the error is %v", err)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "tmp")); len(left) != 0 {
		t.Errorf("what failed leaves %v", left)
	}
}

// What the cache may not hold goes, the least used first; what a session has stays.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	held := &book{used: map[string]bool{}}
	s, err := packages.Open(packages.Options{Dir: dir, Keys: keys{}, Store: held, CacheBytes: 250,
		Clock: func() time.Time { return time.Date(2026, 1, 1, 0, 10, 0, 0, time.UTC) }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	names := make([]string, 4)
	for i := range names {
		names[i] = strings.Repeat(string(rune('a'+i)), 64)
		mustShelve(t, dir, names[i], 100, i)
	}
	held.used[names[0]] = true
	mustShelve(t, dir, strings.Repeat("e", 64), 1000, 10)
	s.Sweep(t.Context())
	var left []string
	entries, err := os.ReadDir(packages.SetsDir(dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		left = append(left, e.Name()[:1])
	}
	// a is used, and e asked for just now; d and c are the newest, and fit; b does not.
	if got := strings.Join(left, ""); got != "acde" {
		t.Errorf("what is left is %s, want acde", got)
	}
	asked, err := filepath.Glob(filepath.Join(dir, "asked", "*"))
	if err != nil || len(asked) != 4 || slices.Contains(asked, filepath.Join(dir, "asked", "of-b")) {
		t.Errorf("what was asked for is %v (%v), want all but of b", asked, err)
	}
}
