// Package pgtest starts a real PostgreSQL for tests. Its one job is that: one
// server for a test binary, on a temporary directory, a unix socket and a free
// loopback port, with fsync on; a fresh database for a test; nothing left at
// the end. It never skips: without the server's programs a test fails.
package pgtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Server is a PostgreSQL of the test's own.
type Server struct {
	bin        string // directory of initdb and postgres
	dir        string // data, socket and log
	port       int
	password   string
	credential *syscall.Credential // nil: as the test itself

	mu      sync.Mutex
	process *process // nil while stopped
	names   int
}

// process is one life of the server.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// Start makes a new database cluster and starts a server on it.
func Start() (*Server, error) {
	bin, err := programs()
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin, password: rand.Text()}
	if s.credential, err = unprivileged(); err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp("", "workbench-pg-"); err != nil {
		return nil, err
	}
	if err := s.initialise(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	if err := s.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	return s, nil
}

// programs finds the newest installed server.
func programs() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		return "", err
	}
	if len(found) == 0 {
		if p, err := exec.LookPath("initdb"); err == nil {
			return filepath.Dir(p), nil
		}
		return "", errors.New("no PostgreSQL server is installed (looked for /usr/lib/postgresql/*/bin/initdb): run `make setup`, or install Debian's postgresql")
	}
	version := func(p string) float64 {
		v, _ := strconv.ParseFloat(filepath.Base(filepath.Dir(filepath.Dir(p))), 64)
		return v
	}
	sort.Slice(found, func(i, j int) bool { return version(found[i]) > version(found[j]) })
	return filepath.Dir(found[0]), nil
}

// unprivileged is whom the server runs as: it refuses root.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("PostgreSQL refuses to run as root and there is no user postgres: run `make setup`")
}

func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", "HOME=" + s.dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.credential, Setpgid: true, Pdeathsig: syscall.SIGINT}
	return cmd
}

func (s *Server) initialise() error {
	secret := filepath.Join(s.dir, "password")
	if err := os.WriteFile(secret, []byte(s.password), 0o600); err != nil {
		return err
	}
	if s.credential != nil {
		for _, p := range []string{s.dir, secret} {
			if err := os.Chown(p, int(s.credential.Uid), int(s.credential.Gid)); err != nil {
				return err
			}
		}
	}
	args := []string{"-D", s.data(), "-U", "postgres", "--auth-local=trust", "--auth-host=scram-sha-256", "--pwfile=" + secret, "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"}
	// An order that is not by bytes, where the server can do it: the product
	// must not depend on the database's own.
	out, err := s.command("initdb", append(args, "--locale-provider=icu", "--icu-locale=en")...).CombinedOutput()
	if err != nil {
		_ = os.RemoveAll(s.data())
		out, err = s.command("initdb", args...).CombinedOutput()
	}
	if err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	s.port, err = FreePort()
	return err
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// FreePort is a loopback port for a server of a test that listens on it later,
// and again after each of its deaths. It is below those that Linux gives to
// whoever asks for any, as other tests do all the time.
func FreePort() (port int, err error) {
	const lowest, highest, tries = 15000, 32767, 100
	for range tries {
		port = lowest + mathrand.IntN(highest-lowest+1)
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, err
}

// Start starts a stopped server on its old port and waits until it answers.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		return errors.New("the server runs already")
	}
	var log bytes.Buffer
	cmd := s.command("postgres", "-D", s.data(), "-p", strconv.Itoa(s.port), "-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories="+s.dir, "-c", "fsync=on", "-c", "max_connections=200", "-c", "deadlock_timeout=200ms",
		"-c", "shared_buffers=64MB")
	cmd.Stdout, cmd.Stderr = &log, &log
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The server dies with the thread that started it, so the thread is
		// kept for as long as the server lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	deadline := time.Now().Add(60 * time.Second)
	for {
		err := s.exec("postgres", "SELECT 1")
		if err == nil {
			s.process = p
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("postgres ended at its start:\n%s", log.String())
		case <-time.After(30 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			_ = cmd.Process.Kill()
			<-p.done
			return fmt.Errorf("postgres did not answer within a minute: %w\n%s", err, log.String())
		}
	}
}

// Stop ends the server and waits: fast and clean, or at once as a crash would.
func (s *Server) Stop(crash bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return
	}
	sig := syscall.SIGINT
	if crash {
		sig = syscall.SIGQUIT // immediate shutdown: recovery at the next start
	}
	_ = s.process.cmd.Process.Signal(sig)
	select {
	case <-s.process.done:
	case <-time.After(30 * time.Second):
		_ = s.process.cmd.Process.Kill()
		<-s.process.done
	}
	s.process = nil
}

