package workspace_test

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/workspace"
)

func digest(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

func file(path, content string) workspace.Entry {
	return workspace.Entry{Path: path, Type: workspace.File, Mode: 0o644, Size: int64(len(content)), SHA256: digest(content), MtimeNs: 1}
}

func dir(path string) workspace.Entry {
	return workspace.Entry{Path: path, Type: workspace.Dir, Mode: 0o755, MtimeNs: 1}
}

func link(path, target string) workspace.Entry {
	return workspace.Entry{Path: path, Type: workspace.Symlink, Mode: 0o777, Target: target, MtimeNs: 1}
}

func mustApply(t testing.TB, tree workspace.Tree, d workspace.Delta) workspace.Tree {
	t.Helper()
	after, _, err := tree.Apply(d)
	if err != nil {
		t.Fatal(err)
	}
	return after
}

func list(tree workspace.Tree) []workspace.Entry {
	var all []workspace.Entry
	tree.Walk(func(e workspace.Entry) bool { all = append(all, e); return true })
	return all
}

func want(t testing.TB, what string, err error, code workbench.Code) {
	t.Helper()
	if got := workbench.CodeOf(err); got != code {
		t.Errorf("%s: %v is %q, want %q", what, err, got, code)
	}
}

// The digests are part of the stored format: they must never change.
func TestRootsAreStable(t *testing.T) {
	if got := workspace.Empty().Root(); got != "b413f47d13ee2fe6c845b2ee141af81de858df4ec549a58b7970bb96645bc8d2" {
		t.Errorf("the empty tree is %s", got)
	}
	tree := mustApply(t, workspace.Empty(), workspace.Delta{Put: []workspace.Entry{dir("d"), file("d/a.txt", "hello"), link("l", "d/a.txt"), file("e", "")}})
	// leaf of "": entries d, e, l; leaf of "d": entry a.txt.
	inner := sha256.Sum256([]byte("\x00\x01" + "f\x01\xa4\x00\x00\x00\x05a.txt\x00\x00\x00\x00\x00\x00\x00\x05" + raw(digest("hello"))))
	outer := sha256.Sum256([]byte("\x00\x01" + "d\x01\xed\x00\x00\x00\x01d" + string(inner[:]) +
		"f\x01\xa4\x00\x00\x00\x01e\x00\x00\x00\x00\x00\x00\x00\x00" + raw(digest("")) +
		"l\x01\xff\x00\x00\x00\x01l\x00\x00\x00\x07d/a.txt"))
	if got := tree.Root(); got != hex.EncodeToString(outer[:]) {
		t.Errorf("the root is %s, not %x", got, outer)
	}
	if entries, files, bytes := tree.Counts(); entries != 4 || files != 2 || bytes != 5 {
		t.Errorf("counts %d %d %d", entries, files, bytes)
	}
}

func raw(h string) string { b, _ := hex.DecodeString(h); return string(b) }

func TestNamesAreBytes(t *testing.T) {
	names := []string{"é", "e\u0301", "A", "a", "\xff\xfe", "x\ny", " ", "résumé 報告 #1?%20.txt", "...", "-rf", "a; touch pwned .txt", "\x1b[2J"}
	var put []workspace.Entry
	for _, n := range names {
		put = append(put, file(n, n))
	}
	tree := mustApply(t, workspace.Empty(), workspace.Delta{Put: put})
	if got := list(tree); len(got) != len(names) {
		t.Errorf("%d of %d names", len(got), len(names))
	}
	for _, n := range names {
		if e, ok := tree.Get(n); !ok || e.SHA256 != digest(n) {
			t.Errorf("%q: %+v", n, e)
		}
	}
}

func TestTimesAreNoPartOfTheRoot(t *testing.T) {
	a := mustApply(t, workspace.Empty(), workspace.Delta{Put: []workspace.Entry{file("a", "1")}})
	later := file("a", "1")
	later.MtimeNs = 99
	b, changes, err := a.Apply(workspace.Delta{Put: []workspace.Entry{later}})
	want(t, "touch", err, "")
	if a.Root() != b.Root() || len(changes) != 0 {
		t.Errorf("roots %s %s, changes %v", a.Root(), b.Root(), changes)
	}
	if e, _ := b.Get("a"); e.MtimeNs != 99 {
		t.Errorf("%+v", e)
	}
}

func TestHostileDeltas(t *testing.T) {
	base := mustApply(t, workspace.Empty(), workspace.Delta{Put: []workspace.Entry{file("f", "1"), dir("d"), file("d/x", "2"), link("l", "/")}})
	entry := func(change func(*workspace.Entry)) workspace.Delta {
		e := file("new", "1")
		change(&e)
		return workspace.Delta{Put: []workspace.Entry{e}}
	}
	for name, c := range map[string]struct {
		d    workspace.Delta
		code workbench.Code
	}{
		"child of a file":             {workspace.Delta{Put: []workspace.Entry{file("f/x", "")}}, workbench.CodePathConflict},
		"child of a link":             {workspace.Delta{Put: []workspace.Entry{file("l/etc/passwd", "")}}, workbench.CodePathConflict},
		"twice":                       {workspace.Delta{Put: []workspace.Entry{file("n", ""), file("n", "")}}, workbench.CodePathConflict},
		"a directory twice":           {workspace.Delta{Put: []workspace.Entry{dir("n"), dir("n")}}, workbench.CodePathConflict},
		"file over a new directory":   {workspace.Delta{Put: []workspace.Entry{file("n/x", ""), file("n", "")}}, workbench.CodePathConflict},
		"removed that is not there":   {workspace.Delta{Remove: []string{"none"}}, workbench.CodeGuestProtocol},
		"removed below a file":        {workspace.Delta{Remove: []string{"f/x"}}, workbench.CodeGuestProtocol},
		"removed twice":               {workspace.Delta{Remove: []string{"f", "f"}}, workbench.CodeGuestProtocol},
		"removed through a link":      {workspace.Delta{Remove: []string{"l/d"}}, workbench.CodeGuestProtocol},
		"removed with its directory":  {workspace.Delta{Remove: []string{"d", "d/x"}}, ""},
		"directory becomes a file":    {workspace.Delta{Put: []workspace.Entry{file("d", "")}}, ""},
		"file becomes a directory":    {workspace.Delta{Put: []workspace.Entry{dir("f"), file("f/x", "")}}, ""},
		"removed and put again":       {workspace.Delta{Remove: []string{"d"}, Put: []workspace.Entry{link("d", "x")}}, ""},
		"empty path":                  {entry(func(e *workspace.Entry) { e.Path = "" }), workbench.CodePathInvalid},
		"absolute":                    {entry(func(e *workspace.Entry) { e.Path = "/etc/passwd" }), workbench.CodePathInvalid},
		"dot":                         {entry(func(e *workspace.Entry) { e.Path = "./a" }), workbench.CodePathInvalid},
		"dot dot":                     {entry(func(e *workspace.Entry) { e.Path = "a/../../b" }), workbench.CodePathInvalid},
		"double slash":                {entry(func(e *workspace.Entry) { e.Path = "a//b" }), workbench.CodePathInvalid},
		"trailing slash":              {entry(func(e *workspace.Entry) { e.Path = "a/" }), workbench.CodePathInvalid},
		"NUL":                         {entry(func(e *workspace.Entry) { e.Path = "a\x00b" }), workbench.CodePathInvalid},
		"long name":                   {entry(func(e *workspace.Entry) { e.Path = strings.Repeat("a", 256) }), workbench.CodePathInvalid},
		"longest name":                {entry(func(e *workspace.Entry) { e.Path = strings.Repeat("a", 255) }), ""},
		"long path":                   {entry(func(e *workspace.Entry) { e.Path = strings.Repeat("aaaaaaaaaaaaaaa/", 256) + "a" }), workbench.CodePathInvalid},
		"deep":                        {entry(func(e *workspace.Entry) { e.Path = strings.Repeat("a/", 256) + "a" }), workbench.CodePathInvalid},
		"deepest":                     {entry(func(e *workspace.Entry) { e.Path = strings.Repeat("a/", 255) + "a" }), ""},
		"mode":                        {entry(func(e *workspace.Entry) { e.Mode = 0o10000 }), workbench.CodeGuestProtocol},
		"type":                        {entry(func(e *workspace.Entry) { e.Type = 'x' }), workbench.CodeGuestProtocol},
		"negative size":               {entry(func(e *workspace.Entry) { e.Size = -1 }), workbench.CodeGuestProtocol},
		"digest":                      {entry(func(e *workspace.Entry) { e.SHA256 = "zz" }), workbench.CodeGuestProtocol},
		"link without target":         {workspace.Delta{Put: []workspace.Entry{link("n", "")}}, workbench.CodeGuestProtocol},
		"link with a NUL":             {workspace.Delta{Put: []workspace.Entry{link("n", "a\x00")}}, workbench.CodeGuestProtocol},
		"link with a long target":     {workspace.Delta{Put: []workspace.Entry{link("n", strings.Repeat("a", 4097))}}, workbench.CodeGuestProtocol},
		"link with the longest":       {workspace.Delta{Put: []workspace.Entry{link("n", strings.Repeat("a", 4096))}}, ""},
		"removed: an impossible path": {workspace.Delta{Remove: []string{"../f"}}, workbench.CodePathInvalid},
	} {
		before := base.Root()
		_, _, err := base.Apply(c.d)
		want(t, name, err, c.code)
		if base.Root() != before {
			t.Errorf("%s changed the tree it was applied to", name)
		}
	}
}

func TestDiffNamesWhatChanged(t *testing.T) {
	a := mustApply(t, workspace.Empty(), workspace.Delta{Put: []workspace.Entry{file("f", "1"), file("g", "1"), dir("d"), file("d/x", "2"), dir("keep"), file("keep/k", "3"), link("l", "x")}})
	changed := file("f", "2")
	mode := file("g", "1")
	mode.Mode = 0o755
	_, changes, err := a.Apply(workspace.Delta{Remove: []string{"d"}, Put: []workspace.Entry{changed, mode, link("l", "y"), file("new/deep/file", "4")}})
	want(t, "apply", err, "")
	var got []string
	for _, c := range changes {
		got = append(got, fmt.Sprintf("%s %s %s %d %s", c.Change, c.Type, c.Path, c.Size, c.Mode))
	}
	wantChanges := []string{"removed dir d 0 0755", "removed file d/x 1 0644", "modified file f 1 0644", "modified file g 1 0755", "modified symlink l 0 0777",
		"added dir new 0 0755", "added dir new/deep 0 0755", "added file new/deep/file 1 0644"}
	if !slices.Equal(got, wantChanges) {
		t.Errorf("changes\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(wantChanges, "\n"))
	}
}

// model is a tree as a map from path to entry.
type model map[string]workspace.Entry

func (m model) remove(path string) {
	delete(m, path)
	maps.DeleteFunc(m, func(p string, _ workspace.Entry) bool { return strings.HasPrefix(p, path+"/") })
}

func (m model) put(e workspace.Entry) {
	if old, ok := m[e.Path]; ok && old.Type == workspace.Dir && e.Type != workspace.Dir {
		m.remove(e.Path)
	}
	for i := range e.Path {
		if e.Path[i] == '/' {
			if _, ok := m[e.Path[:i]]; !ok {
				m[e.Path[:i]] = workspace.Entry{Path: e.Path[:i], Type: workspace.Dir, Mode: 0o755, MtimeNs: e.MtimeNs}
			}
		}
	}
	m[e.Path] = e
}

// fits reports whether nothing above the path is anything but a directory.
func (m model) fits(path string) bool {
	for i := range path {
		if above, ok := m[path[:i]]; path[i] == '/' && ok && above.Type != workspace.Dir {
			return false
		}
	}
	return true
}

func (m model) list() []workspace.Entry {
	all := slices.Collect(maps.Values(m))
	slices.SortFunc(all, func(a, b workspace.Entry) int {
		return slices.Compare(strings.Split(a.Path, "/"), strings.Split(b.Path, "/"))
	})
	return all
}

// A tree is the map that the same changes make, its root depends on that map
// alone, and differences tell exactly what differs.
func TestTreesAreMaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Few elements collide and nest; many make branches.
		names := rapid.SampledFrom([]string{"a", "b", "c", "B", "\xff", "d.e"})
		if rapid.Bool().Draw(t, "many") {
			names = rapid.Custom(func(t *rapid.T) string { return fmt.Sprint(rapid.IntRange(0, 300).Draw(t, "name")) })
		}
		path := rapid.Custom(func(t *rapid.T) string {
			return strings.Join(rapid.SliceOfN(names, 1, 3).Draw(t, "elements"), "/")
		})
		tree, m := workspace.Empty(), model{}
		history := []workspace.Tree{tree}
		models := []model{{}}
		for range rapid.IntRange(1, 6).Draw(t, "deltas") {
			next := maps.Clone(m)
			var d workspace.Delta
			for _, p := range rapid.SliceOfN(path, 0, 5).Draw(t, "remove") {
				if _, ok := next[p]; ok {
					d.Remove = append(d.Remove, p)
					next.remove(p)
				}
			}
			seen := map[string]bool{}
			above := map[string]bool{}
			for range rapid.IntRange(0, 60).Draw(t, "puts") {
				e := workspace.Entry{Path: path.Draw(t, "path"), MtimeNs: rapid.Int64Range(0, 3).Draw(t, "mtime"), Mode: rapid.SampledFrom([]uint32{0o644, 0o755}).Draw(t, "mode")}
				switch rapid.IntRange(0, 3).Draw(t, "type") {
				case 0:
					e.Type = workspace.Dir
				case 1:
					e.Type, e.Target = workspace.Symlink, rapid.SampledFrom([]string{"x", "/"}).Draw(t, "target")
				default:
					content := rapid.SampledFrom([]string{"", "1", "22"}).Draw(t, "content")
					e.Type, e.Size, e.SHA256 = workspace.File, int64(len(content)), digest(content)
				}
				if seen[e.Path] || above[e.Path] && e.Type != workspace.Dir || !next.fits(e.Path) {
					continue
				}
				seen[e.Path] = true
				for i := range e.Path {
					if e.Path[i] == '/' {
						above[e.Path[:i]] = true
					}
				}
				d.Put = append(d.Put, e)
				next.put(e)
			}
			after, changes, err := tree.Apply(d)
			if err != nil {
				t.Fatalf("%+v: %v", d, err)
			}
			checkChanges(t, m, next, changes)
			tree, m = after, next
			history, models = append(history, tree), append(models, m)
		}
		for i := range history {
			if got, want := list(history[i]), models[i].list(); !slices.Equal(got, want) {
				t.Fatalf("tree %d is\n%+v\nnot\n%+v", i, got, want)
			}
		}
		// The same entries put at once, in another order, make the same tree.
		all := m.list()
		for i := range all {
			j := rapid.IntRange(0, i).Draw(t, "shuffle")
			all[i], all[j] = all[j], all[i]
		}
		straight, _, err := workspace.Empty().Apply(workspace.Delta{Put: all})
		if err != nil || straight.Root() != tree.Root() {
			t.Fatalf("another way to the same entries has root %s, not %s: %v", straight.Root(), tree.Root(), err)
		}
		first := rapid.IntRange(0, len(history)-1).Draw(t, "from")
		checkChanges(t, models[first], m, workspace.Diff(history[first], tree))
		entries, files, bytes := tree.Counts()
		var wantFiles, wantBytes int64
		for _, e := range m {
			if e.Type == workspace.File {
				wantFiles, wantBytes = wantFiles+1, wantBytes+e.Size
			}
		}
		if entries != int64(len(m)) || files != wantFiles || bytes != wantBytes {
			t.Fatalf("counts %d %d %d of %d %d %d", entries, files, bytes, len(m), wantFiles, wantBytes)
		}
	})
}

