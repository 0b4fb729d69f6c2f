package faults_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store/pgtest"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// world is a data directory with a server on it that may die at any time, and
// the history of what clients were told.
type world struct {
	t      *testing.T
	dir    string
	args   []string // further ones for the server
	port   string
	key    string // a direct key
	mu     sync.Mutex
	proc   *exec.Cmd
	exited chan struct{}
	starts int // of the server, in all
	deaths int // at a failpoint on the way up
	// dieAt, if it is there, gives the failpoints of every start that names none.
	dieAt func() string

	runs    map[string]*known // accepted runs, by id
	files   map[string]string // artifact id → sha256 of the bytes a client sent or read
	history *history
	noted   int   // lines of the oracle that are in the history
	cells   tally // of those in contexts
}

// known is what clients know of a run.
type known struct {
	key, session string
	last         workbench.Run
	stdout       string // seen so far
	checked      bool
}

var (
	buildOnce sync.Once
	buildErr  error
	binary    string
)

func TestMain(m *testing.M) {
	code := m.Run()
	if binary != "" {
		_ = os.RemoveAll(filepath.Dir(binary))
	}
	os.Exit(code)
}

// mustBinary builds the server once per test process.
func mustBinary(t *testing.T) string {
	t.Helper()
	buildOnce.Do(func() {
		dir, err := os.MkdirTemp("", "faultserver")
		if err != nil {
			buildErr = err
			return
		}
		binary = filepath.Join(dir, "faultserver")
		cmd := exec.Command("go", "build", "-tags", "failpoint", "-o", binary, "./faultserver")
		if out, err := cmd.CombinedOutput(); err != nil {
			buildErr = fmt.Errorf("%w: %s", err, out)
		}
	})
	if buildErr != nil {
		t.Fatal(buildErr)
	}
	return binary
}

func mustWorld(t *testing.T) *world {
	t.Helper()
	return mustWorldAt(t, "")
}

// mustWorldAt is a world whose very first server has the failpoints, and args.
func mustWorldAt(t *testing.T, failpoints string, args ...string) *world {
	t.Helper()
	w := newWorld(t, args...)
	w.mustStart(failpoints)
	t.Cleanup(func() { w.on(t).stop() })
	return w
}

// newWorld is a world without a server yet.
func newWorld(t *testing.T, args ...string) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), args: args, runs: map[string]*known{}, files: map[string]string{}, history: newHistory()}
	w.mustMarksFolder()
	return w
}

// mustMarksFolder makes the folder that programs leave their marks in, open to
// the ids that sandboxes are mapped to.
func (w *world) mustMarksFolder() {
	w.t.Helper()
	marks := filepath.Join(w.dir, "marks")
	err := errors.Join(os.Mkdir(marks, 0o700), os.Chmod(marks, 0o777), os.Chmod(filepath.Dir(w.dir), 0o711)) //nolint:gosec // strangers write here
	if err != nil {
		w.t.Fatal(err)
	}
}

