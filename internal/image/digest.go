package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sync/errgroup"
)

// RootDigest is what DigestRoot found.
type RootDigest struct {
	Hex     string // SHA-256, 64 digits
	Entries int
	Bytes   int64 // of regular files
}

// digestFormat begins what is hashed; it changes with the format.
const digestFormat = "workbench root 1\n"

// entryRecord is one line of what is hashed.
type entryRecord struct {
	path    string // relative, with slashes
	kind    byte   // d, f, l
	mode    fs.FileMode
	uid     uint32
	gid     uint32
	size    int64
	content string // SHA-256 of a file, hex; the target of a link
}

// DigestRoot hashes a root file system: for every entry, in the order of a walk
// that visits names sorted by bytes, its path, kind, permission bits, owners,
// size and content or link target. Times and extended attributes are not part
// of it, nor is whether two names share one file. Error: image_invalid if it
// holds something else than folders, files and links.
func DigestRoot(ctx context.Context, root string) (RootDigest, error) {
	var records []*entryRecord
	hashing, ctx := errgroup.WithContext(ctx)
	hashing.SetLimit(max(2, runtime.GOMAXPROCS(0)))
	walkErr := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		rec, err := describeEntry(root, path)
		if err != nil {
			return err
		}
		records = append(records, rec)
		if rec.kind == 'f' {
			hashing.Go(func() (err error) {
				rec.content, err = hashFile(path)
				return err
			})
		}
		return nil
	})
	if err := hashing.Wait(); err != nil {
		return RootDigest{}, diskError("read the image's files", err)
	}
	if walkErr != nil {
		return RootDigest{}, diskError("read the image's files", walkErr)
	}
	d := RootDigest{Entries: len(records)}
	sum := sha256.New()
	sum.Write([]byte(digestFormat))
	for _, r := range records {
		sum.Write(fmt.Appendf(nil, "%c %04o %d %d %d %q %q\n", r.kind, r.mode, r.uid, r.gid, r.size, r.path, r.content))
		d.Bytes += r.size
	}
	d.Hex = hex.EncodeToString(sum.Sum(nil))
	return d, nil
}

func describeEntry(root, path string) (*entryRecord, error) {
	st, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	rel, err := filepath.Rel(root, path)
	if err != nil {
		return nil, err
	}
	owner := st.Sys().(*syscall.Stat_t)
	rec := &entryRecord{path: filepath.ToSlash(rel), uid: owner.Uid, gid: owner.Gid, mode: st.Mode().Perm()}
	for bit, value := range map[fs.FileMode]fs.FileMode{fs.ModeSticky: 0o1000, fs.ModeSetgid: 0o2000, fs.ModeSetuid: 0o4000} {
		if st.Mode()&bit != 0 {
			rec.mode |= value
		}
	}
	switch {
	case st.IsDir():
		rec.kind = 'd'
	case st.Mode().IsRegular():
		rec.kind, rec.size = 'f', st.Size()
	case st.Mode()&fs.ModeSymlink != 0:
		rec.kind, rec.mode = 'l', 0
		if rec.content, err = os.Readlink(path); err != nil {
			return nil, err
		}
	default:
		return nil, invalid("the root holds something that is neither a file, a folder nor a link: %.200q", rel)
	}
	return rec, nil
}

func hashFile(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
