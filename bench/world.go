package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/image"
	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/server"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// hellos is the program of each language. Every contender must print helloText.
var hellos = map[workbench.Language]string{
	workbench.Python:     `print("hello")`,
	workbench.JavaScript: `console.log("hello")`,
	workbench.Bash:       `echo hello`,
}

const helloText = "hello\n"

// raced are the languages in the order of the report.
var raced = []workbench.Language{workbench.Python, workbench.JavaScript, workbench.Bash}

// world is a whole server in this process, reached over a loopback port as a
// client would.
type world struct {
	server *server.Server
	image  image.Image
	driver *watched // the server's own, for measuring only; nil unless its setting says so
	http   *http.Server
	url    string
	client *sdk.Client
	secret string
	raw    *http.Client
	log    *os.File
	warm   int // sandboxes kept ready

	live  map[workbench.Language]*liveSession
	parts map[workbench.Language]*parts
}

// liveSession is a session whose sandbox runs.
type liveSession struct{ id, sandbox string }

// warmSandboxes is what `workbench serve` keeps ready by default.
const warmSandboxes = 2

// setting is how a world differs from the others of the bench.
type setting struct {
	warm         int           // sandboxes kept ready
	suspendAfter time.Duration // below 0: never
	watched      bool          // its sandboxes are measured; none of them can be checkpointed
	pythonIndex  string        // where it installs packages from
	secret       string        // key made in an earlier world on the same directory; "" makes one
}

func openWorld(ctx context.Context, o options, dir string, how setting) (*world, error) {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	w := &world{log: log, raw: sdk.DefaultHTTP(), warm: how.warm, secret: how.secret,
		live: map[workbench.Language]*liveSession{}, parts: map[workbench.Language]*parts{}}
	settings := server.Options{
		DataDir: dataIn(dir), Images: o.images, DefaultImage: o.image,
		Runsc: filepath.Join(o.bin, "runsc"), Guest: filepath.Join(o.bin, "guest"),
		Log:  slog.New(slog.NewTextHandler(log, nil)),
		Warm: map[string]int{workbench.DefaultSize: how.warm}, SuspendAfter: how.suspendAfter,
		PythonIndex: how.pythonIndex,
	}
	if how.watched {
		settings.WrapDriver = func(d sandbox.Driver) sandbox.Driver {
			w.driver = &watched{Driver: d, last: map[string]time.Time{}}
			return w.driver
		}
	}
	if w.server, err = server.Open(ctx, settings); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	if err := w.begin(ctx, o); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func dataIn(dir string) string { return filepath.Join(dir, "data") }

// begin listens and makes a user's key.
func (w *world) begin(ctx context.Context, o options) (err error) {
	if w.image, err = w.server.Images().Get(ctx, o.image); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	w.url = "http://" + listener.Addr().String()
	w.http = &http.Server{Handler: w.server.Handler(), ReadHeaderTimeout: time.Minute}
	go func() { _ = w.http.Serve(listener) }() // ends with close
	if w.secret == "" {
		admin, err := sdk.New(sdk.Options{BaseURL: w.url, Key: w.server.AdminKey()})
		if err != nil {
			return err
		}
		key, err := admin.CreateKey(ctx, sdk.CreateKey{Kind: workbench.KeyDirect, Name: "bench", Tenant: "bench", User: "bench"})
		if err != nil {
			return err
		}
		w.secret = key.Secret
	}
	w.client, err = sdk.New(sdk.Options{BaseURL: w.url, Key: w.secret})
	return err
}

// openLives brings one session per language to life.
func (w *world) openLives(ctx context.Context) (err error) {
	for _, l := range raced {
		if w.live[l], err = w.openLive(ctx, l, ""); err != nil {
			return err
		}
		w.parts[l] = &parts{}
	}
	return nil
}

// openLive makes a session and its sandbox, which it finds out.
func (w *world) openLive(ctx context.Context, l workbench.Language, image string) (*liveSession, error) {
	id, err := w.session(ctx, sdk.CreateSession{Image: image})
	if err != nil {
		return nil, err
	}
	if err := w.refilled(ctx); err != nil { // or the last one spoken to may be another
		return nil, err
	}
	if _, err := w.hello(ctx, id, l); err != nil {
		return nil, err
	}
	if err := w.refilled(ctx); err != nil {
		return nil, err
	}
	if _, err := w.hello(ctx, id, l); err != nil {
		return nil, err
	}
	return &liveSession{id: id, sandbox: w.driver.latest()}, nil
}

// metrics is the server's own account.
func (w *world) metrics(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/metrics", nil)
	if err != nil {
		return "", err
	}
	res, err := w.raw.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return "", err
	}
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("metrics: status %d", res.StatusCode)
	}
	return string(raw), nil
}