// Close ends the server and removes what it kept.
func (s *Server) Close() error {
	s.Stop(true)
	return os.RemoveAll(s.dir)
}

// URL is the address of a database, over the unix socket.
func (s *Server) URL(database string) string {
	q := url.Values{"host": {s.dir}, "port": {strconv.Itoa(s.port)}, "sslmode": {"disable"}}
	return "postgres://postgres@/" + database + "?" + q.Encode()
}

// TCPURL is the address of a database over loopback TCP, with a password.
func (s *Server) TCPURL(database string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword("postgres", s.password), Host: s.Address(), Path: "/" + database, RawQuery: "sslmode=disable"}
	return u.String()
}

// Address is where the server listens on loopback.
func (s *Server) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

func (s *Server) exec(database, statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.URL(database))
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement)
	return errors.Join(err, conn.Close(ctx))
}

// MustExec runs a statement as the database's owner.
func (s *Server) MustExec(t testing.TB, database, statement string) {
	t.Helper()
	if err := s.exec(database, statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// MustDatabase makes an empty database that goes with the test, and returns
// its name.
func (s *Server) MustDatabase(t testing.TB) string {
	t.Helper()
	s.mu.Lock()
	s.names++
	name := "test_" + strconv.Itoa(s.names)
	s.mu.Unlock()
	s.MustExec(t, "postgres", "CREATE DATABASE "+name)
	t.Cleanup(func() {
		if err := s.exec("postgres", "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil && !strings.Contains(err.Error(), "connect") {
			t.Errorf("dropping the test's database: %v", err)
		}
	})
	return name
}

// MustSchemaURL is the address of an empty schema of its own in a database that
// tests share: cheaper than a database by the copying and syncing of its files.
// Notifications of the others arrive there too, as they would with one.
func MustSchemaURL(t testing.TB) string {
	t.Helper()
	s := MustShared(t)
	s.mu.Lock()
	s.names++
	name := "test_" + strconv.Itoa(s.names)
	s.mu.Unlock()
	s.MustExec(t, "postgres", "CREATE SCHEMA "+name)
	return s.URL("postgres") + "&search_path=" + name
}

var shared struct {
	once   sync.Once
	server *Server
	err    error
}

// MustShared is the test binary's one server, started at the first call. The
// binary's TestMain must end through Main.
func MustShared(t testing.TB) *Server {
	t.Helper()
	shared.once.Do(func() { shared.server, shared.err = Start() })
	if shared.err != nil {
		t.Fatalf("this test needs a real PostgreSQL: %v", shared.err)
	}
	return shared.server
}

// MustURL is the address of a fresh database on the shared server.
func MustURL(t testing.TB) string {
	t.Helper()
	s := MustShared(t)
	return s.URL(s.MustDatabase(t))
}

// Main runs the tests and ends the shared server: os.Exit(pgtest.Main(m)).
func Main(m *testing.M) int {
	code := m.Run()
	if shared.server != nil {
		if err := shared.server.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "ending PostgreSQL:", err)
			return max(code, 1)
		}
	}
	return code
}
