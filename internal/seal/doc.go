// Package seal encrypts what Workbench keeps and manages the keys for it. Its
// one job is that nobody who reads a disk, a bucket or a database learns
// contents, and that nothing sealed can be altered, cut short or moved to
// another place without being noticed. It does no I/O on contents itself: it
// reads and writes what it is given.
//
// # Keys
//
//	master key      32 bytes, from a file or the environment; never stored with data
//	  tenant key    32 random bytes, wrapped by a master key, in the database
//	    object key  one per sealed object, derived from the tenant key and a
//	                random salt in the object, for one tenant, kind and place
//
// A key id is public: a master key's is a truncated hash of the key, a tenant
// key's is random. Everything sealed names its tenant key, and a wrapped tenant
// key names its master, so that old contents stay readable as long as the
// server is given the masters they need.
//
// # Small values (SealBytes)
//
//	0   1   version, 0x81
//	1   16  tenant key id
//	17  16  salt
//	33      AES-256-GCM of the plaintext, nonce zero: the object key is used once
//
// The object key is HKDF-Expand(SHA-256, seal key, info), where the seal key is
// derived from the tenant key and info is the salt, the version, tenant, kind
// and context. A value moved to another tenant, kind or context has another
// key and does not open.
//
// # Objects (NewWriter, Open)
//
//	0   4   "WBSO"
//	4   1   version, 1
//	5   1   log2 of the segment size, 16
//	6   2   zero
//	8   8   id of the master key that wrapped the tenant key at the time
//	16  16  tenant key id
//	32  32  salt
//	64      segments: 64 KiB of plaintext, AES-256-GCM, tag; the last is shorter
//	        (never empty, except in an empty object)
//
// This is the STREAM construction: the nonce of segment i is 7 zero bytes, i as
// big-endian uint32 and a byte that is 1 for the last segment only. Each
// segment's associated data are the header and the context (version, tenant,
// kind); the last segment's include the object's id as well, which may thus be
// a hash of what was written. Segments can be read at random. Cutting,
// extending, reordering or exchanging segments does not verify, and Open
// verifies the last segment first: with it the size and the object's id.
//
// # Content ids
//
// ContentID is HMAC-SHA-256, under a key derived from the tenant key, of the
// SHA-256 of the plaintext: equal bytes have one id within a tenant and
// unrelated ids in two.
//
// Damage of any kind is content_corrupt. A key that the server was not given is
// encryption_key_unavailable, naming the id of the key.
package seal
