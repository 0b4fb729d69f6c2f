package image

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
)

// maxLinks is how many links are followed in one name, as the kernel has it.
const maxLinks = 40

// resolveIn walks a relative name from root, following links as a process with
// that root would see them: a link's absolute target begins at the root, and
// ".." stops there. The result has no links in it. A missing component is given
// to onMissing, which makes it or returns the error to return; nil returns
// fs.ErrNotExist. Only the last component may be something else than a folder.
func resolveIn(root *os.Root, name string, onMissing func(at string) error) (string, error) {
	at := "."
	links := 0
	todo := strings.Split(name, "/")
	for len(todo) > 0 {
		part := todo[0]
		todo = todo[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, part)
		st, err := root.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist) && onMissing != nil:
			if err := onMissing(next); err != nil {
				return "", err
			}
		case err != nil:
			return "", err
		case st.Mode()&fs.ModeSymlink != 0:
			if links++; links > maxLinks {
				return "", invalid("too many symbolic links in one name")
			}
			target, err := root.Readlink(next)
			if err != nil {
				return "", err
			}
			if strings.HasPrefix(target, "/") {
				at = "."
			}
			todo = append(strings.Split(target, "/"), todo...)
			continue
		case !st.IsDir() && len(todo) > 0:
			return "", invalid("a file is used as a folder")
		}
		at = next
	}
	return at, nil
}
