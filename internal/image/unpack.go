package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
)

// The archive is hostile. Every operation goes through an os.Root on the target
// folder, which the kernel's path walk cannot leave, and every parent folder is
// resolved first the way a process with that root would see it: an absolute
// link target begins at the root, ".." stops there. So /etc in an archive that
// also holds the link etc → /etc is the target's own etc, as a container would
// have it, and nothing outside is read or written.

const (
	maxPath     = 4096 // bytes of a name, as the kernel has it
	maxName     = 255  // bytes of one component
	largestID   = 65535
	nobody      = 65534 // owner of what belongs to an id that no sandbox maps
	copyBuffer  = 1 << 20
	sticky      = 0o1000
	setIDs      = 0o6000
	tellEntries = 2000 // entries between two progress reports
)

// unpacker writes archives into one folder.
type unpacker struct {
	root     *os.Root
	limits   Limits
	progress ProgressFunc

	entries int
	bytes   int64
	dropped counts
	folders map[string]folderMeta // resolved path → what it gets when all is written
	buffer  []byte

	// The parent of the last entry, as named and resolved; forgotten when a link
	// or a folder is removed.
	lastParent, lastResolved string
	// The folder that was worked in last, held open: a walk from the root for
	// every call on a deep path costs more than writing a small file.
	near     *os.Root
	nearPath string
}

// counts says what was left out or changed.
type counts struct {
	devices, setIDs, xattrs, owners, others int
}

type folderMeta struct {
	mode    fs.FileMode
	uid     int
	gid     int
	modTime time.Time
}

func newUnpacker(dir string, limits Limits, progress ProgressFunc) (*unpacker, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, diskError("open the new root", err)
	}
	return &unpacker{
		root: root, limits: limits, progress: progress,
		folders: map[string]folderMeta{}, buffer: make([]byte, copyBuffer),
	}, nil
}

func invalid(format string, args ...any) *workbench.Error {
	return workbench.E(workbench.CodeImageInvalid, format, args...)
}

// layer writes one archive over what is there. With whiteouts, names that begin
// with .wh. remove what lower layers brought (OCI image layers); without, they
// are ordinary names. Errors: image_invalid; unavailable for the disk's.
func (u *unpacker) layer(ctx context.Context, r io.Reader, whiteouts bool) error {
	record := &layerRecord{}
	if whiteouts {
		record.written, record.holders = map[string]bool{}, map[string]bool{}
	}
	archive := tar.NewReader(r)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return archiveError(err)
		}
		u.entries++
		if u.entries > u.limits.Entries {
			return invalid("the archive has more than %d entries", u.limits.Entries).
				WithHint("remove what the image does not need")
		}
		if h.Size < 0 || h.Size > u.limits.Bytes-u.bytes {
			return invalid("the image is larger than %d MB", u.limits.Bytes/1e6).
				WithHint("remove what the image does not need")
		}
		u.bytes += h.Size
		if u.entries%tellEntries == 0 {
			u.progress.tell(StageUnpack, fmt.Sprintf("%d files, %d MB", u.entries, u.bytes/1e6))
		}
		name, err := cleanName(h.Name)
		if err != nil {
			return err
		}
		if whiteouts && strings.HasPrefix(path.Base(name), whiteoutPrefix) {
			err = u.whiteout(name, record)
		} else {
			err = u.entry(name, h, archive, record)
		}
		if err != nil {
			return entryError(name, err)
		}
	}
}

// archiveError tells a broken archive from a broken source.
func archiveError(err error) error {
	var coded *workbench.Error
	if errors.As(err, &coded) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return invalid("the archive is damaged or cut short").
		WithHint("make the archive again; it must be a tar file, plain or compressed with gzip or zstd").Caused(err)
}

// entryError names the entry at fault. Names are quoted: they may hold
// anything.
func entryError(name string, err error) error {
	var coded *workbench.Error
	if errors.As(err, &coded) {
		c := *coded
		c.Detail = fmt.Sprintf("%s (entry %.200q)", c.Detail, name)
		return &c
	}
	return diskError(fmt.Sprintf("unpack the entry %.200q", name), err)
}

