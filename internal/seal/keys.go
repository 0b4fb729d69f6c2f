// Package seal is the encryption of everything Workbench keeps: keys and
// formats, strictly above dumb storage.
//
// A master key wraps one key per tenant; from that come a data key for each
// object and an id key. Every sealed thing is bound to its format version,
// tenant, kind and place, so nothing can be moved, swapped, cut or joined
// without being noticed: reading such a thing is content_corrupt. A master key
// that is not there is encryption_key_unavailable.
package seal

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/workbenchdev/workbench"
)

const (
	keyBytes   = 32
	nonceBytes = 12
	// MasterFile is the name of the master key in a data directory.
	MasterFile = "master.key"
	// maxTenants bounds the unwrapped tenant keys held in memory.
	maxTenants = 10_000
)

// Master is a master key. Its id is a hash of it.
type Master struct {
	ID  string
	key []byte
}

// NewMaster makes a Master of 32 bytes.
func NewMaster(key []byte) (Master, error) {
	if len(key) != keyBytes {
		return Master{}, workbench.E(workbench.CodeKeyUnavailable, "a master key has 32 bytes, this one has %d", len(key)).
			WithHint("make one with: head -c 32 /dev/urandom | base64")
	}
	sum := sha256.Sum256(append([]byte("workbench master key id\x00"), key...))
	return Master{ID: "mk_" + hex.EncodeToString(sum[:8]), key: bytes.Clone(key)}, nil
}

// LoadMasters finds the master keys: the environment variable
// WORKBENCH_MASTER_KEY (base64; several separated by commas), else the file
// given, else master.key in the data directory, which is made if nothing is
// there. A file holds one base64 key a line. The first key seals; all open.
// Code: encryption_key_unavailable.
func LoadMasters(dataDir, file string) ([]Master, error) {
	if env := os.Getenv("WORKBENCH_MASTER_KEY"); env != "" {
		return parseMasters(strings.Split(env, ","))
	}
	made := file == ""
	if made {
		file = filepath.Join(dataDir, MasterFile)
	}
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) && made {
		return makeMaster(dataDir, file)
	}
	if err != nil {
		return nil, workbench.E(workbench.CodeKeyUnavailable, "the master key file cannot be read").Caused(err)
	}
	info, err := os.Stat(file)
	if err != nil {
		return nil, workbench.E(workbench.CodeKeyUnavailable, "the master key file cannot be read").Caused(err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, workbench.E(workbench.CodeKeyUnavailable, "the master key file %s can be read by others", file).
			WithHint("chmod 600 %s", file)
	}
	return parseMasters(strings.Split(string(raw), "\n"))
}

func parseMasters(lines []string) ([]Master, error) {
	var masters []Master
	for _, line := range lines {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(line)
		if err != nil {
			return nil, workbench.E(workbench.CodeKeyUnavailable, "a master key is not base64")
		}
		m, err := NewMaster(key)
		if err != nil {
			return nil, err
		}
		masters = append(masters, m)
	}
	if len(masters) == 0 {
		return nil, workbench.E(workbench.CodeKeyUnavailable, "there is no master key").
			WithHint("make one with: head -c 32 /dev/urandom | base64")
	}
	return masters, nil
}

// makeMaster makes the key of a new data directory. A directory that already
// has blobs has lost its key: a new one would hide that.
func makeMaster(dataDir, file string) ([]Master, error) {
	if _, err := os.Stat(filepath.Join(dataDir, "blobs")); err == nil {
		return nil, workbench.E(workbench.CodeKeyUnavailable, "the data directory has contents but no master key").
			WithHint("restore %s from a backup, or give the key in WORKBENCH_MASTER_KEY", MasterFile)
	}
	key := make([]byte, keyBytes)
	if _, err := rand.Read(key); err != nil {
		return nil, err
	}
	content := "# The master key of this data directory. Without it nothing here can be read. Keep a copy elsewhere.\n" +
		base64.StdEncoding.EncodeToString(key) + "\n"
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, workbench.E(workbench.CodeKeyUnavailable, "the master key cannot be written").Caused(err)
	}
	_, err = f.WriteString(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, workbench.E(workbench.CodeKeyUnavailable, "the master key cannot be written").Caused(err)
	}
	m, err := NewMaster(key)
	return []Master{m}, err
}

// KeyStore keeps wrapped tenant keys: the database.
type KeyStore interface {
	// TenantKey returns the tenant's newest key, not_found if it has none.
	TenantKey(ctx context.Context, tenantID string) (keyID string, wrapped []byte, err error)
	// PutTenantKey stores a first key; the first writer wins, and what won is
	// returned.
	PutTenantKey(ctx context.Context, tenantID, keyID string, wrapped []byte) (string, []byte, error)
	// TenantKeyByID finds a key by its id.
	TenantKeyByID(ctx context.Context, keyID string) (tenantID string, wrapped []byte, err error)
}

// Sealer seals and opens. Its methods may be called at the same time.
type Sealer struct {
	masters []Master
	store   KeyStore

	mu       sync.Mutex
	byTenant map[string]*tenantKey
	byID     map[string]*tenantKey
}

// tenantKey is an unwrapped key and what is derived from it.
type tenantKey struct {
	id     string
	tenant string
	wrap   cipher.AEAD // wraps data keys, and seals small values
	names  []byte      // keys the content ids
}

// New makes a Sealer; masters are as LoadMasters returns them.
func New(masters []Master, store KeyStore) *Sealer {
	return &Sealer{masters: masters, store: store, byTenant: map[string]*tenantKey{}, byID: map[string]*tenantKey{}}
}

