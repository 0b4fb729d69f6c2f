package image_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/image"
)

func mkfifo(path string) error { return unix.Mkfifo(path, 0o600) }

func MustRecipe(t *testing.T, name string) image.Recipe {
	t.Helper()
	r, err := image.LoadRecipe(name)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// recipeFiles is a small recipe with one script.
func recipeFiles(recipe, script string) fstest.MapFS {
	return fstest.MapFS{
		"tiny/recipe.json": {Data: []byte(recipe)},
		"setup/step.sh":    {Data: []byte(script)},
	}
}

const tinyRecipe = `{"name":"tiny","suite":"trixie","components":["main"],"packages":["bash"],"setup":["step.sh"]}`

func TestRecipes(t *testing.T) {
	t.Run("minimal and standard are there and read", func(t *testing.T) {
		if got := image.Recipes(); !slices.Equal(got, []string{"minimal", "standard"}) {
			t.Fatalf("%v", got)
		}
		for _, name := range image.Recipes() {
			if r := MustRecipe(t, name); r.Name != name || r.Suite != "trixie" || r.DiskBytes == 0 {
				t.Errorf("%+v", r)
			}
		}
		if _, err := image.LoadRecipe("other"); !workbench.HasCode(err, workbench.CodeImageNotFound) {
			t.Errorf("%v, want image_not_found", err)
		}
	})

	t.Run("standard holds what minimal does", func(t *testing.T) {
		standard := MustRecipe(t, "standard")
		for _, p := range MustRecipe(t, "minimal").Packages {
			if !slices.Contains(standard.Packages, p) {
				t.Errorf("standard lacks %s", p)
			}
		}
	})

	t.Run("the hash changes with the recipe and its scripts, and only then", func(t *testing.T) {
		hashes := map[string]bool{}
		for _, files := range []fstest.MapFS{
			recipeFiles(tinyRecipe, "true"), recipeFiles(tinyRecipe, "true"), recipeFiles(tinyRecipe, "false"),
			recipeFiles(strings.Replace(tinyRecipe, "bash", "dash", 1), "true"),
		} {
			r, err := image.ReadRecipe(files, "tiny")
			if err != nil {
				t.Fatal(err)
			}
			hashes[r.Hash()] = true
		}
		if len(hashes) != 3 {
			t.Fatalf("%d different hashes, want 3", len(hashes))
		}
	})

	for name, recipe := range map[string]string{
		"an unknown field":        `{"name":"tiny","suite":"trixie","components":["main"],"packages":["bash"],"extra":1}`,
		"an option as a package":  `{"name":"tiny","suite":"trixie","components":["main"],"packages":["--x"]}`,
		"two packages in one":     `{"name":"tiny","suite":"trixie","components":["main"],"packages":["a,b"]}`,
		"a script in a folder":    `{"name":"tiny","suite":"trixie","components":["main"],"packages":["bash"],"setup":["../x.sh"]}`,
		"a script that is absent": `{"name":"tiny","suite":"trixie","components":["main"],"packages":["bash"],"setup":["no.sh"]}`,
		"no package":              `{"name":"tiny","suite":"trixie","components":["main"]}`,
		"a space in a suite":      `{"name":"tiny","suite":"a b","components":["main"],"packages":["bash"]}`,
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			if _, err := image.ReadRecipe(recipeFiles(recipe, ""), "tiny"); !workbench.HasCode(err, workbench.CodeImageInvalid) {
				t.Fatalf("%v, want image_invalid", err)
			}
		})
	}
}

func TestBuildFailures(t *testing.T) {
	t.Run("says how to get mmdebstrap", func(t *testing.T) {
		s := MustOpen(t, t.TempDir())
		t.Setenv("PATH", t.TempDir())
		_, err := s.Build(t.Context(), MustRecipe(t, "minimal"), nil)
		e := workbench.AsError(err)
		if e.Code != workbench.CodeUnavailable || !strings.Contains(e.Hint, "apt-get install mmdebstrap") {
			t.Fatalf("%v, hint %q", err, e.Hint)
		}
		MustBeEmpty(t, s)
	})

	t.Run("cancelled, it ends its processes and leaves nothing", func(t *testing.T) {
		s := MustOpen(t, t.TempDir())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, err := s.Build(ctx, MustRecipe(t, "minimal"), func(p image.Progress) {
			if p.Detail == "running apt-get update" {
				cancel()
			}
		})
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("%v, want cancelled", err)
		}
		MustBeEmpty(t, s)
		out, err := exec.Command("ps", "-eo", "args").Output()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(out), s.Dir()) {
			t.Fatalf("processes of the build live:\n%s", out)
		}
	})
}

