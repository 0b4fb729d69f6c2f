package guest

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// Everything here works from a descriptor of the workspace, element by element,
// and follows no link: not the last one, and none on the way. It is called with
// user code's identity (asUser), while code may be changing the tree.

// workspacePath makes a path relative to the workspace of one that code gave,
// absolute or relative to the workspace. Code: path_invalid.
func workspacePath(p string) (guestwire.Path, error) {
	if strings.IndexByte(p, 0) >= 0 {
		return "", workbench.E(workbench.CodePathInvalid, "the path has a NUL byte")
	}
	if !path.IsAbs(p) {
		p = workspaceDir + "/" + p
	}
	rel, ok := strings.CutPrefix(path.Clean(p), workspaceDir+"/")
	if !ok {
		return "", workbench.E(workbench.CodePathInvalid, "the path is not inside %s", workspaceDir).
			WithHint("copy the file into the workspace first")
	}
	return guestwire.Path(rel), guestwire.Path(rel).Check()
}

// openDir opens a directory of the workspace, "" for its root, for use as a
// starting point.
func openDir(rel string) (int, error) {
	fd, err := unix.Open(workspaceDir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if rel == "" {
		return fd, nil
	}
	for element := range strings.SplitSeq(rel, "/") {
		next, err := unix.Openat(fd, element, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		_ = unix.Close(fd)
		if err != nil {
			return -1, err
		}
		fd = next
	}
	return fd, nil
}

// split parts a path into its directory, "" for the root, and its last element.
func split(p guestwire.Path) (dir, name string) {
	i := strings.LastIndexByte(string(p), '/')
	if i < 0 {
		return "", string(p)
	}
	return string(p[:i]), string(p[i+1:])
}

// openFile opens a regular file of the workspace for reading, without waiting
// whatever is there. Codes: not_found, path_conflict, path_invalid.
func openFile(p guestwire.Path) (*os.File, unix.Stat_t, error) {
	var st unix.Stat_t
	dir, name := split(p)
	fd, err := openDir(dir)
	if err != nil {
		return nil, st, fileError(err)
	}
	defer unix.Close(fd)
	// Opening a device or a FIFO may have effects; look first, and check again
	// what was opened.
	if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, st, fileError(err)
	}
	if err := regular(st); err != nil {
		return nil, st, err
	}
	f, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, st, fileError(err)
	}
	if err := unix.Fstat(f, &st); err != nil {
		_ = unix.Close(f)
		return nil, st, fileError(err)
	}
	if err := regular(st); err != nil {
		_ = unix.Close(f)
		return nil, st, err
	}
	return os.NewFile(uintptr(f), name), st, nil
}

// regular refuses everything else, by what it is.
func regular(st unix.Stat_t) error {
	var what string
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFLNK:
		what = "a symbolic link, which is never followed"
	case unix.S_IFDIR:
		what = "a directory"
	case unix.S_IFIFO:
		what = "a FIFO"
	case unix.S_IFSOCK:
		what = "a socket"
	default:
		what = "a device"
	}
	return workbench.E(workbench.CodePathConflict, "the path is %s, not a regular file", what)
}

// fileError makes a typed error of a system call's.
func fileError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOENT):
		return workbench.E(workbench.CodeNotFound, "no such file in the workspace")
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return workbench.E(workbench.CodePathConflict, "a part of the path is a symbolic link or no directory").
			WithHint("links are never followed: name the real path")
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return workbench.E(workbench.CodeForbidden, "the file's mode does not allow it")
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return workbench.E(workbench.CodeWorkspaceFull, "the workspace is full")
	case errors.Is(err, unix.ENAMETOOLONG):
		return workbench.E(workbench.CodePathInvalid, "the path is too long")
	case errors.Is(err, unix.EEXIST), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENOTEMPTY):
		return workbench.E(workbench.CodePathConflict, "something else is at the path")
	}
	return workbench.E(workbench.CodeInternal, "a file of the workspace could not be used: %v", err).Caused(fmt.Errorf("%w", err))
}
