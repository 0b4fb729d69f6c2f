package faults_test

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// index is a Python index with one wheel of every name, which stands still once, at
// the page or in the middle of the wheel.
type index struct {
	*httptest.Server
	mu      sync.Mutex
	stands  string // "page", "wheel" or ""
	reached chan struct{}
}

func newIndex(t *testing.T) *index {
	t.Helper()
	x := &index{reached: make(chan struct{}, 1)}
	x.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.Trim(strings.TrimPrefix(r.URL.Path, "/simple/"), "/")
		file := name + "-1.0-py3-none-any.whl"
		if at, ok := strings.CutPrefix(r.URL.Path, "/files/"); ok {
			raw := wheelOf(strings.TrimSuffix(at, "-1.0-py3-none-any.whl"))
			w.Header().Set("Content-Length", fmt.Sprint(len(raw)))
			_, _ = w.Write(raw[:len(raw)/2])
			x.standAt(r.Context(), "wheel")
			_, _ = w.Write(raw[len(raw)/2:])
			return
		}
		x.standAt(r.Context(), "page")
		sum := sha256.Sum256(wheelOf(name))
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprintf(w, "<a href=\"/files/%s#sha256=%s\">%s</a>\n", file, hex.EncodeToString(sum[:]), file)
	}))
	t.Cleanup(x.Close)
	return x
}

func (x *index) standStill(where string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stands = where
}

// standAt waits until whoever asked is gone, if this is the place.
func (x *index) standAt(ctx context.Context, where string) {
	x.mu.Lock()
	here := x.stands == where
	if here {
		x.stands = ""
	}
	x.mu.Unlock()
	if here {
		x.reached <- struct{}{}
		<-ctx.Done()
	}
}

func wheelOf(name string) []byte {
	var raw bytes.Buffer
	z := zip.NewWriter(&raw)
	info := name + "-1.0.dist-info/"
	for _, f := range [][2]string{{name + ".py", "name = " + fmt.Sprintf("%q", name)}, {info + "METADATA", "Metadata-Version: 2.1\nName: " + name + "\nVersion: 1.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}, {info + "RECORD", ""}} {
		w, err := z.Create(f[0])
		if err == nil {
			_, err = w.Write([]byte(f[1]))
		}
		if err != nil {
			panic(err)
		}
	}
	if err := z.Close(); err != nil {
		panic(err)
	}
	return raw.Bytes()
}

// A server that dies while it installs packages leaves nothing half done: the run
// ends, and the next that asks gets the whole set.
func TestKillDuringAnInstallation(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	// The sets are where these tests' marks are otherwise.
	w := mustWorldAt(t, "", "-marks=", "-python-index="+x.URL+"/simple/")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	w.mustKey(ctx)
	admin, err := os.ReadFile(filepath.Join(w.dir, "admin"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again(ctx, func() (sdk.RuleSet, error) {
		return w.client(string(admin)).ChangeRules(ctx, sdk.ChangeRules{Put: []sdk.RuleText{{Name: "all", Text: `permit(principal, action == Action::"use", resource);`}}})
	}); err != nil {
		t.Fatal(err)
	}
	begun := 0
	installs := func(name string) string {
		begun++
		c := w.client(w.key)
		s, err := again(ctx, func() (workbench.Session, error) {
			return c.CreateAgentSession(ctx, sdk.CreateSession{Image: "standard"})
		})
		if err != nil {
			t.Fatalf("%v\n%s", err, w.log())
		}
		run, err := again(ctx, func() (sdk.Submitted, error) {
			return c.CreateSessionRun(ctx, s.ID, sdk.CreateRun{Language: workbench.Python, IdempotencyKey: fmt.Sprint("install", begun), Code: fmt.Sprintf("workbench.packages.install(%[1]q)\nimport %[1]s\nprint(%[1]s.name)", name)})
		})
		if err != nil {
			t.Fatalf("%v\n%s", err, w.log())
		}
		return run.ID
	}
	end := func(run string) workbench.Receipt {
		r, err := again(ctx, func() (workbench.Receipt, error) { return w.client(w.key).WaitForSessionRun(ctx, run) })
		if err != nil {
			t.Fatalf("%v\n%s", err, w.log())
		}
		return r
	}
	for i, where := range []string{"page", "wheel", "store.packages.before_commit", "store.packages.after_commit"} {
		name := fmt.Sprintf("half%d", i)
		if strings.HasPrefix(where, "store.") {
			w.stop()
			w.mustStart(where + "=exit")
		} else {
			x.standStill(where)
		}
		run := installs(name)
		if strings.HasPrefix(where, "store.") {
			select {
			case <-w.exited:
			case <-ctx.Done():
				t.Fatalf("%s: the server did not die\n%s", where, w.log())
			}
		} else {
			select {
			case <-x.reached:
			case <-ctx.Done():
				t.Fatalf("%s: the index was not asked\n%s", where, w.log())
			}
			w.kill()
		}
		w.mustStart("")
		if r := end(run); r.Status != workbench.StatusUnknown {
			t.Errorf("%s: the run whose server died is %s (%s): %s", where, r.Status, r.Reason, r.Output())
		}
		if r := end(installs(name)); r.Status != workbench.StatusSucceeded || r.Output() != name+"\n" {
			t.Errorf("%s: the next that installs is %s (%s) and said %q %q", where, r.Status, r.Reason, r.Output(), r.ErrorOutput())
		}
	}
	w.stop()
	if left, err := os.ReadDir(filepath.Join(w.dir, "data", "packages", "tmp")); err != nil || len(left) != 0 {
		t.Errorf("what is left half done: %v (%v)", left, err)
	}
	w.checkNothingLeft()
}
