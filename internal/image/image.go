package image

import (
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/workbenchdev/workbench"
)

// idPrefix begins every image id; the SHA-256 of the root follows, in hex.
const (
	idPrefix = "img_"
	idDigits = 64
)

// Image describes one stored root file system.
type Image struct {
	ID          string     `json:"id"`
	Names       []string   `json:"names"` // that point at it now, sorted
	Description string     `json:"description,omitempty"`
	CreatedAt   time.Time  `json:"createdAt"`
	Source      Source     `json:"source"`
	Languages   []Language `json:"languages"`
	Packages    []Package  `json:"packages"`  // from the distribution's own list, sorted
	Files       int        `json:"files"`     // entries in the root
	SizeBytes   int64      `json:"sizeBytes"` // of the regular files in the root
	Notes       []string   `json:"notes"`     // what was left out or changed on the way in

	// Where it is on this host; not stored.
	Root  string `json:"-"` // the root as a directory
	EROFS string `json:"-"` // the root as an EROFS file, "" if there is none
}

// Source says where an image came from.
type Source struct {
	Kind   string `json:"kind"`             // recipe, tar, oci
	Recipe string `json:"recipe,omitempty"` // name of the recipe
	Hash   string `json:"hash,omitempty"`   // of the recipe; it finds the image, it does not identify it
}

// Language is one language that an image offers.
type Language struct {
	Name        workbench.Language `json:"name"`
	Version     string             `json:"version"`     // of the interpreter, as far as known: 3.13.5
	Interpreter string             `json:"interpreter"` // absolute path inside the image
}

// Package is one installed package.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Offers reports whether the image can run the language.
func (m Image) Offers(l workbench.Language) bool {
	for _, have := range m.Languages {
		if have.Name == l {
			return true
		}
	}
	return false
}

// Progress is one thing worth telling a person who waits.
type Progress struct {
	Stage  Stage
	Detail string
	// Done of Total units of this stage; Total is 0 where it is not known.
	Done, Total int
}

// Stage is a part of making an image.
type Stage string

// The stages, in order. An import has no configure, download and install.
const (
	StageWait      Stage = "wait" // another build or import holds the lock
	StagePrepare   Stage = "prepare"
	StageDownload  Stage = "download"
	StageInstall   Stage = "install"
	StageConfigure Stage = "configure"
	StageUnpack    Stage = "unpack"
	StageDigest    Stage = "digest"
	StagePack      Stage = "pack"
	StageProbe     Stage = "probe"
	StageDone      Stage = "done"
)

// ProgressFunc receives progress, one call at a time, from a goroutine that
// ends before the call it was given to returns. nil is allowed.
type ProgressFunc func(Progress)

func (f ProgressFunc) tell(stage Stage, detail string) { f.count(stage, detail, 0, 0) }

func (f ProgressFunc) count(stage Stage, detail string, done, total int) {
	if f != nil {
		f(Progress{Stage: stage, Detail: detail, Done: done, Total: total})
	}
}

// serialized makes calls wait for each other.
func (f ProgressFunc) serialized() ProgressFunc {
	if f == nil {
		return nil
	}
	var one sync.Mutex
	return func(p Progress) {
		one.Lock()
		defer one.Unlock()
		f(p)
	}
}

var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// CheckName reports whether a name may point at an image. Error:
// invalid_request.
func CheckName(name string) error {
	if !namePattern.MatchString(name) || strings.HasPrefix(name, idPrefix) {
		return workbench.E(workbench.CodeInvalidRequest, "not a possible image name").WithField("name").
			WithHint("use up to 63 lower-case letters, digits, dots, dashes and underscores, not beginning with %s", idPrefix)
	}
	return nil
}

// isID reports whether s is a whole image id.
func isID(s string) bool {
	hex, ok := strings.CutPrefix(s, idPrefix)
	return ok && len(hex) == idDigits && isHex(hex)
}

func isHex(s string) bool {
	for _, c := range s {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