// cleanName makes a name relative to the root: "." for the root itself. Names
// with "..", NUL or too many bytes are refused rather than reinterpreted.
func cleanName(name string) (string, error) {
	if len(name) > maxPath || strings.ContainsRune(name, 0) {
		return "", invalid("a name in the archive is too long or holds a NUL")
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", invalid("a name in the archive points outside of it: %.200q", name)
		}
		if len(part) > maxName {
			return "", invalid("a name in the archive is too long")
		}
	}
	clean := strings.TrimPrefix(path.Clean("/"+name), "/")
	if clean == "" {
		return ".", nil
	}
	return clean, nil
}

// entry writes one entry of an archive.
func (u *unpacker) entry(name string, h *tar.Header, content io.Reader, record *layerRecord) error {
	u.noteAttributes(h)
	if name == "." {
		if h.Typeflag == tar.TypeDir {
			u.folders["."] = u.meta(h)
		}
		return nil
	}
	at, err := u.place(name)
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse, '\x00': // NUL is the old mark of a regular file
		err = u.file(at, h, content)
	case tar.TypeDir:
		err = u.folder(at, h)
	case tar.TypeSymlink:
		err = u.symlink(at, h)
	case tar.TypeLink:
		err = u.hardlink(at, h)
	case tar.TypeChar, tar.TypeBlock:
		u.dropped.devices++ // a sandbox gets its few devices from its runtime
		return nil
	default:
		u.dropped.others++ // FIFOs and the like
		return nil
	}
	if err == nil {
		record.add(at)
	}
	return err
}

func (u *unpacker) noteAttributes(h *tar.Header) {
	if h.Mode&setIDs != 0 && h.Typeflag != tar.TypeDir {
		u.dropped.setIDs++
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "SCHILY.xattr.") {
			u.dropped.xattrs++
			break
		}
	}
	if h.Uid > largestID || h.Gid > largestID || h.Uid < 0 || h.Gid < 0 {
		u.dropped.owners++
	}
}

// meta is what an entry's header makes of it here: no set-id bits, owners that
// a sandbox can map, times as they are (compiled Python files compare them).
func (u *unpacker) meta(h *tar.Header) folderMeta {
	return folderMeta{
		mode: modeOf(h.Mode), uid: ownerOf(h.Uid), gid: ownerOf(h.Gid), modTime: h.ModTime,
	}
}

// modeOf keeps the permission bits and the sticky bit.
func modeOf(mode int64) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	if mode&sticky != 0 {
		m |= fs.ModeSticky
	}
	return m
}

func ownerOf(id int) int {
	if id < 0 || id > largestID {
		return nobody
	}
	return id
}

// file writes a regular file, in place of whatever was there.
func (u *unpacker) file(at string, h *tar.Header, content io.Reader) error {
	if err := u.clear(at); err != nil {
		return err
	}
	dir, base, err := u.in(at)
	if err != nil {
		return err
	}
	f, err := dir.OpenFile(base, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := io.CopyBuffer(onlyWriter{f}, onlyReader{content}, u.buffer)
	if err != nil {
		return copyError(err)
	}
	if n != h.Size {
		return invalid("the archive is damaged or cut short")
	}
	m := u.meta(h)
	if err := errors.Join(f.Chown(m.uid, m.gid), f.Chmod(m.mode), f.Close()); err != nil {
		return err
	}
	return dir.Chtimes(base, m.modTime, m.modTime)
}

// onlyWriter and onlyReader hide ReadFrom and WriteTo, so that the one buffer
// is used: a sparse entry's WriteTo would seek instead of write.
type onlyWriter struct{ io.Writer }
type onlyReader struct{ io.Reader }

// copyError tells the disk's errors, which have a path, from the archive's.
func copyError(err error) error {
	var ofPath *fs.PathError
	if errors.As(err, &ofPath) {
		return err
	}
	return archiveError(err)
}

// folder makes a folder or changes the one that is there. Its owner, mode and
// time are set at the end, when nothing is written into it any more.
func (u *unpacker) folder(at string, h *tar.Header) error {
	st, err := u.root.Lstat(at)
	if err == nil && !st.IsDir() {
		if err := u.clear(at); err != nil {
			return err
		}
	}
	if err != nil || !st.IsDir() {
		if err := u.root.Mkdir(at, 0o755); err != nil {
			return err
		}
	}
	u.folders[at] = u.meta(h)
	return nil
}

// symlink makes a link. Its target is only text here: where it leads is decided
// inside a sandbox.
func (u *unpacker) symlink(at string, h *tar.Header) error {
	if len(h.Linkname) == 0 || len(h.Linkname) >= maxPath || strings.ContainsRune(h.Linkname, 0) {
		return invalid("a symbolic link has an impossible target")
	}
	if err := u.clear(at); err != nil {
		return err
	}
	dir, base, err := u.in(at)
	if err != nil {
		return err
	}
	if err := dir.Symlink(h.Linkname, base); err != nil {
		return err
	}
	m := u.meta(h)
	return dir.Lchown(base, m.uid, m.gid)
}

// hardlink makes a second name for a file that is already in the root.
func (u *unpacker) hardlink(at string, h *tar.Header) error {
	name, err := cleanName(h.Linkname)
	if err != nil {
		return err
	}
	target, err := u.place(name)
	if err != nil {
		return err
	}
	st, err := u.root.Lstat(target)
	if errors.Is(err, fs.ErrNotExist) {
		return invalid("a hard link names a file that is not in the image")
	}
	if err != nil {
		return err
	}
	if st.IsDir() {
		return invalid("a hard link names a folder")
	}
	if target == at {
		return nil
	}
	if err := u.clear(at); err != nil {
		return err
	}
	return u.root.Link(target, at)
}

// clear removes what is at a resolved path. A folder goes with its content.
func (u *unpacker) clear(at string) error {
	dir, base, err := u.in(at)
	if err != nil {
		return err
	}
	st, err := dir.Lstat(base)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case st.IsDir():
		u.lastParent = ""
		u.leave()
		return u.root.RemoveAll(at)
	case st.Mode()&fs.ModeSymlink != 0:
		u.lastParent = ""
	}
	return dir.Remove(base)
}

