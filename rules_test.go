package workbench_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const modulePath = "github.com/workbenchdev/workbench"

// rooms says which packages of this module each room may import, besides the
// root package, failpoint and its own sub-packages. A room that is not here may
// not exist; "*" is everything.
var rooms = map[string][]string{
	"":                    {},
	"internal/failpoint":  {},
	"internal/fair":       {},
	"internal/store":      {},
	"internal/blob":       {},
	"internal/seal":       {},
	"internal/workspace":  {"internal/store", "internal/blob", "internal/seal"},
	"internal/checkpoint": {"internal/blob", "internal/seal"},
	"internal/artifact":   {"internal/store", "internal/blob", "internal/seal"},
	"internal/identity":   {"internal/store"},
	"internal/audit":      {"internal/store"},
	"internal/telemetry":  {"internal/store"},
	"internal/image":      {"image"},
	"internal/payload":    {},
	"internal/sandbox":    {"internal/guestwire"},
	"internal/guestwire":  {},
	"internal/guest":      {"internal/guestwire"},
	"internal/redact":     {},
	"internal/policy":     {},
	"internal/meter":      {},
	"internal/upstream":   {"internal/redact"},
	"internal/govern":     {"internal/store", "internal/seal", "internal/artifact", "internal/audit", "internal/policy", "internal/upstream", "internal/redact"},
	"internal/packages":   {"internal/fair", "internal/guestwire"},
	"internal/broker":     {"internal/packages", "internal/govern", "internal/guestwire", "internal/redact", "internal/upstream"},
	"internal/engine":     {"internal/fair", "internal/meter", "internal/govern", "internal/checkpoint", "internal/store", "internal/blob", "internal/seal", "internal/workspace", "internal/artifact", "internal/audit", "internal/identity", "internal/telemetry", "internal/image", "internal/sandbox", "internal/guestwire"},
	"internal/verify":     {"internal/sandbox", "internal/guestwire", "internal/image", "internal/payload"},
	"internal/api":        {"internal/engine", "internal/govern", "internal/store", "internal/policy", "internal/artifact", "internal/identity", "internal/audit", "internal/telemetry"},
	"internal/server":     {"*"},
	"internal/doctor":     {"internal/image", "internal/payload", "internal/sandbox"},
	"internal/terminal":   {},
	"internal/outdir":     {},
	"internal/faults":     {"*"},
	"internal/e2e":        {"*"},
	"sdk/go":              {},
	"cmd/workbench":       {"*"},
	"cmd/guest":           {"internal/guest", "internal/guestwire"},
	"bench":               {"*"},
	"image":               {},
}

// domainImports is all that the root package may import outside the standard
// library.
var domainImports = []string{"github.com/google/uuid"}

// Tests may import more than their room: test files are not looked at.
func TestImportRules(t *testing.T) {
	walkGo(t, func(room, file string, imports []string) {
		allowed, known := rooms[room]
		if !known {
			t.Errorf("%s: room %q is not in the table", file, room)
			return
		}
		for _, path := range imports {
			inside, ours := strings.CutPrefix(path, modulePath)
			if !ours {
				if room == "" && strings.Contains(strings.Split(path, "/")[0], ".") && !slices.Contains(domainImports, path) {
					t.Errorf("%s: the domain imports %s", file, path)
				}
				continue
			}
			to := roomOf(strings.TrimPrefix(inside, "/"))
			if to == "" || to == room || to == "internal/failpoint" || slices.Contains(allowed, to) || slices.Contains(allowed, "*") {
				continue
			}
			t.Errorf("%s: %s may not import %s", file, room, to)
		}
	})
}

// Only cmd/guest may carry the guest: the server must never run its code.
func TestGuestIsImportedByItsCommandOnly(t *testing.T) {
	walkGo(t, func(room, file string, imports []string) {
		for _, path := range imports {
			if strings.HasPrefix(path, modulePath+"/internal/guest/") || path == modulePath+"/internal/guest" {
				if room != "cmd/guest" && room != "internal/guest" {
					t.Errorf("%s imports the guest", file)
				}
			}
		}
	})
}

func walkGo(t *testing.T, visit func(room, file string, imports []string)) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			nested := path != "." && exists(filepath.Join(path, "go.mod"))
			if nested || strings.HasPrefix(d.Name(), ".") && path != "." || d.Name() == "testdata" || d.Name() == "node_modules" || path == "bin" {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		var imports []string
		for _, spec := range parsed.Imports {
			p, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			imports = append(imports, p)
		}
		visit(roomOf(filepath.ToSlash(filepath.Dir(path))), path, imports)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

// roomOf is the room of a package folder: two elements below internal, cmd and
// sdk, one elsewhere. Test support (…test) below a room may import like a test.
func roomOf(dir string) string {
	if dir == "." || dir == "" {
		return ""
	}
	parts := strings.Split(dir, "/")
	switch parts[0] {
	case "internal", "cmd", "sdk":
		return strings.Join(parts[:min(2, len(parts))], "/")
	}
	return parts[0]
}
