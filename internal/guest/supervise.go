package guest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// supervisor is the sandbox's first process.
type supervisor struct {
	procs *reaper
	log   io.Writer

	binds  sync.Mutex // held while Prepare or Bind works
	ready  *binding   // nil until prepared; guarded by binds
	mu     sync.Mutex
	bound  *binding // nil until bound
	groups map[string]*group
	execs  map[string]*execution
	runs   atomic.Int64 // execs begun so far

	// beginning is held for reading while a process is made that will run code, in
	// a group that is known already, and for writing while none may begin.
	beginning sync.RWMutex

	tree   *tree // the workspace as the last scan left it
	watch  *watch
	spares *spares

	contexts *contexts
}

// binding is what Prepare and Bind settled; it does not change.
type binding struct {
	limits       guestwire.SandboxLimits
	env          map[string]string // of every exec
	session      map[string]string // of every exec, over env; set by Bind
	languages    []workbench.Language
	interpreters map[workbench.Language]string // paths
	tasksFD      int                           // cgroup.procs of user code's cgroup; /dev/null without cgroups
	tasksDir     string
	nproc        int // RLIMIT_NPROC of user code; 0 when the cgroup holds the limit
}

// leaveAfter is how long a guest without a host waits before it ends, and with
// it the sandbox.
const leaveAfter = 5 * time.Second

// supervise runs the guest over stdin and stdout until stdin ends.
func supervise() error {
	if err := prepareSelf(); err != nil {
		return err
	}
	s := &supervisor{procs: newReaper(), log: os.Stderr, groups: map[string]*group{}, execs: map[string]*execution{}}
	s.tree = newTree()
	s.watch = newWatch(s)
	s.spares = newSpares(s)
	s.contexts = newContexts(s)
	var boot [8]byte
	if _, err := rand.Read(boot[:]); err != nil {
		return err
	}
	// A host that goes away must show as an error, not end the guest; a handler,
	// unlike ignoring, is not inherited by what is executed.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	server := guestwire.NewServer(s, hex.EncodeToString(boot[:]), Build, []string{"exec", "groups", "scan", "attach", "settle", "contexts", "display"})
	served := make(chan error, 1)
	go func() { served <- server.Serve(stdio{os.Stdin, os.Stdout}) }() // not on the main thread, which others' identities must not touch
	err := <-served
	if err != nil && !errors.Is(err, io.EOF) {
		fmt.Fprintln(s.log, "guest: connection:", err)
	}
	// Nobody can attach over this stream again. Execs under way get a moment,
	// for the host may have ended only our pipe's other end.
	time.AfterFunc(leaveAfter, func() { os.Exit(0) })
	server.Close()
	return nil
}

// stdio is the sandbox's own stream.
type stdio struct{ in, out *os.File }

func (s stdio) Read(p []byte) (int, error)  { return s.in.Read(p) }
func (s stdio) Write(p []byte) (int, error) { return s.out.Write(p) }
func (s stdio) Close() error                { return errors.Join(s.in.Close(), s.out.Close()) }

// prepareSelf protects the guest from the code to come and lays out /run.
func prepareSelf() error {
	unix.Umask(0o022)
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("not dumpable: %w", err)
	}
	// gVisor has these in every sandbox, emulated; code has no use for them.
	for _, device := range []string{"/dev/fuse", "/dev/net/tun", "/dev/net"} {
		_ = os.Remove(device)
	}
	for _, dir := range []string{runDir, binDir, libDir, execsDir, bindDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	// Names of execs are not for everyone to list.
	if err := errors.Join(os.Chmod(execsDir, 0o711), os.Chmod(bindDir, 0o700)); err != nil {
		return err
	}
	if err := writeLibraries(); err != nil {
		return err
	}
	for _, name := range commandNames {
		if err := os.Symlink(guestBinary, filepath.Join(binDir, name)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// current returns the binding. Code: conflict before Bind.
func (s *supervisor) current() (*binding, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bound == nil {
		return nil, workbench.E(workbench.CodeConflict, "the sandbox is not bound to a session")
	}
	return s.bound, nil
}

// Stats implements guestwire.Guest.
func (s *supervisor) Stats(context.Context) (guestwire.GuestStats, error) {
	b, err := s.current()
	if err != nil {
		return guestwire.GuestStats{}, err
	}
	_ = b
	var st guestwire.GuestStats
	st.WorkspaceBytes, st.WorkspaceFiles = usedIn(workspaceDir)
	st.ScratchBytes, _ = usedIn(scratchDir)
	st.Tasks, st.MemoryBytes = s.watch.last()
	s.mu.Lock()
	st.Execs = len(s.execs)
	s.mu.Unlock()
	return st, nil
}

// usedIn is what a mounted tmpfs holds.
func usedIn(path string) (bytes, inodes int64) {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return 0, 0
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize, int64(st.Files - st.Ffree)
}
