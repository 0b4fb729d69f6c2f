package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
)

// Store is a folder of images. Several processes may use one folder at once.
// Its methods may be called concurrently.
type Store struct {
	dir string

	// Clock gives the creation time of new images.
	Clock func() time.Time
	// Probe, if set, asks the interpreters in a root for their versions, inside
	// a sandbox: language name → version. Without it versions come from the
	// files of the image. A probe that fails leaves a note on the image.
	Probe func(ctx context.Context, rootfs string) (map[string]string, error)
	// Limits bound what an import may bring.
	Limits Limits
}

// Limits bound the content of an image.
type Limits struct {
	Bytes   int64 // of regular files, as unpacked
	Entries int
}

// DefaultLimits are generous for any real image and stop an archive bomb.
var DefaultLimits = Limits{Bytes: 32 << 30, Entries: 3_000_000}

// DefaultName is the image a session gets when it names none.
const DefaultName = "standard"

// Open returns the store in dir, which is made if it does not exist. Every
// folder above a root must be searchable by the unprivileged ids that
// sandboxes are mapped to, so dir and what it makes are mode 0755.
func Open(dir string) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	for _, d := range []string{dir, filepath.Join(dir, "names"), filepath.Join(dir, "tmp")} {
		if err := makeOpenFolder(d); err != nil {
			return nil, diskError("create the image folder", err)
		}
	}
	return &Store{dir: dir, Clock: time.Now, Limits: DefaultLimits}, nil
}

// Dir is the folder of the store.
func (s *Store) Dir() string { return s.dir }

// List returns every image, newest first.
func (s *Store) List(ctx context.Context) ([]Image, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, diskError("read the image folder", err)
	}
	names, err := s.names()
	if err != nil {
		return nil, err
	}
	images := []Image{}
	for _, e := range entries {
		if !isID(e.Name()) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		m, err := s.load(e.Name(), names)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted since ReadDir
		}
		if err != nil {
			return nil, err
		}
		images = append(images, m)
	}
	slices.SortFunc(images, func(a, b Image) int {
		if c := b.CreatedAt.Compare(a.CreatedAt); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return images, nil
}

// shortestPrefix is how much of an id Get wants when it is not whole: the
// prefix and eight digits.
const shortestPrefix = len(idPrefix) + 8

// Get returns the image that a name points at, or that has the id, or the only
// one whose id begins so (with at least eight digits). Error: image_not_found.
func (s *Store) Get(ctx context.Context, nameOrID string) (Image, error) {
	names, err := s.names()
	if err != nil {
		return Image{}, err
	}
	id, named := names[nameOrID]
	switch {
	case named:
	case isID(nameOrID):
		id = nameOrID
	case strings.HasPrefix(nameOrID, idPrefix) && len(nameOrID) >= shortestPrefix:
		if id, err = s.complete(nameOrID); err != nil {
			return Image{}, err
		}
	}
	if id == "" {
		return Image{}, notFound()
	}
	m, err := s.load(id, names)
	if errors.Is(err, fs.ErrNotExist) {
		return Image{}, notFound()
	}
	return m, err
}

// complete finds the one id that begins with prefix, "" if none or several do.
func (s *Store) complete(prefix string) (string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return "", diskError("read the image folder", err)
	}
	found := ""
	for _, e := range entries {
		if isID(e.Name()) && strings.HasPrefix(e.Name(), prefix) {
			if found != "" {
				return "", nil
			}
			found = e.Name()
		}
	}
	return found, nil
}

// Default returns the image a session gets when it names none: the one called
// standard, else minimal, else the newest. Error: image_not_found.
func (s *Store) Default(ctx context.Context) (Image, error) {
	for _, name := range []string{DefaultName, "minimal"} {
		m, err := s.Get(ctx, name)
		if err == nil || !workbench.HasCode(err, workbench.CodeImageNotFound) {
			return m, err
		}
	}
	all, err := s.List(ctx)
	if err != nil {
		return Image{}, err
	}
	if len(all) == 0 {
		return Image{}, workbench.E(workbench.CodeImageNotFound, "there is no sandbox image in %s", s.dir).
			WithHint("build one: workbench image build standard (or minimal, which is quicker)")
	}
	return all[0], nil
}