// refilled waits until no sandbox is being made ready.
func (w *world) refilled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		ready, err := w.metric(ctx, "workbench_warm_sandboxes")
		if err != nil || int(ready) == w.warm {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return errors.New("the warm sandboxes are not ready in time")
		}
	}
}

func (w *world) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	if w.http != nil {
		w.raw.CloseIdleConnections()
		errs = append(errs, w.http.Close())
	}
	return errors.Join(append(errs, w.server.Close(ctx), w.log.Close())...)
}

// submit posts a run and answers with its receipt: at once (wait 0, status
// 202), or when it has ended.
func (w *world) submit(ctx context.Context, session string, run sdk.CreateRun, wait time.Duration) (workbench.Receipt, error) {
	var receipt workbench.Receipt
	body, err := json.Marshal(run)
	if err != nil {
		return receipt, err
	}
	url, want := w.url+"/v1/workbench/sessions/"+session+"/runs", http.StatusAccepted
	if wait > 0 {
		url, want = fmt.Sprintf("%s?waitMs=%d", url, wait.Milliseconds()), http.StatusOK
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return receipt, err
	}
	req.Header.Set("Authorization", "Bearer "+w.secret)
	req.Header.Set("Content-Type", "application/json")
	res, err := w.raw.Do(req)
	if err != nil {
		return receipt, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return receipt, err
	}
	if res.StatusCode != want {
		return receipt, fmt.Errorf("status %d: %s", res.StatusCode, answer)
	}
	return receipt, json.Unmarshal(answer, &receipt)
}

// parts sums where the time of a session's runs went.
type parts struct {
	n                                         int
	total, dispatch, sandbox, program, replay time.Duration
}

func (p *parts) add(total time.Duration, r workbench.Receipt) {
	if r.StartedAt == nil || r.FinishedAt == nil {
		return
	}
	p.n++
	p.total += total
	p.dispatch += r.StartedAt.Sub(r.CreatedAt)
	p.sandbox += r.FinishedAt.Sub(*r.StartedAt)
	p.program += time.Duration(r.DurationMs) * time.Millisecond
	p.replay += total - r.FinishedAt.Sub(r.CreatedAt)
}

// split is the mean of each part, in milliseconds.
type split struct {
	Language   string  `json:"language"`
	TotalMs    float64 `json:"totalMs"`
	DispatchMs float64 `json:"dispatchMs"` // admitted → about to leave for the guest
	SandboxMs  float64 `json:"sandboxMs"`  // → program ended, workspace committed
	ProgramMs  float64 `json:"programMs"`  // of it: start and run of the interpreter, in whole milliseconds
	RestMs     float64 `json:"restMs"`     // request, admission, settlement, reply
}

func (w *world) split() []split {
	var all []split
	for _, l := range raced {
		p := w.parts[l]
		if p.n == 0 {
			continue
		}
		mean := func(d time.Duration) float64 { return ms(d / time.Duration(p.n)) }
		all = append(all, split{Language: string(l), TotalMs: mean(p.total), DispatchMs: mean(p.dispatch),
			SandboxMs: mean(p.sandbox), ProgramMs: mean(p.program), RestMs: mean(p.replay)})
	}
	return all
}
