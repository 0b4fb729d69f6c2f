// Package payload holds the executables that the server carries inside itself
// (the guest and the pinned container runtimes) and writes them to disk when
// they are needed. It runs none of them.
package payload

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"

	"github.com/workbenchdev/workbench"
)

// Name names an embedded executable.
type Name string

// The embedded executables.
const (
	Guest Name = "guest" // the supervisor that runs inside every sandbox
	Runsc Name = "runsc" // gVisor
	Runc  Name = "runc"
)

// Names lists every executable a complete build embeds.
func Names() []Name { return []Name{Guest, Runsc, Runc} }

// Info describes one embedded executable. It is the content of <name>.json.
type Info struct {
	Name    Name   `json:"name"`
	Version string `json:"version"`
	SHA256  string `json:"sha256"` // of the executable, lower-case hex
	Size    int64  `json:"size"`   // of the executable, bytes
}

//go:embed files
var embedded embed.FS

// Set is a folder of packed executables. The server's own is Embedded.
type Set struct{ files fs.FS }

// Embedded is the set inside this executable.
func Embedded() Set {
	sub, err := fs.Sub(embedded, "files")
	if err != nil {
		panic(err) // the folder is compiled in
	}
	return Set{sub}
}

// Open reads a set from a folder that Pack filled.
func Open(files fs.FS) Set { return Set{files} }

// Describe returns the description of an embedded executable, without reading
// it. Error: runtime_unavailable if this server was built without it.
func Describe(name Name) (Info, error) { return Embedded().Describe(name) }

// Version returns the version an embedded executable was built from, "" if
// this server was built without it.
func Version(name Name) string {
	info, err := Describe(name)
	if err != nil {
		return ""
	}
	return info.Version
}

// Extract writes an embedded executable below dir and returns its absolute
// path and SHA-256 digest. See Set.Extract.
func Extract(dir string, name Name) (path, digest string, err error) {
	return Embedded().Extract(dir, name)
}

// Describe returns the description of one executable of the set.
// Error: runtime_unavailable if the set does not hold it.
func (s Set) Describe(name Name) (Info, error) {
	var info Info
	raw, err := fs.ReadFile(s.files, string(name)+".json")
	if errors.Is(err, fs.ErrNotExist) {
		return info, workbench.E(workbench.CodeRuntimeUnavailable, "this build of the server does not contain the %s executable", name).
			WithHint("run make build, which packs it, and start the server from bin/workbench")
	}
	if err != nil {
		return info, fmt.Errorf("payload: read description of %s: %w", name, err)
	}
	if err := json.Unmarshal(raw, &info); err != nil {
		return info, fmt.Errorf("payload: description of %s: %w", name, err)
	}
	return info, nil
}

// Extract makes sure that <dir>/<name>-<digest prefix>/<name> is the
// executable, mode 0755, and returns that path, absolute, with the digest.
//
// It is idempotent and safe for several processes at once: the file is written
// beside its place, synced and renamed. A file that is already there is
// believed only while its size and modification time are those recorded when
// it was last known good; otherwise it is hashed, and replaced if it differs.
// Error: runtime_unavailable if the set does not hold the executable or dir
// cannot be written.
func (s Set) Extract(dir string, name Name) (path, digest string, err error) {
	info, err := s.Describe(name)
	if err != nil {
		return "", "", err
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return "", "", fmt.Errorf("payload: %w", err)
	}
	home := filepath.Join(dir, fmt.Sprintf("%s-%.16s", name, info.SHA256))
	place := filepath.Join(home, string(name))
	if intact(place, info) {
		return place, info.SHA256, nil
	}
	if err := os.MkdirAll(home, 0o755); err != nil {
		return "", "", unwritable(name, err)
	}
	if err := s.write(place, info); err != nil {
		return "", "", unwritable(name, err)
	}
	if err := record(place, info); err != nil {
		return "", "", unwritable(name, err)
	}
	return place, info.SHA256, nil
}

func unwritable(name Name, err error) error {
	return workbench.E(workbench.CodeRuntimeUnavailable, "the %s executable could not be written to the data directory", name).
		WithHint("check that the data directory is writable and that its disk has 150 MB free").Caused(err)
}

// write unpacks the executable to place, atomically, and checks its digest.
func (s Set) write(place string, info Info) error {
	packed, err := fs.ReadFile(s.files, string(info.Name)+".zst")
	if err != nil {
		return err
	}
	z, err := zstd.NewReader(bytes.NewReader(packed), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return err
	}
	defer z.Close()
	f, err := os.CreateTemp(filepath.Dir(place), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone already when all went well
	defer f.Close()
	sum := sha256.New()
	// One byte more than described is enough to see that it is too long.
	n, err := io.Copy(io.MultiWriter(f, sum), io.LimitReader(z, info.Size+1))
	if err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); n != info.Size || got != info.SHA256 {
		return fmt.Errorf("embedded %s does not match its description: %d bytes, sha256 %s", info.Name, n, got)
	}
	if err := errors.Join(f.Chmod(0o755), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), place)
}