// mustKey makes the clients' key, while the server may die under it.
func (w *world) mustKey(ctx context.Context) {
	w.t.Helper()
	admin, err := os.ReadFile(filepath.Join(w.dir, "admin"))
	if err != nil {
		w.t.Fatal(err)
	}
	made, err := again(ctx, func() (sdk.CreatedKey, error) {
		return w.client(string(admin)).CreateKey(ctx, sdk.CreateKey{Kind: workbench.KeyDirect, Name: "t", Tenant: "acme", User: "ada"})
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.key = made.Secret
}

func (w *world) client(key string) *sdk.Client {
	c, err := sdk.New(sdk.Options{BaseURL: "http://" + w.port, Key: key, Retries: -1})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// mustStart starts the server; failpoints is WORKBENCH_FAILPOINTS. A server
// that dies on the way up, at a failpoint of recovery, is started once more
// without.
func (w *world) mustStart(failpoints string) {
	w.t.Helper()
	for before := ""; ; {
		if failpoints == "" && w.dieAt != nil {
			failpoints = w.dieAt()
		}
		err := w.start(failpoints)
		if err == nil {
			return
		}
		if failpoints == "" || failpoints == before {
			w.t.Fatalf("the server does not start: %v\n%s", err, w.log())
		}
		before, failpoints = failpoints, ""
		w.mu.Lock()
		w.deaths++
		w.mu.Unlock()
	}
}

func (w *world) start(failpoints string) error {
	bin := mustBinary(w.t)
	ready := filepath.Join(w.dir, "ready")
	_ = os.Remove(ready)
	listen := w.port
	if listen == "" {
		port, err := pgtest.FreePort() // it must get the same one after each death
		if err != nil {
			return err
		}
		listen = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	log, err := os.OpenFile(filepath.Join(w.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	root, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	cmd := exec.Command(bin, "-listen", listen, "-ready", ready, "-admin", filepath.Join(w.dir, "admin"),
		"-oracle", filepath.Join(w.dir, "oracle"), "-marks", filepath.Join(w.dir, "marks"), "-data", filepath.Join(w.dir, "data"), "-images", images(), "-image", "minimal",
		"-runsc", filepath.Join(root, "bin", "runsc"), "-guest", filepath.Join(root, "bin", "guest"))
	cmd.Args = append(cmd.Args, w.args...)
	cmd.Env = append(os.Environ(), "WORKBENCH_FAILPOINTS="+failpoints, "WORKBENCH_FAILPOINT_LOG="+filepath.Join(w.dir, "failpoints"))
	cmd.Stderr, cmd.Stdout = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(exited) }()
	w.mu.Lock()
	w.proc, w.exited = cmd, exited
	w.starts++
	w.mu.Unlock()
	deadline := time.After(60 * time.Second)
	for {
		if addr, err := os.ReadFile(ready); err == nil {
			w.port = string(addr)
			return nil
		}
		select {
		case <-exited:
			return errors.New("it ended")
		case <-deadline:
			_ = cmd.Process.Kill()
			<-exited
			return errors.New("it was not ready in time")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func images() string {
	if dir := os.Getenv("WORKBENCH_IMAGES"); dir != "" {
		return dir
	}
	return "/var/lib/workbench/images" // where make setup puts them
}

// started is how often the server was started.
func (w *world) started() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.starts
}

// died reports whether the server was started again since, or died on its way
// up.
func (w *world) died(before int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.starts > before || w.deaths > 0
}

// awaitDeath waits until the server has died: what it stored can be seen a
// moment before.
func (w *world) awaitDeath(ctx context.Context, before int) bool {
	for !w.died(before) {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(5 * time.Millisecond):
		}
	}
	return true
}

// on is the same world, reporting to a subtest.
func (w *world) on(t *testing.T) *world {
	w.t = t
	w.deaths = 0
	return w
}

// kill ends the server as a crash does.
func (w *world) kill() {
	w.mu.Lock()
	proc, exited := w.proc, w.exited
	w.mu.Unlock()
	_ = proc.Process.Signal(syscall.SIGKILL)
	<-exited
}

// stop ends the server in order.
func (w *world) stop() {
	w.mu.Lock()
	proc, exited := w.proc, w.exited
	w.mu.Unlock()
	_ = proc.Process.Signal(syscall.SIGTERM)
	select {
	case <-exited:
	case <-time.After(30 * time.Second):
		_ = proc.Process.Kill()
		<-exited
		w.t.Error("the server did not stop in 30 s")
	}
}

// supervise restarts the server whenever it died, until ctx ends.
func (w *world) supervise(ctx context.Context) {
	for {
		w.mu.Lock()
		exited := w.exited
		w.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-exited:
			if ctx.Err() != nil {
				return
			}
			w.mustStart("")
		}
	}
}

func (w *world) log() string {
	raw, _ := os.ReadFile(filepath.Join(w.dir, "log"))
	if len(raw) > 6000 {
		raw = raw[len(raw)-6000:]
	}
	return string(raw)
}

// again repeats f while the server is away or says that trying again may help.
func again[T any](ctx context.Context, f func() (T, error)) (T, error) {
	for {
		v, err := f()
		if err == nil || ctx.Err() != nil {
			return v, err
		}
		var answer *sdk.Error
		if errors.As(err, &answer) && !answer.Retryable {
			return v, err
		}
		select {
		case <-ctx.Done():
			return v, err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// noMark is how a program ends that cannot leave its mark.
const noMark = 97

// marking makes a program leave its key on the host before anything else, in a
// file of its own: appends to one file from two gVisor sandboxes can overwrite
// each other.
func marking(key, code string) string {
	return fmt.Sprintf(`m=$(mktemp /opt/workbench/packages/XXXXXXXXXX) && echo %s >>"$m" && sync "$m" || exit %d; %s`, key, noMark, code)
}

// submit submits until there is an answer.
func (w *world) submit(ctx context.Context, c *sdk.Client, session, key, code string, selected ...string) (string, error) {
	var artifacts []workbench.ArtifactSelect
	for _, id := range selected {
		artifacts = append(artifacts, workbench.ArtifactSelect{ID: id})
	}
	got, err := again(ctx, func() (sdk.Submitted, error) {
		began := time.Now().UnixNano()
		got, err := c.CreateSessionRun(ctx, session, sdk.CreateRun{Language: workbench.Bash, Code: marking(key, code), IdempotencyKey: key, Artifacts: artifacts})
		w.history.submission(session, key, code, began, got, err)
		return got, err
	})
	if err != nil {
		return "", err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.runs[got.ID] == nil {
		w.runs[got.ID] = &known{key: key, session: session, last: got.Run}
	}
	return got.ID, nil
}

// wait waits for a run's end.
func (w *world) wait(ctx context.Context, c *sdk.Client, run string) (workbench.Receipt, error) {
	return again(ctx, func() (workbench.Receipt, error) {
		began := time.Now().UnixNano()
		r, err := c.GetRun(ctx, run, 5*time.Second)
		if err != nil {
			return r, err
		}
		w.saw(r)
		w.history.look(r.SessionID, r.IdempotencyKey, stageOf(r.Run), began, time.Now().UnixNano())
		if !r.Status.Terminal() {
			return r, errors.New("not yet")
		}
		return r, nil
	})
}

// saw notes a receipt: terminal is final, output a prefix.
func (w *world) saw(r workbench.Receipt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.runs[r.ID]
	if r.Stdout != nil {
		if !strings.HasPrefix(*r.Stdout, known.stdout) {
			w.t.Errorf("P8: output of %s was %q and is now %q", r.ID, known.stdout, *r.Stdout)
		}
		known.stdout = *r.Stdout
	}
	if before := known.last.Status; before.Terminal() && before != r.Status {
		w.t.Errorf("P4: %s was %s and is now %s", r.ID, before, r.Status)
	}
	if !known.last.Status.Terminal() {
		known.last = r.Run
	}
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
