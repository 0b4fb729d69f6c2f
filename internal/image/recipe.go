package image

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/image/recipes"
)

// builderVersion is part of a recipe's hash: it changes when this package makes
// another root from the same recipe.
const builderVersion = 1

// Recipe says how to build an image from a Debian suite.
type Recipe struct {
	Name        string   `json:"name"`
	Description string   `json:"description"`
	Suite       string   `json:"suite"`      // release, by code name
	Components  []string `json:"components"` // of the archive
	Packages    []string `json:"packages"`
	Exclude     []string `json:"exclude"`          // path patterns that packages do not unpack
	Include     []string `json:"include"`          // exceptions from Exclude
	Remove      []string `json:"remove,omitempty"` // path patterns removed at the end, as path.Match has them
	Setup       []string `json:"setup"`            // scripts (.sh, .py), run in order inside the new root
	DiskBytes   int64    `json:"diskBytes"`        // what must be free to begin

	scripts map[string][]byte // content of the scripts in Setup
}

// Recipes lists the names of the recipes that come with Workbench.
func Recipes() []string {
	names := []string{}
	entries, err := fs.ReadDir(recipes.Files, ".")
	if err != nil {
		return names // compiled in; cannot fail
	}
	for _, e := range entries {
		if _, err := fs.Stat(recipes.Files, path.Join(e.Name(), "recipe.json")); err == nil {
			names = append(names, e.Name())
		}
	}
	return names
}

// LoadRecipe returns a recipe that comes with Workbench. Error:
// image_not_found.
func LoadRecipe(name string) (Recipe, error) {
	if !slices.Contains(Recipes(), name) {
		return Recipe{}, workbench.E(workbench.CodeImageNotFound, "there is no recipe with this name").
			WithField("recipe").WithHint("the recipes are: %s", strings.Join(Recipes(), ", "))
	}
	return ReadRecipe(recipes.Files, name)
}

// words that reach a command line or a file of mmdebstrap.
var (
	packagePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)
	suitePattern   = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
	pathPattern    = regexp.MustCompile(`^/[A-Za-z0-9._+*/@-]+$`)
	scriptPattern  = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*\.(sh|py)$`)
)

// ReadRecipe reads <name>/recipe.json and the scripts it names in setup/.
// Error: image_invalid.
func ReadRecipe(files fs.FS, name string) (Recipe, error) {
	raw, err := fs.ReadFile(files, path.Join(name, "recipe.json"))
	if err != nil {
		return Recipe{}, invalid("recipe %.100q cannot be read", name).Caused(err)
	}
	var r Recipe
	decode := json.NewDecoder(bytes.NewReader(raw))
	decode.DisallowUnknownFields()
	if err := decode.Decode(&r); err != nil {
		return Recipe{}, invalid("recipe %.100q is not a recipe: %v", name, err)
	}
	if err := r.check(); err != nil {
		return Recipe{}, err
	}
	r.scripts = map[string][]byte{}
	for _, script := range r.Setup {
		if r.scripts[script], err = fs.ReadFile(files, path.Join("setup", script)); err != nil {
			return Recipe{}, invalid("recipe %s names the script %s, which cannot be read", r.Name, script).Caused(err)
		}
	}
	return r, nil
}

func (r Recipe) check() error {
	if err := CheckName(r.Name); err != nil {
		return err
	}
	for _, rule := range []struct {
		what    string
		words   []string
		pattern *regexp.Regexp
	}{
		{"suite", []string{r.Suite}, suitePattern},
		{"component", r.Components, suitePattern},
		{"package", r.Packages, packagePattern},
		{"exclude pattern", r.Exclude, pathPattern},
		{"include pattern", r.Include, pathPattern},
		{"remove pattern", r.Remove, pathPattern},
		{"setup script", r.Setup, scriptPattern},
	} {
		for _, word := range rule.words {
			if !rule.pattern.MatchString(word) {
				return invalid("recipe %s: not a possible %s: %.100q", r.Name, rule.what, word)
			}
		}
	}
	if len(r.Components) == 0 || len(r.Packages) == 0 {
		return invalid("recipe %s names no component or no package", r.Name)
	}
	return nil
}

// Hash finds the image that this recipe built on this kind of machine. It
// changes with the recipe and its scripts, not with what the archive holds.
func (r Recipe) Hash() string {
	raw, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings and numbers only
	}
	sum := sha256.New()
	sum.Write(fmt.Appendf(nil, "workbench recipe %d %s\n%d %s\n", builderVersion, runtime.GOARCH, len(raw), raw))
	for _, script := range r.Setup {
		sum.Write(fmt.Appendf(nil, "%s %d %s\n", script, len(r.scripts[script]), r.scripts[script]))
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// interpreterOf says what reads a script from standard input.
func interpreterOf(script string) (string, error) {
	switch path.Ext(script) {
	case ".sh":
		return "/bin/sh -s", nil
	case ".py":
		return "/usr/bin/python3 -", nil
	}
	return "", errors.New("no interpreter for " + script)
}
