package payload

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
)

// stamp records what a file looked like when its digest was last known.
type stamp struct {
	SHA256    string `json:"sha256"`
	Size      int64  `json:"size"`
	ModTimeNs int64  `json:"modTimeNs"`
}

func stampPath(place string) string { return place + ".stamp.json" }

// intact reports whether the file at place is the described executable. The
// whole file is read only if it was touched since the stamp was written.
func intact(place string, info Info) bool {
	st, err := os.Lstat(place)
	if err != nil || !st.Mode().IsRegular() || st.Size() != info.Size || st.Mode().Perm() != 0o755 {
		return false
	}
	if raw, err := os.ReadFile(stampPath(place)); err == nil {
		var s stamp
		if json.Unmarshal(raw, &s) == nil &&
			s == (stamp{info.SHA256, st.Size(), st.ModTime().UnixNano()}) {
			return true
		}
	}
	digest, err := digestOf(place)
	if err != nil || digest != info.SHA256 {
		return false
	}
	_ = record(place, info) // without it the next call hashes again, no more
	return true
}

// record writes the stamp of a file that is known to be good.
func record(place string, info Info) error {
	st, err := os.Stat(place)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(stamp{info.SHA256, st.Size(), st.ModTime().UnixNano()})
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(place), ".stamp-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	if _, err := tmp.Write(raw); err != nil {
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), stampPath(place))
}

func digestOf(path string) (string, error) {
	f, err := os.Open(path)
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
