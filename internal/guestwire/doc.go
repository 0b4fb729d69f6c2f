// Package guestwire is the protocol between the host and the guest inside a
// sandbox, both ends: frames over one byte stream (the sandbox's stdin and
// stdout), so that it works unchanged over a runtime's pipes, an attach and a
// socket.
//
// The host's end is Client, the guest's end is Server. The guest is untrusted:
// the client bounds every length before it allocates, validates every name and
// state change, and closes the connection with a typed error (guest_protocol)
// at the first violation. Nothing a guest claims about content is believed
// here beyond sizes and offsets, which are checked; whoever stores content
// recomputes its hashes.
//
// # Frames
//
// A connection begins with a preamble and one hello frame each way. A frame is
// a header of 12 bytes and a payload:
//
//	0  length   uint32, big endian, of the payload
//	4  type     uint8
//	5  stream   uint8: which byte stream of the channel (data, ack, end)
//	6  zero     uint16
//	8  channel  uint32: 0 is the connection, odd ids are opened by the host,
//	            even ones by the guest
//
// Control payloads are JSON of at most MaxControl bytes; data payloads begin
// with the absolute offset (uint64) of their bytes in the stream and carry at
// most MaxData bytes.
//
// # Flow control
//
// Each byte stream has a window of its own. A receiver acknowledges absolute
// offsets as bytes are consumed; a sender never has more than Window bytes
// beyond the last acknowledgement under way. A reader of frames therefore never
// waits for a consumer, and control frames pass any flood.
//
// # Resuming
//
// Execs live in the guest, not in a connection. A guest keeps what the host has
// not acknowledged of each output stream, and the end of each exec until the
// host has taken it, so that either side may drop the stream, shake hands again
// and attach by exec id and offsets.
//
// The same holds for a sandbox that was checkpointed and restored: its guest
// goes on where it was, in the middle of a connection whose host is gone, and
// takes the first handshake on its new stdin for the end of that. The host
// settles it first (Client.Settle), checkpoints it while the stream is open,
// since a guest whose stdin ended leaves, and dials and wakes what was restored.
package guestwire
