package seal

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
)

const (
	smallVersion = 0x81
	smallHeader  = 1 + tenantIDSize + saltSize

	// Overhead is how much longer a sealed value is than its plaintext.
	Overhead = smallHeader + 16
)

// zeroNonce is for keys that are used once.
var zeroNonce [12]byte

// SealBytes seals a small value for one place: its kind and its context (an
// id, for instance) must be given again to open it. Codes:
// encryption_key_unavailable, unavailable.
func (s *Sealer) SealBytes(ctx context.Context, tenantID, kind, place string, plaintext []byte) ([]byte, error) {
	k, err := s.current(ctx, tenantID)
	if err != nil {
		return nil, err
	}
	out := make([]byte, smallHeader, Overhead+len(plaintext))
	out[0] = smallVersion
	copy(out[1:], k.id[:])
	salt := out[1+tenantIDSize : smallHeader]
	_, _ = rand.Read(salt) // never fails
	aead, err := k.objectKey(salt, contextOf("workbench value", smallVersion, tenantID, kind, place))
	if err != nil {
		return nil, err
	}
	return aead.Seal(out, zeroNonce[:], plaintext, nil), nil
}

// OpenBytes opens what SealBytes sealed for the same tenant, kind and context.
// Codes: content_corrupt, encryption_key_unavailable, unavailable.
func (s *Sealer) OpenBytes(ctx context.Context, tenantID, kind, place string, sealed []byte) ([]byte, error) {
	if len(sealed) < Overhead || sealed[0] != smallVersion {
		return nil, corrupt("a stored value is damaged", nil)
	}
	k, err := s.named(ctx, tenantID, [tenantIDSize]byte(sealed[1:]))
	if err != nil {
		return nil, err
	}
	aead, err := k.objectKey(sealed[1+tenantIDSize:smallHeader], contextOf("workbench value", smallVersion, tenantID, kind, place))
	if err != nil {
		return nil, err
	}
	plain, err := aead.Open(make([]byte, 0, len(sealed)-Overhead), zeroNonce[:], sealed[smallHeader:], nil)
	if err != nil {
		return nil, corrupt("a stored value is damaged", err)
	}
	return plain, nil
}

// objectKey derives the key of one object.
func (k *tenantKey) objectKey(salt, context []byte) (cipher.AEAD, error) {
	info := make([]byte, 0, len(salt)+len(context))
	info = append(append(info, salt...), context...)
	key, err := hkdf.Expand(sha256.New, k.seal, string(info), keySize)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	clear(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
