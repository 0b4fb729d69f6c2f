// Command faultserver is a whole server with two oracles of what was started,
// for the crash tests: between engine and driver it writes the id of every step
// to a synced file before it forwards the step's code to a sandbox, and it
// mounts a folder of the host into every sandbox, in which programs leave marks
// themselves. It is built with the tag failpoint, by the tests alone.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/govern"
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
	marks := flag.String("marks", "", "folder that programs see at "+marksInside)
	twice := flag.Bool("twice", false, "start every step twice, to show that the oracles notice")
	flag.StringVar(&o.DataDir, "data", "", "data directory")
	flag.StringVar(&o.Database, "database", "", "database")
	flag.StringVar(&o.Images, "images", "", "images")
	flag.StringVar(&o.Driver, "driver", "", "driver")
	flag.StringVar(&o.Runsc, "runsc", "", "runsc")
	flag.StringVar(&o.Runc, "runc", "", "runc")
	flag.StringVar(&o.Guest, "guest", "", "guest")
	flag.StringVar(&o.DefaultImage, "image", "", "default image")
	flag.StringVar(&o.PythonIndex, "python-index", "", "where Python packages come from")
	hook := flag.String("webhook", "", "is told of tool calls that wait for a decision")
	warm := flag.Int("warm", 0, "sandboxes of the default size kept ready")
	flag.DurationVar(&o.SuspendAfter, "suspend-after", 0, "without work, a session's sandbox goes")
	flag.Parse()
	if *hook != "" {
		var err error
		if o.ApprovalWebhook, err = govern.NewWebhook(*hook, []byte("a secret of the tests")); err != nil {
			return err
		}
	}
	o.Warm = map[string]int{workbench.DefaultSize: *warm}
	o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	o.WrapDriver = func(d sandbox.Driver) sandbox.Driver {
		d = &witness{Driver: d, file: *oracle}
		if *twice {
			d = &doubling{d}
		}
		return d
	}
	if *marks != "" {
		o.Weaken = mountMarks(*marks)
	}

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
