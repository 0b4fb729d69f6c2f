package engine

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"

	"github.com/workbenchdev/workbench/internal/workspace"
)

// patch is one difference as git writes it.
type patch struct {
	text                 string
	additions, deletions int
}

// isBinary reports whether a content is no text here: not UTF-8, or with a NUL.
func isBinary(b []byte) bool { return bytes.IndexByte(b, 0) >= 0 || !utf8.Valid(b) }

// patchOf makes the patch from one side to the other; blind leaves the contents
// out, which git then refuses to apply. Directories have none: git does not know
// them.
func patchOf(d difference, old, now []byte, blind bool) patch {
	before, after := gitMode(d.old), gitMode(d.now)
	if before == "" && after == "" {
		return patch{}
	}
	if before != "" && after != "" && before[:3] != after[:3] { // a file became a link or the other way
		gone := patchOf(difference{change: d.change, old: d.old}, old, nil, blind)
		made := patchOf(difference{change: d.change, now: d.now}, nil, now, blind)
		return patch{gone.text + made.text, made.additions, gone.deletions}
	}
	from, to := gitName("a/", d.change.Path), gitName("b/", d.change.Path)
	var b strings.Builder
	fmt.Fprintf(&b, "diff --git %s %s\n", from, to)
	switch {
	case before == "":
		fmt.Fprintf(&b, "new file mode %s\n", after)
	case after == "":
		fmt.Fprintf(&b, "deleted file mode %s\n", before)
	case before != after:
		fmt.Fprintf(&b, "old mode %s\nnew mode %s\n", before, after)
	case d.sameContent():
		return patch{} // another mode, which git does not tell apart
	}
	if d.sameContent() {
		return patch{text: b.String()}
	}
	if before == "" {
		from = "/dev/null"
	}
	if after == "" {
		to = "/dev/null"
	}
	if blind {
		fmt.Fprintf(&b, "Binary files %s and %s differ\n", from, to)
		return patch{text: b.String()}
	}
	hunks, additions, deletions := unified(string(old), string(now))
	if hunks != "" {
		fmt.Fprintf(&b, "--- %s\n+++ %s\n%s", withTab(from), withTab(to), hunks)
	}
	return patch{b.String(), additions, deletions}
}

// unified is the hunks between two texts, and the lines that came and went.
func unified(old, now string) (hunks string, additions, deletions int) {
	text, err := udiff.ToUnified("-", "+", old, udiff.Lines(old, now), udiff.DefaultContextLines)
	if err != nil || text == "" { // the edits are its own: they fit
		return "", 0, 0
	}
	for range 2 { // its own two lines of names
		_, text, _ = strings.Cut(text, "\n")
	}
	for line := range strings.Lines(text) {
		switch line[0] {
		case '+':
			additions++
		case '-':
			deletions++
		}
	}
	return text, additions, deletions
}

// gitMode is what git calls an entry: "" for what it does not know.
func gitMode(entry *workspace.Entry) string {
	switch {
	case entry == nil || entry.Type == workspace.Dir:
		return ""
	case entry.Type == workspace.Symlink:
		return "120000"
	case entry.Mode&0o100 != 0:
		return "100755"
	}
	return "100644"
}

// gitName is a path in a patch, quoted where git would: in the way of C, with
// bytes in octal.
func gitName(side, path string) string {
	plain := utf8.ValidString(path) && !strings.ContainsFunc(path, func(r rune) bool { return r < 0x20 || r == 0x7f || r == '"' || r == '\\' })
	if plain {
		return side + path
	}
	var b strings.Builder
	b.WriteString(`"` + side)
	for i := range len(path) {
		switch c := path[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\t':
			b.WriteString(`\t`)
		case c < 0x20 || c >= 0x7f:
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String() + `"`
}

// withTab ends a name that has a space in it, which would end without.
func withTab(name string) string {
	if strings.Contains(name, " ") && !strings.HasPrefix(name, `"`) {
		return name + "\t"
	}
	return name
}
