// Command faultserver is a whole server with an oracle between engine and
// driver, for the crash tests: it writes the id of every step to a synced file
// before it forwards the step's code to a sandbox. It is built with the tag
// failpoint, by the tests alone.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/server"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "faultserver:", err)
		os.Exit(1)
	}
}

func run() error {
	var o server.Options
	listen := flag.String("listen", "127.0.0.1:0", "address")
	ready := flag.String("ready", "", "file that gets the address once the server answers")
	admin := flag.String("admin", "", "file that gets the first admin key")
	oracle := flag.String("oracle", "", "file that gets the id of every step before its code leaves")
	flag.StringVar(&o.DataDir, "data", "", "data directory")
	flag.StringVar(&o.Database, "database", "", "database")
	flag.StringVar(&o.Images, "images", "", "images")
	flag.StringVar(&o.Driver, "driver", "", "driver")
	flag.StringVar(&o.Runsc, "runsc", "", "runsc")
	flag.StringVar(&o.Runc, "runc", "", "runc")
	flag.StringVar(&o.Guest, "guest", "", "guest")
	flag.StringVar(&o.DefaultImage, "image", "", "default image")
	flag.Parse()
	o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	o.WrapDriver = func(d sandbox.Driver) sandbox.Driver { return &witness{Driver: d, file: *oracle} }

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	s, err := server.Open(ctx, o)
	if err != nil {
		return err
	}
	if err := keepAdminKey(ctx, s, *admin); err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", *listen)
	if err != nil {
		return err
	}
	h := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second}
	go func() {
		<-ctx.Done()
		_ = h.Close()
	}()
	if err := os.WriteFile(*ready+".tmp", []byte(l.Addr().String()), 0o600); err != nil {
		return err
	}
	if err := os.Rename(*ready+".tmp", *ready); err != nil {
		return err
	}
	if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	end, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return s.Close(end)
}

// keepAdminKey writes an admin key where there is none yet: a server that was
// killed between making its first key and showing it has lost that one.
func keepAdminKey(ctx context.Context, s *server.Server, file string) error {
	if _, err := os.Stat(file); err == nil {
		return nil
	}
	key := s.AdminKey()
	if key == "" {
		var err error
		if key, _, err = s.LocalAdminKey(ctx); err != nil {
			return err
		}
	}
	if err := os.WriteFile(file+".tmp", []byte(key), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".tmp", file)
}

// witness wraps a driver so that no step's code leaves unrecorded.
type witness struct {
	sandbox.Driver
	file string
}

// Start implements sandbox.Driver.
func (w *witness) Start(ctx context.Context, class sandbox.Class) (sandbox.Sandbox, error) {
	box, err := w.Driver.Start(ctx, class)
	if err != nil {
		return nil, err
	}
	return &witnessed{Sandbox: box, stream: &watchedStream{ReadWriteCloser: box.Stream(), file: w.file}}, nil
}

type witnessed struct {
	sandbox.Sandbox
	stream io.ReadWriteCloser
}

// Stream implements sandbox.Sandbox.
func (w *witnessed) Stream() io.ReadWriteCloser { return w.stream }

// watchedStream records the id in every exec request before the request is
// written.
type watchedStream struct {
	io.ReadWriteCloser
	file string
	mu   sync.Mutex
	tail []byte // the end of what was written, for a request cut by two writes
}

var (
	execRequest = []byte(`"op":"exec","body":{"id":"`)
	idLength    = len("run_") + 26
)

// Write implements io.Writer.
func (s *watchedStream) Write(p []byte) (int, error) {
	s.mu.Lock()
	seen := append(s.tail, p...)
	for {
		at := bytes.Index(seen, execRequest)
		if at < 0 || len(seen) < at+len(execRequest)+idLength {
			break
		}
		id := seen[at+len(execRequest):][:idLength]
		if err := record(s.file, id); err != nil {
			s.mu.Unlock()
			return 0, err
		}
		seen = seen[at+len(execRequest)+idLength:]
	}
	keep := min(len(seen), len(execRequest)+idLength-1)
	s.tail = bytes.Clone(seen[len(seen)-keep:])
	s.mu.Unlock()
	return s.ReadWriteCloser.Write(p)
}

func record(file string, id []byte) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(bytes.Clone(id), '\n'))
	return errors.Join(err, f.Sync(), f.Close())
}
