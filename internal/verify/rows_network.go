package verify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
)

// Rows about the network. In the routed profile every address leads to a
// listener in a network of its own; nothing leaves the host.

type endpoint [2]any

func tcp(host string, port int) endpoint { return endpoint{host, port} }

func (s *scene) reaches(ctx context.Context, params map[string]any) finding {
	b, err := s.session(ctx, mainSession)
	if err != nil {
		return broke(err)
	}
	return b.judge(ctx, "network", params)
}

func checkNetwork(ctx context.Context, s *scene) finding {
	return s.reaches(ctx, map[string]any{
		"tcp": []endpoint{tcp("1.1.1.1", 80), tcp("8.8.8.8", 53), tcp("192.0.2.1", 80)},
		"udp": []endpoint{tcp("8.8.8.8", 53), tcp("192.0.2.1", 53), tcp("255.255.255.255", 67)},
		"dns": []string{"example.com", "localhost.example.org"},
	})
}

func checkMetadata(ctx context.Context, s *scene) finding {
	f := s.reaches(ctx, map[string]any{
		"tcp": []endpoint{tcp("169.254.169.254", 80), tcp("fd00:ec2::254", 80), tcp("::ffff:169.254.169.254", 80), tcp("169.254.170.2", 80), tcp("100.100.100.200", 80)},
		"dns": []string{"metadata.google.internal", "169.254.169.254.nip.io"},
	})
	if f.outcome == Proved {
		f.why += "; there is no egress helper yet to go through"
	}
	return f
}

func checkIPv6(ctx context.Context, s *scene) finding {
	listening, err := (&net.ListenConfig{}).Listen(ctx, "tcp6", "[::1]:0")
	targets := []endpoint{tcp("2606:4700:4700::1111", 80), tcp("fd00::1", 80), tcp("::ffff:10.0.0.1", 80), tcp("::ffff:192.0.2.1", 80)}
	if err == nil { // a host without IPv6 has no ::1
		defer listening.Close()
		targets = append(targets, tcp("::1", listening.Addr().(*net.TCPAddr).Port))
	}
	return s.reaches(ctx, map[string]any{
		"tcp": targets, "udp": []endpoint{tcp("ff02::1", 5353), tcp("fe80::1", 53), tcp("2001:4860:4860::8888", 53)},
	})
}

func checkPrivateRanges(ctx context.Context, s *scene) finding {
	return s.reaches(ctx, map[string]any{
		"tcp": []endpoint{tcp("10.0.0.1", 80), tcp("172.17.0.1", 2375), tcp("192.168.0.1", 80), tcp("10.96.0.1", 443), tcp("100.64.0.1", 80), tcp("172.31.255.254", 22)},
		"udp": []endpoint{tcp("10.0.0.1", 53), tcp("224.0.0.1", 5353)},
	})
}

// checkLoopback: ports of the host's own loopback, where servers listen that
// trust whoever can reach them.
func checkLoopback(ctx context.Context, s *scene) finding {
	var targets []endpoint
	var all []net.Listener
	defer func() {
		for _, l := range all {
			_ = l.Close()
		}
	}()
	for _, address := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::1]:0"} {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err != nil {
			if len(all) == 0 {
				return broke(err)
			}
			continue // no IPv6 here
		}
		all = append(all, l)
		host := "127.0.0.1"
		if strings.HasPrefix(address, "[") {
			host = "::1"
		}
		targets = append(targets, tcp(host, l.Addr().(*net.TCPAddr).Port))
	}
	for _, port := range []int{2375, 5432, 8080, 6443} {
		targets = append(targets, tcp("127.0.0.1", port))
	}
	return s.reaches(ctx, map[string]any{"tcp": targets})
}

func checkAbstract(ctx context.Context, s *scene) finding {
	b, err := s.session(ctx, mainSession)
	if err != nil {
		return broke(err)
	}
	name := marker()
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", "@"+name)
	if err != nil {
		return broke(err)
	}
	defer l.Close()
	return b.judge(ctx, "H107", map[string]any{"name": name})
}

func freePort(ctx context.Context) (int, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return 0, errors.New("no TCP address")
	}
	return addr.Port, nil
}

// checkCanary: nothing of this process's environment is inside.
func checkCanary(ctx context.Context, s *scene) finding {
	b, err := s.session(ctx, mainSession)
	if err != nil {
		return broke(err)
	}
	return b.judge(ctx, "H111", map[string]any{"canary": []string{canary[:8], canary[8:]}})
}

// canary stands for a secret in the server's environment.
var canary = fmt.Sprintf("canary-%s", randomID())