func TestParseAptURIs(t *testing.T) {
	for _, c := range []struct{ name, in, archive, security string }{
		{"a Debian machine", `
'http://mirror.example/debian/dists/bookworm/InRelease' a 0
'http://mirror.example/debian/dists/bookworm-updates/InRelease' b 0
'http://mirror.example/debian-security/dists/bookworm-security/InRelease' c 0
'http://mirror.example/debian/dists/bookworm/main/binary-amd64/Packages.xz' d 0
`, "http://mirror.example/debian", "http://mirror.example/debian-security"},
		{"a vendor's repository before the archive", `
'https://vendor.example/product/debian/dists/bookworm/InRelease' a 0
'https://vendor.example/tools/dists/stable/InRelease' a 0
'http://mirror.example/debian/dists/trixie/InRelease' a 0
'http://mirror.example/debian/dists/trixie-updates/InRelease' a 0
`, "http://mirror.example/debian", ""},
		{"the archive alone", "'http://mirror.example/a/debian/dists/sid/InRelease' a 0\n", "http://mirror.example/a/debian", ""},
		{"another distribution", "'http://mirror.example/ubuntu/dists/noble/InRelease' a 0\n", "", ""},
		{"nothing", "", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			archive, security := image.ParseAptURIs([]byte(c.in))
			if archive != c.archive || security != c.security {
				t.Fatalf("%q %q, want %q %q", archive, security, c.archive, c.security)
			}
		})
	}
}

func TestParseAptOptions(t *testing.T) {
	got := image.ParseAptOptions([]byte(`APT "";
Acquire::http::Proxy "http://proxy.example:3128";
Acquire::https::Proxy::direct.example "DIRECT";
Acquire::Retries "3";
Acquire::AllowInsecureRepositories "1";
DPkg::Post-Invoke:: "rm -rf /";
Dir::Etc "etc/apt";
`))
	want := `Acquire::http::Proxy "http://proxy.example:3128";
Acquire::https::Proxy::direct.example "DIRECT";
Acquire::Retries "3";
`
	if got != want {
		t.Fatalf("%s\nwant\n%s", got, want)
	}
}

// TestBuiltMinimal looks at the image that make setup built.
func TestBuiltMinimal(t *testing.T) {
	dir := os.Getenv("WORKBENCH_IMAGES")
	if dir == "" {
		dir = "/var/lib/workbench/images"
	}
	s := MustOpen(t, dir)
	m, err := s.Get(t.Context(), "minimal")
	if err != nil {
		t.Fatalf("no minimal image in %s; make setup builds it: %v", dir, err)
	}
	t.Run("offers the four languages, with versions", func(t *testing.T) {
		for _, want := range []struct {
			language workbench.Language
			version  string
		}{
			{workbench.Python, `^3\.13\.\d+$`}, {workbench.JavaScript, `^20\.\d+\.\d+$`},
			{workbench.TypeScript, `^20\.\d+\.\d+$`}, {workbench.Bash, `^5\.2\.\d+$`},
		} {
			i := slices.IndexFunc(m.Languages, func(l image.Language) bool { return l.Name == want.language })
			if i < 0 || !regexp.MustCompile(want.version).MatchString(m.Languages[i].Version) {
				t.Errorf("%s: %+v", want.language, m.Languages)
			}
		}
	})
	t.Run("is what its id says", func(t *testing.T) {
		if err := s.Verify(t.Context(), m); err != nil {
			t.Error(err)
		}
		if err := image.CheckRoot(m.Root); err != nil {
			t.Error(err)
		}
	})
	t.Run("names no host of its build and holds no set-id file", func(t *testing.T) {
		for _, name := range []string{"etc/apt", "var/lib/apt", "etc/machine-id", "etc/dpkg/dpkg.cfg.d/99mmdebstrap"} {
			MustLack(t, m, name)
		}
		MustRead(t, m, "etc/resolv.conf", "")
		out, err := exec.Command("find", m.Root, "-perm", "/6000").CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("%v %s", err, out)
		}
	})
	t.Run("has an EROFS file beside its root", func(t *testing.T) {
		if m.EROFS == "" {
			t.Error("none; make setup installs erofs-utils")
		}
	})
	t.Run("its description is JSON with an id and a time", func(t *testing.T) {
		raw, err := json.Marshal(m)
		if err != nil || !strings.Contains(string(raw), `"createdAt":"20`) || strings.Contains(string(raw), m.Root) {
			t.Errorf("%v %.300s", err, raw)
		}
	})
}
