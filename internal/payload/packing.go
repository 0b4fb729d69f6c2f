package payload

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
)

// Pack compresses the executable at path into dir, as Extract reads it, and
// returns its description. The description is written last, so that an
// interrupted Pack is not taken for a finished one.
func Pack(dir string, name Name, version, path string) (Info, error) {
	digest, err := digestOf(path)
	if err != nil {
		return Info{}, err
	}
	in, err := os.Open(path)
	if err != nil {
		return Info{}, err
	}
	defer in.Close()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Info{}, err
	}
	describe := filepath.Join(dir, string(name)+".json")
	if err := os.Remove(describe); err != nil && !os.IsNotExist(err) {
		return Info{}, err
	}
	out, err := os.Create(filepath.Join(dir, string(name)+".zst"))
	if err != nil {
		return Info{}, err
	}
	defer out.Close()
	z, err := zstd.NewWriter(out, zstd.WithEncoderLevel(zstd.SpeedBetterCompression))
	if err != nil {
		return Info{}, err
	}
	n, err := io.Copy(z, in)
	if err != nil {
		return Info{}, fmt.Errorf("payload: pack %s: %w", name, err)
	}
	if err := z.Close(); err != nil {
		return Info{}, fmt.Errorf("payload: pack %s: %w", name, err)
	}
	if err := out.Close(); err != nil {
		return Info{}, err
	}
	info := Info{Name: name, Version: version, SHA256: digest, Size: n}
	raw, err := json.MarshalIndent(info, "", "  ")
	if err != nil {
		return Info{}, err
	}
	return info, os.WriteFile(describe, append(raw, '\n'), 0o644)
}
