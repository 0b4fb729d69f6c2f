package image

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/workbenchdev/workbench"
)

// binFolders are searched in this order, as the guest's PATH has them.
var binFolders = []string{"usr/local/bin", "usr/bin", "bin"}

// interpreter is a program that runs a language.
type interpreter struct {
	language workbench.Language
	names    []string // of the executable, best first
	packages []string // of the distribution that hold it; patterns
	header   string   // pattern of a C header that states the version
	define   *regexp.Regexp
}

var interpreters = []interpreter{
	{workbench.Python, []string{"python3", "python"}, []string{"python3.[0-9]*", "python3"},
		"usr/local/include/python3*/patchlevel.h", regexp.MustCompile(`(?m)^#define\s+PY_VERSION\s+"([0-9.]+)`)},
	{workbench.JavaScript, []string{"node", "nodejs"}, []string{"nodejs", "nodejs-current"},
		"usr/local/include/node/node_version.h",
		regexp.MustCompile(`(?s)NODE_MAJOR_VERSION\s+(\d+).*?NODE_MINOR_VERSION\s+(\d+).*?NODE_PATCH_VERSION\s+(\d+)`)},
	{workbench.Bash, []string{"bash"}, []string{"bash"}, "", nil},
}

// probe fills in what a root offers: languages by looking at its files, and by
// asking s.Probe where there is one; packages from the distribution's list.
func (s *Store) probe(ctx context.Context, rootfs string, m *Image) error {
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return diskError("open the new root", err)
	}
	defer root.Close()
	m.Packages = installedPackages(root)
	m.Languages = []Language{}
	for _, i := range interpreters {
		found, ok := i.find(root, m.Packages)
		if !ok {
			continue
		}
		m.Languages = append(m.Languages, found)
		if found.Name == workbench.JavaScript {
			// The guest compiles TypeScript to JavaScript.
			found.Name = workbench.TypeScript
			m.Languages = append(m.Languages, found)
		}
	}
	if len(m.Languages) == 0 {
		return invalid("the image has no interpreter that runs could use").
			WithHint("it needs python3, node or bash in /usr/local/bin, /usr/bin or /bin")
	}
	if s.Probe == nil {
		return nil
	}
	said, err := s.Probe(ctx, rootfs)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		m.Notes = append(m.Notes, "its interpreters could not be tried in a sandbox: "+workbench.AsError(err).Detail)
		return nil //nolint:nilerr // the note says it; the files have told the versions
	}
	for n := range m.Languages {
		if v, ok := said[string(m.Languages[n].Name)]; ok && versionPattern.MatchString(v) {
			m.Languages[n].Version = versionPattern.FindString(v)
		}
	}
	return nil
}

// find looks for the executable where the guest would.
func (i interpreter) find(root *os.Root, installed []Package) (Language, bool) {
	for _, name := range i.names {
		for _, folder := range binFolders {
			at, err := resolveIn(root, path.Join(folder, name), nil)
			if err != nil {
				continue
			}
			st, err := root.Lstat(at)
			if err != nil || !st.Mode().IsRegular() || st.Mode().Perm()&0o001 == 0 {
				continue
			}
			return Language{
				Name: i.language, Interpreter: "/" + path.Join(folder, name),
				Version: i.version(root, at, installed),
			}, true
		}
	}
	return Language{}, false
}

var versionPattern = regexp.MustCompile(`\d+(\.\d+)+`)

// version finds the interpreter's version without running it: from a header
// installed beside it (as the languages' own images have it), else from the
// package that owns it, else from its file's name.
func (i interpreter) version(root *os.Root, executable string, installed []Package) string {
	if i.define != nil && strings.HasPrefix(executable, "usr/local/") {
		if v := i.headerVersion(root); v != "" {
			return v
		}
	}
	// python3 leads to python3.13: the package of that name knows the most.
	names := append([]string{path.Base(executable)}, i.packages...)
	for _, pattern := range names {
		for _, p := range installed {
			if hit, err := path.Match(pattern, p.Name); err == nil && hit {
				if v := versionPattern.FindString(p.Version); v != "" {
					return v
				}
			}
		}
	}
	return versionPattern.FindString(path.Base(executable))
}

func (i interpreter) headerVersion(root *os.Root) string {
	files, err := fs.Glob(root.FS(), i.header)
	if err != nil || len(files) == 0 {
		return ""
	}
	m := i.define.FindSubmatch(readSome(root, files[0], 64<<10))
	if m == nil {
		return ""
	}
	return string(bytes.Join(m[1:], []byte(".")))
}

// readSome reads the beginning of a regular file, nothing if there is none.
func readSome(root *os.Root, at string, limit int64) []byte {
	if st, err := root.Stat(at); err != nil || !st.Mode().IsRegular() {
		return nil
	}
	f, err := root.Open(at)
	if err != nil {
		return nil
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return nil
	}
	return content
}

const (
	maxPackageList = 64 << 20
	maxPackages    = 20_000
)

// installedPackages reads the lists of dpkg and apk, sorted by name. Other
// distributions' packages are not listed.
func installedPackages(root *os.Root) []Package {
	lists := [][]byte{readSome(root, "var/lib/dpkg/status", maxPackageList)}
	if more, err := fs.Glob(root.FS(), "var/lib/dpkg/status.d/*"); err == nil {
		for _, at := range more[:min(len(more), maxPackages)] {
			lists = append(lists, readSome(root, at, 1<<20))
		}
	}
	packages := []Package{}
	for _, list := range lists {
		packages = append(packages, parseStanzas(list, "Package: ", "Version: ")...)
	}
	packages = append(packages, parseStanzas(readSome(root, "lib/apk/db/installed", maxPackageList), "P:", "V:")...)
	slices.SortFunc(packages, func(a, b Package) int {
		return strings.Compare(a.Name+" "+a.Version, b.Name+" "+b.Version)
	})
	packages = slices.Compact(packages)
	return packages[:min(len(packages), maxPackages)]
}

// parseStanzas reads paragraphs of fields, separated by empty lines. One whose
// Status is not installed is left out.
func parseStanzas(list []byte, nameField, versionField string) []Package {
	var packages []Package
	var p Package
	installed := true
	end := func() {
		if p.Name != "" && p.Version != "" && installed {
			packages = append(packages, p)
		}
		p, installed = Package{}, true
	}
	lines := bufio.NewScanner(bytes.NewReader(list))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case line == "":
			end()
		case strings.HasPrefix(line, nameField):
			p.Name = strings.TrimPrefix(line, nameField)
		case strings.HasPrefix(line, versionField):
			p.Version = strings.TrimPrefix(line, versionField)
		case strings.HasPrefix(line, "Status: "):
			installed = strings.HasSuffix(line, " installed")
		}
	}
	end()
	return packages
}