func notFound() error {
	return workbench.E(workbench.CodeImageNotFound, "no image has this name or id").
		WithField("image").WithHint("workbench image list shows what there is; workbench image build makes the standard ones")
}

// SetName lets a name point at an image, and away from where it pointed before.
// Errors: invalid_request, image_not_found.
func (s *Store) SetName(ctx context.Context, name, id string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	unlock, err := s.lock(ctx, "names.lock", nil)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(filepath.Join(s.dir, id, "image.json")); !isID(id) || err != nil {
		return notFound()
	}
	return writeFileAtomic(filepath.Join(s.dir, "names", name), []byte(id+"\n"))
}

// Delete removes an image and the names that point at it. inUse is asked while
// no name can be moved to the image; an image in use stays. Errors:
// image_not_found, image_in_use.
func (s *Store) Delete(ctx context.Context, nameOrID string, inUse func(ctx context.Context, id string) (bool, error)) error {
	unlock, err := s.lock(ctx, "names.lock", nil)
	if err != nil {
		return err
	}
	defer unlock()
	m, err := s.Get(ctx, nameOrID)
	if err != nil {
		return err
	}
	if inUse != nil {
		used, err := inUse(ctx, m.ID)
		if err != nil {
			return err
		}
		if used {
			return workbench.E(workbench.CodeImageInUse, "the image is in use by a session").
				WithHint("close the sessions that use it, then delete it")
		}
	}
	for _, name := range m.Names {
		if err := os.Remove(filepath.Join(s.dir, "names", name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return diskError("remove a name", err)
		}
	}
	// Out of sight at once, whatever happens while the files go. The folder is
	// outside tmp, which a build may clear at the same moment.
	grave := filepath.Join(s.dir, gravePrefix+m.ID)
	if err := os.RemoveAll(grave); err != nil { // of an earlier, interrupted deletion
		return diskError("remove the image's files", err)
	}
	if err := os.Rename(filepath.Join(s.dir, m.ID), grave); err != nil {
		return diskError("remove the image", err)
	}
	if err := os.RemoveAll(grave); err != nil {
		return diskError("remove the image's files", err)
	}
	return nil
}

// Verify reads the whole root of an image and compares it with the id. Error:
// content_corrupt if they differ.
func (s *Store) Verify(ctx context.Context, m Image) error {
	d, err := DigestRoot(ctx, m.Root)
	if err != nil {
		return err
	}
	if idPrefix+d.Hex != m.ID {
		return workbench.E(workbench.CodeCorrupt, "the files of image %.16s… are not those it was made with", m.ID).
			WithHint("delete the image and build or import it again")
	}
	return nil
}

// gravePrefix begins the folder of an image that is being deleted.
const gravePrefix = ".deleted-"

// load reads an image's description. The error wraps fs.ErrNotExist if there is
// no complete image with the id.
func (s *Store) load(id string, names map[string]string) (Image, error) {
	home := filepath.Join(s.dir, id)
	raw, err := os.ReadFile(filepath.Join(home, "image.json"))
	if err != nil {
		return Image{}, diskError("read an image's description", err)
	}
	var m Image
	if err := json.Unmarshal(raw, &m); err != nil {
		return Image{}, workbench.E(workbench.CodeCorrupt, "the description of image %.16s… cannot be read", id).
			WithHint("delete the image's folder and build or import it again").Caused(err)
	}
	m.ID = id
	m.Names = []string{}
	for name, target := range names {
		if target == id {
			m.Names = append(m.Names, name)
		}
	}
	slices.Sort(m.Names)
	m.Root = filepath.Join(home, "rootfs")
	if _, err := os.Stat(filepath.Join(home, "rootfs.erofs")); err == nil {
		m.EROFS = filepath.Join(home, "rootfs.erofs")
	}
	return m, nil
}

// names reads where every name points.
func (s *Store) names() (map[string]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, "names"))
	if err != nil {
		return nil, diskError("read the image names", err)
	}
	names := make(map[string]string, len(entries))
	for _, e := range entries {
		if !namePattern.MatchString(e.Name()) {
			continue // being written
		}
		raw, err := os.ReadFile(filepath.Join(s.dir, "names", e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, diskError("read an image name", err)
		}
		if id := strings.TrimSpace(string(raw)); isID(id) {
			names[e.Name()] = id
		}
	}
	return names, nil
}
