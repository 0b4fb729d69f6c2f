// Package outdir writes files that came out of a sandbox below one directory
// of the host. Their paths are hostile: none leads outside, none goes through
// a link, and a file that is being replaced is never half-written. Directories
// that nothing was written to do not stay.
package outdir

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/workbenchdev/workbench"
)

// Dir is an output directory. One goroutine uses it.
type Dir struct {
	root *os.Root
	name string
	made []string // directories that Open made, the innermost first
}

// Open makes the directory if it is missing, with those above it, and opens
// it.
func Open(name string) (*Dir, error) {
	d := &Dir{name: name}
	for at := filepath.Clean(name); ; at = filepath.Dir(at) {
		if _, err := os.Lstat(at); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		d.made = append(d.made, at)
	}
	err := os.MkdirAll(name, 0o755)
	if err == nil {
		if d.root, err = os.OpenRoot(name); err == nil {
			return d, nil
		}
	}
	d.unmake()
	return nil, err
}

// unmake removes what Open made, as far as it is empty.
func (d *Dir) unmake() {
	for _, at := range d.made {
		if os.Remove(at) != nil {
			return // something is in it
		}
	}
}

// Name is the directory as it was given to Open.
func (d *Dir) Name() string { return d.name }

// Close closes the directory, and removes it if Open made it and it is empty.
func (d *Dir) Close() error {
	err := d.root.Close()
	d.unmake()
	return err
}

// Write puts a file at a relative path. fill writes its contents; if it fails,
// what was at the path before stays. A link at the path is replaced, a link
// above it is refused. Codes: path_invalid, path_conflict.
func (d *Dir) Write(at string, fill func(io.Writer) error) (err error) {
	at, err = workbench.CleanPath("path", at)
	if err != nil {
		return err
	}
	made, err := d.parents(path.Dir(at))
	defer func() {
		for i := len(made) - 1; err != nil && i >= 0; i-- {
			_ = d.root.Remove(made[i]) // fails, as it should, if something is in it
		}
	}()
	if err != nil {
		return err
	}
	if info, err := d.root.Lstat(at); err == nil && info.IsDir() {
		return workbench.E(workbench.CodePathConflict, "there is a directory where a file is to be written").WithField("path")
	}
	temporary := path.Join(path.Dir(at), ".workbench-"+rand.Text())
	f, err := d.root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	if err := errors.Join(fill(f), f.Close()); err != nil {
		return errors.Join(err, d.root.Remove(temporary))
	}
	if err := d.root.Rename(temporary, at); err != nil {
		return errors.Join(err, d.root.Remove(temporary))
	}
	return nil
}

// parents makes the directories above a file, one by one, so that each is seen
// to be a directory and no link. It returns those that were missing.
func (d *Dir) parents(dir string) (made []string, err error) {
	if dir == "." {
		return nil, nil
	}
	var at string
	for element := range strings.SplitSeq(dir, "/") {
		at = path.Join(at, element)
		info, err := d.root.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) {
			if err := d.root.Mkdir(at, 0o755); err != nil {
				return made, fmt.Errorf("make a directory for the files: %w", err)
			}
			made = append(made, at)
			continue
		}
		if err != nil {
			return made, err
		}
		if !info.IsDir() {
			return made, workbench.E(workbench.CodePathConflict, "there is a file or link where a directory is needed").WithField("path").
				WithHint("name an empty directory")
		}
	}
	return made, nil
}