// in returns the folder of a resolved path, open, and the path's last name.
func (u *unpacker) in(at string) (*os.Root, string, error) {
	parent, base := path.Split(at)
	parent = path.Clean("./" + parent)
	if u.near != nil && u.nearPath == parent {
		return u.near, base, nil
	}
	u.leave()
	dir, err := u.root.OpenRoot(parent)
	if err != nil {
		return nil, "", err
	}
	u.near, u.nearPath = dir, parent
	return dir, base, nil
}

// leave closes the folder that in holds.
func (u *unpacker) leave() {
	if u.near != nil {
		u.near.Close()
		u.near = nil
	}
}

// place resolves the parent of a name, making missing folders, and returns the
// path to use: no component but the last is a link.
func (u *unpacker) place(name string) (string, error) {
	parent, base := path.Split(name)
	parent = path.Clean("./" + parent)
	if parent == u.lastParent {
		return path.Join(u.lastResolved, base), nil
	}
	resolved, err := resolveIn(u.root, parent+"/.", u.makeFolder)
	if err != nil {
		return "", err
	}
	u.lastParent, u.lastResolved = parent, resolved
	return path.Join(resolved, base), nil
}

// makeFolder makes a folder that no entry describes (yet), whatever the umask.
func (u *unpacker) makeFolder(at string) error {
	return errors.Join(u.root.Mkdir(at, 0o755), u.root.Chmod(at, 0o755))
}

// finish gives the folders their owners, modes and times, and closes the root.
func (u *unpacker) finish() error {
	defer u.root.Close()
	u.leave()
	for at := range u.folders {
		if st, err := u.root.Lstat(at); err != nil || !st.IsDir() {
			delete(u.folders, at) // removed or replaced by a later entry
		}
	}
	for at, m := range u.folders {
		if err := errors.Join(u.root.Lchown(at, m.uid, m.gid), u.root.Chmod(at, m.mode)); err != nil {
			return diskError("set the owner of a folder", err)
		}
	}
	for at, m := range u.folders {
		if err := u.root.Chtimes(at, m.modTime, m.modTime); err != nil && !errors.Is(err, unix.EINVAL) {
			return diskError("set the time of a folder", err)
		}
	}
	return nil
}

// notes says what was left out or changed, for people.
func (c counts) notes() []string {
	notes := []string{}
	add := func(n int, what string) {
		if n > 0 {
			notes = append(notes, fmt.Sprintf("%d %s", n, what))
		}
	}
	add(c.devices, "device nodes left out: a sandbox has its runtime's own")
	add(c.others, "FIFOs or other special entries left out")
	add(c.setIDs, "set-user-id or set-group-id bits removed")
	add(c.xattrs, "entries without their extended attributes (file capabilities among them)")
	add(c.owners, "owners beyond id 65535 changed to nobody")
	return notes
}