func checkChanges(t *rapid.T, a, b model, got []workbench.ChangedFile) {
	var want []workbench.ChangedFile
	describe := func(e workspace.Entry, c workbench.Change) {
		want = append(want, workbench.ChangedFile{Path: e.Path, Change: c, Type: e.Type.String(), Size: e.Size, SHA256: e.SHA256, Mode: fmt.Sprintf("%04o", e.Mode)})
	}
	for p, e := range a {
		if _, ok := b[p]; !ok {
			describe(e, workbench.ChangeRemoved)
		}
	}
	for p, e := range b {
		old, ok := a[p]
		old.MtimeNs = e.MtimeNs
		switch {
		case !ok:
			describe(e, workbench.ChangeAdded)
		case old != e:
			describe(e, workbench.ChangeModified)
		}
	}
	slices.SortFunc(want, func(x, y workbench.ChangedFile) int { return cmp.Compare(x.Path, y.Path) })
	if !slices.Equal(got, want) {
		t.Fatalf("changes\n%+v\nwant\n%+v", got, want)
	}
}

func mustBigTree(t testing.TB, files int) workspace.Tree {
	t.Helper()
	var put []workspace.Entry
	for i := range files {
		put = append(put, file(fmt.Sprintf("flat/file-%05d.txt", i), fmt.Sprint(i)))
	}
	return mustApply(t, workspace.Empty(), workspace.Delta{Put: put})
}

func BenchmarkApplySmallDeltaTo16kEntries(b *testing.B) {
	tree := mustBigTree(b, 16384)
	n := 0
	for b.Loop() {
		n++
		if _, _, err := tree.Apply(workspace.Delta{Put: []workspace.Entry{file("flat/file-00777.txt", fmt.Sprint(n)), file("flat/new.txt", "x")}}); err != nil {
			b.Fatal(err)
		}
	}
}
