package seal

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/workbenchdev/workbench"
)

// Names in the environment.
const (
	// EnvMasterKey holds master keys themselves, base64 of 32 bytes each,
	// separated by commas or white space.
	EnvMasterKey = "WORKBENCH_MASTER_KEY"
	// EnvMasterKeyFile names a file of master keys.
	EnvMasterKeyFile = "WORKBENCH_MASTER_KEY_FILE"
)

// Names in the data directory.
const (
	keyFileName = "master.key" // made when no key is given
	idFileName  = "master.id"  // id of the master that sealed here last

	maxKeyFile = 64 << 10
)

// LoadMasters finds the master keys of a data directory: in the environment
// variable WORKBENCH_MASTER_KEY; else in file, or the file that
// WORKBENCH_MASTER_KEY_FILE names; else in master.key of the directory, which
// is made at the first start (Notice then tells). A key file has one key a
// line, base64, the sealing one first; lines that begin with # are comments.
// Nobody but its owner may have access to it.
//
// It remembers in the directory which master sealed there, and does not go on
// if that one is missing: a new key would only hide that the old one is lost.
//
// Codes: encryption_key_unavailable, unavailable.
func LoadMasters(dataDir, file string) (*Masters, error) {
	last, err := lastMaster(dataDir)
	if err != nil {
		return nil, err
	}
	m, err := findMasters(dataDir, file, last)
	if err != nil {
		return nil, err
	}
	if _, has := m.find(last); last != "" && !has {
		return nil, keyUnavailable("master", last).
			WithHint("this data directory was sealed with another master key than those given; give that one too, after the new one")
	}
	if id := m.ID(); id != last {
		if err := writeDurably(filepath.Join(dataDir, idFileName), []byte(id+"\n")); err != nil {
			return nil, workbench.E(workbench.CodeUnavailable, "the data directory cannot be written").Caused(err)
		}
	}
	return m, nil
}

func findMasters(dataDir, file, last string) (*Masters, error) {
	if value := os.Getenv(EnvMasterKey); value != "" {
		return parseMasters(value)
	}
	if file == "" {
		file = os.Getenv(EnvMasterKeyFile)
	}
	own := file == ""
	if own {
		file = filepath.Join(dataDir, keyFileName)
	}
	m, err := readMasters(file)
	if err == nil || !own || !errors.Is(err, fs.ErrNotExist) {
		return m, err
	}
	if last != "" {
		return nil, keyUnavailable("master", last).Caused(err).
			WithHint("restore %s from its backup, or give the key with %s; without it what was sealed cannot be read", file, EnvMasterKeyFile)
	}
	return makeMaster(file)
}

// readMasters reads a key file. Whoever may read it can read everything, so
// the mode of the opened file is checked.
func readMasters(file string) (*Masters, error) {
	unreadable := workbench.E(workbench.CodeKeyUnavailable, "the master key file %s cannot be read", file)
	f, err := os.Open(file)
	if err != nil {
		return nil, unreadable.Caused(err)
	}
	defer func() { _ = f.Close() }() // only read
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, unreadable.Caused(err)
	case !info.Mode().IsRegular() || info.Size() > maxKeyFile:
		return nil, workbench.E(workbench.CodeKeyUnavailable, "the master key file %s is not a small regular file", file)
	case info.Mode().Perm()&0o077 != 0:
		return nil, workbench.E(workbench.CodeKeyUnavailable, "the master key file %s is open to others (mode %04o)", file, info.Mode().Perm()).
			WithHint("chmod 600 %s", file)
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	if err != nil {
		return nil, unreadable.Caused(err)
	}
	return parseMasters(string(raw))
}

func parseMasters(text string) (*Masters, error) {
	var keys [][]byte
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		for _, word := range strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(", \t\r\n", r) }) {
			key, err := base64.StdEncoding.DecodeString(word)
			if err != nil {
				key, err = base64.RawURLEncoding.DecodeString(strings.TrimRight(word, "="))
			}
			if err != nil {
				return nil, badMaster()
			}
			keys = append(keys, key)
		}
	}
	return NewMasters(keys...)
}

// makeMaster makes the data directory's own key at its first start.
func makeMaster(file string) (*Masters, error) {
	key := make([]byte, keySize)
	_, _ = rand.Read(key) // never fails
	m, err := NewMasters(key)
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf(`# Workbench master key %s.
# Whoever has it can read everything this server has sealed; without it nobody
# can. Keep a copy, apart from backups of the data directory.
%s
`, m.ID(), base64.StdEncoding.EncodeToString(key))
	if err := writeDurably(file, []byte(text)); err != nil {
		return nil, workbench.E(workbench.CodeKeyUnavailable, "no master key was given and none can be made in %s", file).
			WithHint("make the directory writable, or give a key with %s", EnvMasterKeyFile).Caused(err)
	}
	m.notice = fmt.Sprintf("made a new master key (id %s) in %s; keep a copy apart from backups: without it what is sealed cannot be read", m.ID(), file)
	return m, nil
}

func lastMaster(dataDir string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(dataDir, idFileName))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	id := strings.TrimSpace(string(raw))
	if b, bad := hex.DecodeString(id); err == nil && (bad != nil || len(b) != masterIDSize) {
		err = errors.New("not a key id")
	}
	if err != nil {
		return "", workbench.E(workbench.CodeKeyUnavailable, "%s of the data directory cannot be read", idFileName).
			WithHint("restore it from a backup, or remove it if you are sure which master key the directory was sealed with").Caused(err)
	}
	return id, nil
}

// writeDurably makes or replaces a file that only its owner can read, in one
// step.
func writeDurably(file string, content []byte) error {
	tmp := file + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(0o600), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, file); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