// ofTenant returns the key that seals for a tenant, making it at first use.
func (s *Sealer) ofTenant(ctx context.Context, tenantID string) (*tenantKey, error) {
	s.mu.Lock()
	k := s.byTenant[tenantID]
	s.mu.Unlock()
	if k != nil {
		return k, nil
	}
	id, wrapped, err := s.store.TenantKey(ctx, tenantID)
	if workbench.HasCode(err, workbench.CodeNotFound) {
		id, wrapped, err = s.newTenantKey(ctx, tenantID)
	}
	if err != nil {
		return nil, err
	}
	return s.remember(tenantID, id, wrapped, true)
}

func (s *Sealer) newTenantKey(ctx context.Context, tenantID string) (string, []byte, error) {
	key := make([]byte, keyBytes)
	if _, err := rand.Read(key); err != nil {
		return "", nil, err
	}
	id := "tk_" + strings.ToLower(rand.Text()[:16])
	aead, err := newAEAD(s.masters[0].key)
	if err != nil {
		return "", nil, err
	}
	wrapped := append([]byte(s.masters[0].ID+"\x00"), sealWith(aead, key, tenantContext(tenantID, id))...)
	return s.store.PutTenantKey(ctx, tenantID, id, wrapped)
}

// ofID returns the key something was sealed with.
func (s *Sealer) ofID(ctx context.Context, tenantID, keyID string) (*tenantKey, error) {
	s.mu.Lock()
	k := s.byID[keyID]
	s.mu.Unlock()
	if k == nil {
		owner, wrapped, err := s.store.TenantKeyByID(ctx, keyID)
		if workbench.HasCode(err, workbench.CodeNotFound) {
			return nil, workbench.E(workbench.CodeKeyUnavailable, "the tenant key %s is not known", keyID)
		}
		if err != nil {
			return nil, err
		}
		if k, err = s.remember(owner, keyID, wrapped, false); err != nil {
			return nil, err
		}
	}
	if k.tenant != tenantID {
		return nil, corrupt("it was sealed for another tenant")
	}
	return k, nil
}

func (s *Sealer) remember(tenantID, keyID string, wrapped []byte, newest bool) (*tenantKey, error) {
	k, err := s.unwrap(tenantID, keyID, wrapped)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.byID) >= maxTenants {
		clear(s.byID)
		clear(s.byTenant)
	}
	s.byID[keyID] = k
	if newest {
		s.byTenant[tenantID] = k
	}
	return k, nil
}

func (s *Sealer) unwrap(tenantID, keyID string, wrapped []byte) (*tenantKey, error) {
	masterID, sealed, ok := bytes.Cut(wrapped, []byte{0})
	if !ok {
		return nil, corrupt("a tenant key is damaged")
	}
	for _, m := range s.masters {
		if m.ID != string(masterID) {
			continue
		}
		aead, err := newAEAD(m.key)
		if err != nil {
			return nil, err
		}
		key, err := openWith(aead, sealed, tenantContext(tenantID, keyID))
		if err != nil {
			return nil, corrupt("a tenant key is damaged")
		}
		return deriveTenant(tenantID, keyID, key)
	}
	return nil, workbench.E(workbench.CodeKeyUnavailable, "the master key %s is not configured", masterID).
		WithHint("give it to the server besides the new one: one key a line in the master key file")
}

func deriveTenant(tenantID, keyID string, key []byte) (*tenantKey, error) {
	wrapKey, err := hkdf.Key(sha256.New, key, nil, "workbench wrap v1", keyBytes)
	if err != nil {
		return nil, err
	}
	names, err := hkdf.Key(sha256.New, key, nil, "workbench content ids v1", keyBytes)
	if err != nil {
		return nil, err
	}
	wrap, err := newAEAD(wrapKey)
	if err != nil {
		return nil, err
	}
	return &tenantKey{id: keyID, tenant: tenantID, wrap: wrap, names: names}, nil
}

// ContentID names contents by their SHA-256, keyed per tenant: equal bytes in
// two tenants have unlike ids. kind separates what must not share a blob.
func (s *Sealer) ContentID(ctx context.Context, tenantID, kind string, sum [sha256.Size]byte) (string, error) {
	k, err := s.ofTenant(ctx, tenantID)
	if err != nil {
		return "", err
	}
	mac := hmac.New(sha256.New, k.names)
	mac.Write([]byte(kind + "\x00"))
	mac.Write(sum[:])
	return kind + "-" + hex.EncodeToString(mac.Sum(nil)), nil
}

func tenantContext(tenantID, keyID string) []byte {
	return []byte("workbench tenant key v1\x00" + tenantID + "\x00" + keyID)
}

func newAEAD(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// sealWith returns nonce and ciphertext, the nonce random.
func sealWith(aead cipher.AEAD, plain, context []byte) []byte {
	out := make([]byte, nonceBytes, nonceBytes+len(plain)+aead.Overhead())
	rand.Read(out) //nolint:errcheck // crypto/rand.Read never fails: it ends the process
	return aead.Seal(out, out, plain, context)
}

func openWith(aead cipher.AEAD, sealed, context []byte) ([]byte, error) {
	if len(sealed) < nonceBytes+aead.Overhead() {
		return nil, errors.New("too short")
	}
	return aead.Open(nil, sealed[:nonceBytes], sealed[nonceBytes:], context)
}

func corrupt(why string) error {
	return workbench.E(workbench.CodeCorrupt, "stored content cannot be used: %s", why).
		WithHint("restore it from a backup")
}
