// Package outdir writes files that came out of a sandbox below one directory
// of the host. Their paths are hostile: none leads outside, none goes through
// a link, and a file that is being replaced is never half-written.
package outdir

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/workbenchdev/workbench"
)

// Dir is an output directory. One goroutine uses it.
type Dir struct {
	root *os.Root
	name string
}

// Open makes the directory if it is missing and opens it.
func Open(name string) (*Dir, error) {
	if err := os.MkdirAll(name, 0o755); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	return &Dir{root: root, name: name}, nil
}

// Name is the directory as it was given to Open.
func (d *Dir) Name() string { return d.name }

// Close closes the directory.
func (d *Dir) Close() error { return d.root.Close() }

// Write puts a file at a relative path. fill writes its contents; if it fails,
// what was at the path before stays. A link at the path is replaced, a link
// above it is refused. Codes: path_invalid, path_conflict.
func (d *Dir) Write(at string, fill func(io.Writer) error) error {
	at, err := workbench.CleanPath("path", at)
	if err != nil {
		return err
	}
	if err := d.parents(path.Dir(at)); err != nil {
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
// to be a directory and no link.
func (d *Dir) parents(dir string) error {
	if dir == "." {
		return nil
	}
	var at string
	for element := range strings.SplitSeq(dir, "/") {
		at = path.Join(at, element)
		info, err := d.root.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) {
			if err := d.root.Mkdir(at, 0o755); err != nil {
				return fmt.Errorf("make a directory for the files: %w", err)
			}
			continue
		}
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return workbench.E(workbench.CodePathConflict, "there is a file or link where a directory is needed").WithField("path").
				WithHint("name an empty directory")
		}
	}
	return nil
}
