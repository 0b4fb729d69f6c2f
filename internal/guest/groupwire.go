package guest

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// The supervisor and the first process of a group speak JSON packets over a
// socket pair. Both are the guest; user code cannot reach the socket.

// groupCommand is what the supervisor asks.
type groupCommand struct {
	Seq    int64  `json:"seq"`
	Op     string `json:"op"` // spawn, admit, signal, pause, resume, usage
	PID    int    `json:"pid,omitempty"`
	Admit  bool   `json:"admit,omitempty"` // spawn: at once
	Signal int    `json:"signal,omitempty"`

	Within time.Duration `json:"within,omitempty"` // pause: for how long it may take, ns
}

// groupEvent is an answer (Seq > 0) or the end of a spawned process (Seq 0).
type groupEvent struct {
	Seq    int64  `json:"seq"`
	PID    int    `json:"pid,omitempty"` // in the group's namespace
	Status uint32 `json:"status,omitempty"`
	MaxRSS int64  `json:"maxRss,omitempty"`
	Tasks  int    `json:"tasks,omitempty"`
	Ready  bool   `json:"ready,omitempty"`
	Error  string `json:"error,omitempty"`
}

const maxGroupPacket = 4096

// packetConn is a SOCK_SEQPACKET socket with descriptors.
type packetConn struct{ fd int }

func packetPair() (a, b packetConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return a, b, os.NewSyscallError("socketpair", err)
	}
	return packetConn{fds[0]}, packetConn{fds[1]}, nil
}

func (c packetConn) send(v any, fds ...int) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(raw) > maxGroupPacket {
		return fmt.Errorf("packet of %d bytes", len(raw))
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	return unix.Sendmsg(c.fd, raw, rights, nil, unix.MSG_NOSIGNAL)
}

// receive reads one packet and the descriptors with it. No bytes mean the other
// end is gone.
func (c packetConn) receive(v any) (fds []int, err error) {
	buf := make([]byte, maxGroupPacket)
	oob := make([]byte, unix.CmsgSpace(8*4))
	var n, oobn int
	for {
		n, oobn, _, _, err = unix.Recvmsg(c.fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return nil, os.NewSyscallError("recvmsg", err)
	}
	if n == 0 {
		return nil, os.ErrClosed
	}
	if oobn > 0 {
		msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			got, err := unix.ParseUnixRights(&m)
			if err != nil {
				return nil, err
			}
			fds = append(fds, got...)
		}
	}
	return fds, json.Unmarshal(buf[:n], v)
}

func (c packetConn) close() { _ = unix.Close(c.fd) }
