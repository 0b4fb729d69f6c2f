package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"

	"github.com/workbenchdev/workbench"
)

const (
	keySize      = 32
	masterIDSize = 8
	maxMasters   = 32
)

// Masters are the master keys a server was given. The first wraps new tenant
// keys; all of them open.
type Masters struct {
	keys   []master
	notice string
}

type master struct {
	id   [masterIDSize]byte
	aead cipher.AEAD
}

// NewMasters makes masters of keys of 32 bytes each, the sealing one first.
// Code: encryption_key_unavailable.
func NewMasters(keys ...[]byte) (*Masters, error) {
	if len(keys) == 0 || len(keys) > maxMasters {
		return nil, workbench.E(workbench.CodeKeyUnavailable, "1 to %d master keys are needed, %d were given", maxMasters, len(keys)).
			WithHint(makeHint)
	}
	m := &Masters{}
	for _, key := range keys {
		if len(key) != keySize {
			return nil, badMaster()
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, err
		}
		aead, err := cipher.NewGCM(block)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(append([]byte("workbench master key id v1\x00"), key...))
		m.keys = append(m.keys, master{id: [masterIDSize]byte(sum[:]), aead: aead})
	}
	return m, nil
}

const makeHint = "make one with: head -c 32 /dev/urandom | base64"

// badMaster does not repeat what was given.
func badMaster() *workbench.Error {
	return workbench.E(workbench.CodeKeyUnavailable, "a master key is not 32 bytes in base64").WithHint(makeHint)
}

// Notice is a sentence for the operator when a key was made, else "".
func (m *Masters) Notice() string { return m.notice }

// ID is the id of the sealing master: 16 hex characters.
func (m *Masters) ID() string { return hex.EncodeToString(m.keys[0].id[:]) }

// IDs are the ids of all masters, the sealing one first.
func (m *Masters) IDs() []string {
	ids := make([]string, len(m.keys))
	for i, k := range m.keys {
		ids[i] = hex.EncodeToString(k.id[:])
	}
	return ids
}

func (m *Masters) find(id string) (master, bool) {
	for _, k := range m.keys {
		if hex.EncodeToString(k.id[:]) == id {
			return k, true
		}
	}
	return master{}, false
}

// A wrapped tenant key is
//
//	0   1   version, 1
//	1   8   id of the master key
//	9   12  random nonce
//	21  48  AES-256-GCM of the key; associated data: version, tenant, tenant key id
const (
	wrapHeader  = 1 + masterIDSize
	wrapNonce   = 12
	wrappedSize = wrapHeader + wrapNonce + keySize + 16
)

func (m *Masters) wrap(tenantID, keyID string, key []byte) []byte {
	k := m.keys[0]
	out := make([]byte, wrapHeader+wrapNonce, wrappedSize)
	out[0] = 1
	copy(out[1:], k.id[:])
	nonce := out[wrapHeader:]
	_, _ = rand.Read(nonce) // never fails
	return k.aead.Seal(out, nonce, key, wrapContext(tenantID, keyID))
}

func (m *Masters) unwrap(tenantID, keyID string, wrapped []byte) (key []byte, masterID [masterIDSize]byte, err error) {
	if len(wrapped) != wrappedSize || wrapped[0] != 1 {
		return nil, masterID, corrupt("the tenant's key is damaged", nil)
	}
	masterID = [masterIDSize]byte(wrapped[1:])
	id := hex.EncodeToString(masterID[:])
	k, ok := m.find(id)
	if !ok {
		return nil, masterID, keyUnavailable("master", id).
			WithHint("start the server with that master key as well, after the one it has")
	}
	key, err = k.aead.Open(nil, wrapped[wrapHeader:wrapHeader+wrapNonce], wrapped[wrapHeader+wrapNonce:], wrapContext(tenantID, keyID))
	if err != nil {
		return nil, masterID, corrupt("the tenant's key is damaged", err)
	}
	return key, masterID, nil
}

func wrapContext(tenantID, keyID string) []byte {
	return contextOf("workbench tenant key", 1, tenantID, keyID)
}

func keyUnavailable(kind, id string) *workbench.Error {
	return workbench.E(workbench.CodeKeyUnavailable, "the %s key %s is not available", kind, id)
}

func corrupt(detail string, cause error) *workbench.Error {
	return workbench.E(workbench.CodeCorrupt, "%s", detail).
		WithHint("the operator has to restore it from a backup").Caused(cause)
}
