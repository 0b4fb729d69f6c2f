package verify

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// everyAddress makes a network namespace of its own in which every address is
// local, with listeners on the ports that rows try. What code reaches there is
// this process; nothing leaves the host.
func everyAddress(ctx context.Context, _ *scene) (prepared, error) {
	type made struct {
		path string
		open []io.Closer
		err  error
	}
	ready, done := make(chan made), make(chan struct{})
	var held sync.WaitGroup
	held.Go(func() {
		// The thread keeps the namespace and ends with this goroutine.
		runtime.LockOSThread()
		path, open, err := openNetwork(ctx)
		ready <- made{path, open, err}
		<-done
		for _, c := range open {
			_ = c.Close()
		}
	})
	m := <-ready
	if m.err != nil {
		close(done)
		held.Wait()
		return prepared{}, m.err
	}
	return prepared{dir: m.path, end: func() error { close(done); held.Wait(); return nil }}, nil
}

// openNetwork moves the calling thread into a new network namespace.
func openNetwork(ctx context.Context) (path string, open []io.Closer, err error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return "", nil, fmt.Errorf("network namespace: %w", err)
	}
	path = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
	if err := everythingLocal(); err != nil {
		return path, nil, err
	}
	var lc net.ListenConfig
	for _, port := range []string{"22", "53", "80", "443", "2375", "8080"} {
		l, err := lc.Listen(ctx, "tcp", ":"+port)
		if err != nil {
			return path, open, err
		}
		open = append(open, l)
	}
	for _, port := range []string{"53", "67", "5353"} {
		c, err := lc.ListenPacket(ctx, "udp", ":"+port)
		if err != nil {
			return path, open, err
		}
		open = append(open, c)
	}
	return path, open, nil
}

// everythingLocal brings the loopback up and adds the routes "local default" for
// both families, after which any address is the machine's own.
func everythingLocal() error {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		return err
	}
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	link := make([]byte, unix.SizeofIfInfomsg) // family, type, index, flags, change
	binary.NativeEndian.PutUint32(link[4:], uint32(lo.Index))
	binary.NativeEndian.PutUint32(link[8:], unix.IFF_UP)
	binary.NativeEndian.PutUint32(link[12:], unix.IFF_UP)
	if err := netlink(s, unix.RTM_NEWLINK, 0, link); err != nil {
		return fmt.Errorf("bring the loopback up: %w", err)
	}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		route := make([]byte, unix.SizeofRtMsg)
		route[0], route[4], route[5], route[6], route[7] = family, unix.RT_TABLE_LOCAL, unix.RTPROT_STATIC, unix.RT_SCOPE_HOST, unix.RTN_LOCAL
		oif := make([]byte, 8) // length, type, index
		binary.NativeEndian.PutUint16(oif, 8)
		binary.NativeEndian.PutUint16(oif[2:], unix.RTA_OIF)
		binary.NativeEndian.PutUint32(oif[4:], uint32(lo.Index))
		err := netlink(s, unix.RTM_NEWROUTE, unix.NLM_F_CREATE, append(route, oif...))
		if err != nil && family == unix.AF_INET {
			return fmt.Errorf("route everything to the loopback: %w", err)
		}
	}
	return nil
}

// netlink sends one request and waits for its acknowledgement.
func netlink(s, kind, flags int, body []byte) error {
	m := make([]byte, unix.SizeofNlMsghdr, unix.SizeofNlMsghdr+len(body))
	binary.NativeEndian.PutUint32(m, uint32(unix.SizeofNlMsghdr+len(body)))
	binary.NativeEndian.PutUint16(m[4:], uint16(kind))
	binary.NativeEndian.PutUint16(m[6:], uint16(unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags))
	if err := unix.Sendto(s, append(m, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(s, answer, 0)
	if err != nil {
		return err
	}
	if n >= unix.SizeofNlMsghdr+4 && binary.NativeEndian.Uint16(answer[4:]) == unix.NLMSG_ERROR {
		if code := int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:])); code != 0 {
			return unix.Errno(-code)
		}
	}
	return nil
}
