package seal

import (
	"context"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"sync"

	"github.com/workbenchdev/workbench"
)

// Keys is where wrapped tenant keys are kept; store.DB is one. not_found says
// that a key is not there.
type Keys interface {
	TenantKey(ctx context.Context, tenantID string) (keyID string, wrapped []byte, err error)
	// PutTenantKey keeps the key unless the tenant has one, and returns the one
	// that counts.
	PutTenantKey(ctx context.Context, tenantID, keyID string, wrapped []byte) (string, []byte, error)
	TenantKeyByID(ctx context.Context, keyID string) (tenantID string, wrapped []byte, err error)
}

// Sealer seals for tenants. It is safe for concurrent use.
type Sealer struct {
	masters *Masters
	keys    Keys

	mu       sync.RWMutex
	byTenant map[string]*tenantKey // those that seal
	byID     map[[tenantIDSize]byte]*tenantKey
}

const (
	tenantIDSize = 16
	saltSize     = 16
	// maxCached bounds the unwrapped tenant keys held in memory.
	maxCached = 4096
)

// tenantKey is an unwrapped tenant key, as the keys derived from it.
type tenantKey struct {
	tenantID string
	id       [tenantIDSize]byte
	masterID [masterIDSize]byte
	seal     []byte // object keys are derived from it
	content  []byte // content ids are keyed with it
	boundary [32]byte
}

// New makes a sealer. Tenant keys are made at their first use.
func New(masters *Masters, keys Keys) *Sealer {
	return &Sealer{masters: masters, keys: keys, byTenant: map[string]*tenantKey{}, byID: map[[tenantIDSize]byte]*tenantKey{}}
}

// ContentID is the id of contents with this SHA-256 within the tenant: "c_" and
// 64 hex characters. Codes: encryption_key_unavailable, unavailable.
func (s *Sealer) ContentID(ctx context.Context, tenantID string, sum [sha256.Size]byte) (string, error) {
	k, err := s.current(ctx, tenantID)
	if err != nil {
		return "", err
	}
	mac := hmac.New(sha256.New, k.content)
	mac.Write(sum[:])
	return "c_" + hex.EncodeToString(mac.Sum(nil)), nil
}

// BoundaryKey is the tenant's secret for where its contents are cut into chunks.
// Codes: encryption_key_unavailable, unavailable.
func (s *Sealer) BoundaryKey(ctx context.Context, tenantID string) ([32]byte, error) {
	k, err := s.current(ctx, tenantID)
	if err != nil {
		return [32]byte{}, err
	}
	return k.boundary, nil
}

// current is the key that seals for the tenant; it is made if there is none.
func (s *Sealer) current(ctx context.Context, tenantID string) (*tenantKey, error) {
	s.mu.RLock()
	k := s.byTenant[tenantID]
	s.mu.RUnlock()
	if k != nil {
		return k, nil
	}
	if tenantID == "" {
		return nil, workbench.E(workbench.CodeInternal, "nothing is sealed for no tenant")
	}
	keyID, wrapped, err := s.keys.TenantKey(ctx, tenantID)
	if workbench.HasCode(err, workbench.CodeNotFound) {
		keyID, wrapped, err = s.offer(ctx, tenantID)
	}
	if err != nil {
		return nil, err
	}
	return s.unwrap(tenantID, keyID, wrapped, true)
}

// offer makes a key for the tenant; of several servers the first wins.
func (s *Sealer) offer(ctx context.Context, tenantID string) (keyID string, wrapped []byte, err error) {
	random := make([]byte, tenantIDSize+keySize)
	_, _ = rand.Read(random) // never fails
	keyID = keyName([tenantIDSize]byte(random))
	return s.keys.PutTenantKey(ctx, tenantID, keyID, s.masters.wrap(tenantID, keyID, random[tenantIDSize:]))
}

// named is the key that a sealed thing names. It must be the tenant's.
func (s *Sealer) named(ctx context.Context, tenantID string, id [tenantIDSize]byte) (*tenantKey, error) {
	s.mu.RLock()
	k := s.byID[id]
	s.mu.RUnlock()
	if k == nil {
		owner, wrapped, err := s.keys.TenantKeyByID(ctx, keyName(id))
		if workbench.HasCode(err, workbench.CodeNotFound) {
			return nil, keyUnavailable("tenant", keyName(id)).WithHint("it was deleted, or the database is older than the contents").Caused(err)
		}
		if err != nil {
			return nil, err
		}
		if k, err = s.unwrap(owner, keyName(id), wrapped, false); err != nil {
			return nil, err
		}
	}
	if k.tenantID != tenantID {
		return nil, corrupt("the content belongs to another tenant", nil)
	}
	return k, nil
}

func (s *Sealer) unwrap(tenantID, keyID string, wrapped []byte, current bool) (*tenantKey, error) {
	id, ok := parseKeyName(keyID)
	if !ok {
		return nil, corrupt("the tenant's key is damaged", nil)
	}
	key, masterID, err := s.masters.unwrap(tenantID, keyID, wrapped)
	if err != nil {
		return nil, err
	}
	defer clear(key)
	k := &tenantKey{tenantID: tenantID, id: id, masterID: masterID}
	if k.seal, err = hkdf.Key(sha256.New, key, nil, "workbench seal key v1", keySize); err != nil {
		return nil, err
	}
	if k.content, err = hkdf.Key(sha256.New, key, nil, "workbench content id key v1", keySize); err != nil {
		return nil, err
	}
	boundary, err := hkdf.Key(sha256.New, key, nil, "workbench chunk boundary key v1", keySize)
	if err != nil {
		return nil, err
	}
	k.boundary = [32]byte(boundary)
	s.mu.Lock()
	defer s.mu.Unlock()
	if have := s.byID[id]; have != nil {
		k = have
	} else if len(s.byID) >= maxCached {
		for _, old := range s.byID { // any one will do: a miss costs one query
			s.forget(old)
			break
		}
	}
	s.byID[id] = k
	if current {
		s.byTenant[tenantID] = k
	}
	return k, nil
}

// Forget drops the tenant's keys from memory: after they were deleted or
// wrapped anew.
func (s *Sealer) Forget(tenantID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.byID {
		if k.tenantID == tenantID {
			s.forget(k)
		}
	}
}

func (s *Sealer) forget(k *tenantKey) {
	delete(s.byID, k.id)
	if s.byTenant[k.tenantID] == k {
		delete(s.byTenant, k.tenantID)
	}
}

const keyPrefix = "tky_"

func keyName(id [tenantIDSize]byte) string { return keyPrefix + hex.EncodeToString(id[:]) }

func parseKeyName(name string) (id [tenantIDSize]byte, ok bool) {
	if len(name) != len(keyPrefix)+2*tenantIDSize || name[:len(keyPrefix)] != keyPrefix {
		return id, false
	}
	_, err := hex.Decode(id[:], []byte(name[len(keyPrefix):]))
	return id, err == nil
}

// contextOf encodes what a sealed thing is bound to, each part with its length,
// so that no two contexts are equal.
func contextOf(purpose string, version byte, parts ...string) []byte {
	n := len(purpose) + 2
	for _, p := range parts {
		n += 4 + len(p)
	}
	out := make([]byte, 0, n)
	out = append(out, purpose...)
	out = append(out, 0, version)
	for _, p := range parts {
		out = binary.BigEndian.AppendUint32(out, uint32(len(p)))
		out = append(out, p...)
	}
	return out
}
