package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox"
)

// mountTargets are the places in an image's root that something is mounted
// on. Each must be a directory of the root itself: a runtime that prepares a
// root through a planted link mounts, or masks, the wrong thing
// (CVE-2025-31133 and kin).
var mountTargets = []string{
	"dev", "proc", "run", "tmp", "mnt", "mnt/files",
	"opt", "opt/workbench", "opt/workbench/bin", "opt/workbench/packages",
}

// neverLinks may be missing from a root, but not be links in it.
var neverLinks = []string{
	"sys", "etc", "dev/shm", "dev/pts", "dev/mqueue", "dev/null", "dev/zero", "dev/full",
	"dev/random", "dev/urandom", "dev/tty", "dev/console",
}

// usableImage refuses an image whose root a runtime must not be given, and
// resolves links above it, which runtimes refuse. Roots belong to the server's
// user, so nothing changes between check and use.
func usableImage(img sandbox.Image) (sandbox.Image, error) {
	err := checkImage(img)
	if err == nil {
		img.Rootfs, err = filepath.EvalSymlinks(img.Rootfs)
	}
	if err == nil && img.Erofs != "" {
		img.Erofs, err = filepath.EvalSymlinks(img.Erofs)
	}
	if err != nil {
		return img, workbench.E(workbench.CodeImageInvalid, "the image's root file system cannot be used").
			WithHint("build or import the image again").Caused(err)
	}
	return img, nil
}

func checkImage(img sandbox.Image) error {
	if !filepath.IsAbs(img.Rootfs) || (img.Erofs != "" && !filepath.IsAbs(img.Erofs)) {
		return fmt.Errorf("image paths are not absolute: %q, %q", img.Rootfs, img.Erofs)
	}
	if err := ownDirectory(img.Rootfs); err != nil {
		return err
	}
	for _, name := range mountTargets {
		info, err := os.Lstat(filepath.Join(img.Rootfs, name))
		if err != nil {
			return fmt.Errorf("/%s is missing from the root: %w", name, err)
		}
		if !info.IsDir() {
			return fmt.Errorf("/%s is not a directory in the root but %s", name, info.Mode().Type())
		}
	}
	for _, name := range neverLinks {
		info, err := os.Lstat(filepath.Join(img.Rootfs, name))
		if err == nil && info.Mode().Type() == fs.ModeSymlink {
			return fmt.Errorf("/%s is a symbolic link in the root", name)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if img.Erofs != "" {
		info, err := os.Lstat(img.Erofs)
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is not a regular file", img.Erofs)
		}
	}
	return nil
}

// ownDirectory refuses a root that someone else could change.
func ownDirectory(path string) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return fmt.Errorf("%s is not a directory", path)
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s may be changed by others (owner %d, mode %o)", path, st.Uid, st.Mode&0o7777)
	}
	return nil
}

// checkReachable refuses a path that an unprivileged user could not walk to,
// such as the one that runc prepares a root as.
func checkReachable(path string) error {
	for dir := path; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o001 == 0 {
			return workbench.E(workbench.CodeRuntimeUnavailable, "a directory is closed to the user that sandboxes run as").
				WithHint("every directory above an image needs search permission for others: chmod o+x").
				Caused(fmt.Errorf("%s has mode %o", dir, info.Mode().Perm()))
		}
		if dir == "/" {
			return nil
		}
	}
}
