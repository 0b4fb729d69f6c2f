package image

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
)

// Who runs user code in every sandbox. An image that has no user with this id
// gets one, so that programs which ask for their user's name find it.
const (
	userID    = 1000
	userLine  = "agent:x:1000:1000:agent:/tmp/home:/bin/sh\n"
	groupLine = "agent:x:1000:\n"
)

// guestFile is what a sandbox's driver binds the guest's executable over.
const guestFile = "opt/workbench/bin/guest"

// mountPoint is a folder that drivers or the guest mount over, or that leads to
// one. If any of them were a link, a mount could land elsewhere.
type mountPoint struct {
	path string
	mode fs.FileMode
}

var mountPoints = []mountPoint{
	{".", 0o755},
	{"dev", 0o755},
	{"dev/mqueue", 0o755},
	{"dev/pts", 0o755},
	{"dev/shm", 0o777 | fs.ModeSticky},
	{"etc", 0o755},
	{"mnt", 0o755},
	{"mnt/files", 0o755},
	{"opt", 0o755},
	{"opt/workbench", 0o755},
	{"opt/workbench/bin", 0o755},
	{"opt/workbench/packages", 0o755},
	{"opt/workbench/skel", 0o755},
	{"proc", 0o755},
	{"run", 0o755},
	{"sys", 0o755},
	{"tmp", 0o777 | fs.ModeSticky},
}

// neverLinks are paths that may be missing, or something else than a folder,
// but not a symbolic link: runtimes and this package write or mount there.
var neverLinks = []string{
	"dev/console", "dev/full", "dev/null", "dev/random", "dev/tty", "dev/urandom", "dev/zero",
	"etc/group", "etc/hostname", "etc/hosts", "etc/passwd",
	guestFile,
}

// CheckRoot reports whether a root can be given to a container runtime: what
// will be mounted over must be real folders, whatever is in the image. Error:
// image_invalid.
func CheckRoot(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return diskError("open the image's root", err)
	}
	defer root.Close()
	for _, m := range mountPoints {
		if err := checkMountPoint(root, m.path, true); err != nil {
			return err
		}
	}
	return checkNoLinks(root)
}

func checkMountPoint(root *os.Root, at string, mustExist bool) error {
	st, err := root.Lstat(at)
	if errors.Is(err, fs.ErrNotExist) && !mustExist {
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return invalid("the root has no folder /%s", at).WithHint("import the image again")
	}
	if err != nil {
		return diskError("look at the image's root", err)
	}
	if !st.IsDir() {
		return invalid("/%s in the image is not a real folder", at).
			WithHint("a sandbox mounts there; make it a folder in the image, or leave it out, and import again")
	}
	return nil
}

func checkNoLinks(root *os.Root) error {
	for _, at := range neverLinks {
		st, err := root.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return diskError("look at the image's root", err)
		}
		if st.Mode()&fs.ModeSymlink != 0 {
			return invalid("/%s in the image is a symbolic link", at).
				WithHint("replace it by a file in the image, or leave it out, and import again")
		}
	}
	return nil
}

// prepareRoot makes an unpacked root fit for sandboxes: mount points, the file
// that the guest is bound over, the user, and nothing that describes the
// machine the image was made on. Error: image_invalid.
func prepareRoot(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return diskError("open the new root", err)
	}
	defer root.Close()
	for _, m := range mountPoints {
		if err := checkMountPoint(root, m.path, false); err != nil {
			return err
		}
	}
	if err := checkNoLinks(root); err != nil {
		return err
	}
	if err := makeMountPoints(root); err != nil {
		return diskError("prepare the new root", err)
	}
	if err := describeHost(root); err != nil {
		return diskError("prepare the new root", err)
	}
	if err := addUser(root, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\n", userLine); err != nil {
		return diskError("add the user to the new root", err)
	}
	if err := addUser(root, "etc/group", "root:x:0:\n", groupLine); err != nil {
		return diskError("add the group to the new root", err)
	}
	return CheckRoot(dir)
}

func makeMountPoints(root *os.Root) error {
	// Devices and links to /proc come from the runtime, over /dev.
	if err := root.RemoveAll("dev"); err != nil {
		return err
	}
	for _, m := range mountPoints {
		if err := root.Mkdir(m.path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) && m.path != "." {
			return err
		}
		if err := errors.Join(root.Lchown(m.path, 0, 0), root.Chmod(m.path, m.mode)); err != nil {
			return err
		}
	}
	return replaceFile(root, guestFile, "", 0o755)
}

// describeHost writes the files that name a machine, and removes the ids and
// keys that are one machine's own.
func describeHost(root *os.Root) error {
	keys, err := fs.Glob(root.FS(), "etc/ssh/ssh_host_*")
	if err != nil {
		return err
	}
	for _, at := range append(keys, "etc/machine-id", "etc/resolv.conf") {
		if err := root.RemoveAll(at); err != nil {
			return err
		}
	}
	return errors.Join(
		replaceFile(root, "etc/resolv.conf", "", 0o644), // there is no network
		replaceFile(root, "etc/hostname", "workbench\n", 0o644),
		replaceFile(root, "etc/hosts", "127.0.0.1 localhost\n::1 localhost\n", 0o644),
	)
}

// replaceFile puts a fresh file at a path whose parent is known to be a folder.
func replaceFile(root *os.Root, at, content string, mode fs.FileMode) error {
	if err := root.RemoveAll(at); err != nil {
		return err
	}
	f, err := root.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, content)
	return errors.Join(err, f.Chown(0, 0), f.Chmod(mode), f.Close())
}

// maxAccounts bounds /etc/passwd and /etc/group.
const maxAccounts = 1 << 20

// addUser makes sure that an account file has an entry with id 1000; a missing
// file begins with first. A name that is taken by another id stays as it is.
func addUser(root *os.Root, at, first, line string) error {
	content := first
	if f, err := root.Open(at); err == nil {
		raw, err := io.ReadAll(io.LimitReader(f, maxAccounts+1))
		f.Close()
		if err != nil {
			return err
		}
		if len(raw) > maxAccounts {
			return invalid("/%s in the image is too long", at)
		}
		content = string(raw)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if content != "" && !strings.HasSuffix(content, "\n") {
		content += "\n"
	}
	name, _, _ := strings.Cut(line, ":")
	for entry := range strings.Lines(content) {
		fields := strings.Split(entry, ":")
		if fields[0] == name || (len(fields) > 2 && fields[2] == fmt.Sprint(userID)) {
			return nil
		}
	}
	return replaceFile(root, path.Clean(at), content+line, 0o644)
}
