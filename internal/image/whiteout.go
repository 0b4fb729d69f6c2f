package image

import (
	"path"
	"strings"
)

// How an image layer says what it takes away from the layers below (OCI image
// specification, "Whiteouts").
const (
	whiteoutPrefix = ".wh."         // .wh.NAME takes away NAME
	opaqueMark     = ".wh..wh..opq" // takes away all that the folder held
)

// layerRecord is what one layer wrote: whiteouts spare it.
type layerRecord struct {
	written map[string]bool // resolved paths
	holders map[string]bool // folders that hold something written, at any depth
}

func (r *layerRecord) add(at string) {
	if r.written == nil {
		return // no whiteouts, no record
	}
	r.written[at] = true
	for p := path.Dir(at); p != "." && !r.holders[p]; p = path.Dir(p) {
		r.holders[p] = true
	}
}

// whiteout removes what lower layers brought, as the name says; what this
// layer wrote stays.
func (u *unpacker) whiteout(name string, record *layerRecord) error {
	at, err := u.place(name)
	if err != nil {
		return err
	}
	folder, base := path.Split(at)
	folder = path.Clean("./" + folder)
	if base == opaqueMark {
		return u.clearLower(folder, record)
	}
	hidden := strings.TrimPrefix(base, whiteoutPrefix)
	if hidden == "" || hidden == "." || hidden == ".." {
		return invalid("a whiteout names nothing")
	}
	target := path.Join(folder, hidden)
	if !record.written[target] && !record.holders[target] {
		return u.clear(target)
	}
	if st, err := u.root.Lstat(target); err != nil || !st.IsDir() {
		return err
	}
	return u.clearLower(target, record)
}

// clearLower removes everything in a folder that this layer did not write.
func (u *unpacker) clearLower(folder string, record *layerRecord) error {
	f, err := u.root.Open(folder)
	if err != nil {
		return err
	}
	entries, err := f.ReadDir(-1)
	f.Close()
	if err != nil {
		return err
	}
	for _, e := range entries {
		at := path.Join(folder, e.Name())
		switch {
		case !record.written[at] && !record.holders[at]:
			if err := u.clear(at); err != nil {
				return err
			}
		case e.IsDir():
			if err := u.clearLower(at, record); err != nil {
				return err
			}
		}
	}
	return nil
}
