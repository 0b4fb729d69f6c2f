// Package workspace keeps the history of a session's files. Its one job is
// that a commit names an exact tree, that the tree can be had back byte for
// byte, and that a small change costs little however large the tree.
//
// What it is told comes from hostile code: names are bytes, contents are hashed
// here, claims about them are checked and no path is ever used on the host.
//
// # Trees
//
// A Tree is immutable and shares what did not change with the tree it was made
// from. Its root is a Merkle root: SHA-256 over each directory's entries, a
// directory's entry holding the digest of that directory. So that a directory
// with many thousands of entries is cheap to change, its entries are themselves
// a Merkle trie over SHA-256(name), 16 ways: up to 32 entries are one leaf. The
// shape depends on the names alone, not on the order of changes.
//
//	leaf   SHA-256(0, version, entries in order of their names' bytes)
//	branch SHA-256(1, version, 16 digests, 32 zero bytes for an absent one)
//	entry  type ("f", "d", "l"), mode (uint16), name, then
//	       f: size (uint64) and SHA-256 of the content
//	       d: digest of the directory (an empty one is an empty leaf)
//	       l: target
//
// Names and targets are preceded by their length (uint32); integers are big
// endian. Modification times are kept beside it, so that a restored tree scans
// as unchanged, and are no part of the root: two runs that write the same bytes
// make the same root.
//
// # What is stored
//
// A commit writes at most one pack with its manifest: a sealed object that also
// holds the contents that are new and small. Contents over 256 KiB are cut into
// chunks of 256 KiB to 4 MiB, usually 1 MiB, where the content itself and a
// secret of the tenant say; each is an object of its own under its content id,
// stored once per tenant, and a file's last chunk goes into the pack if it is
// small. A content in one chunk is thus stored under its own id. A pack of at
// most 64 KiB, sealed, travels in Commit.Inline and is stored in the same
// transaction as the commit's row: the usual commit costs no fsync of its own.
// A commit that changes nothing writes nothing.
//
// A manifest is the difference to an earlier one, or to the empty tree. A chain
// of differences ends after 256, or when they outweigh half the tree.
//
// Refs lists what a tree needs. A blob stays as long as any owner refers to it,
// a session or a fork of one.
package workspace
