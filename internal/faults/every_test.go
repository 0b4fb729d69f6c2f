package faults_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// elsewhere are the failpoints that no server passes within minutes, each with
// the test that ends a process there, and what that test says of it.
var elsewhere = map[string]struct{ file, says string }{
	"blob.delete.before":                    {"../artifact/crash_test.go", `"blob.delete.before"`},
	"artifact.sweep.after_delete":           {"../artifact/crash_test.go", `"artifact.sweep.after_delete"`},
	"store.forget_blob.before_commit":       {"../artifact/crash_test.go", `"store.forget_blob.before_commit"`},
	"store.forget_blob.after_commit":        {"../artifact/crash_test.go", `"store.forget_blob.after_commit"`},
	"store.blob_refs.before_commit":         {"../store/crash_test.go", `{"blob_refs", "1"`},
	"store.blob_refs.after_commit":          {"../store/crash_test.go", `{"blob_refs", "1"`},
	"store.release_blobs.before_commit":     {"../store/crash_test.go", `{"release_blobs", "1"`},
	"store.release_blobs.after_commit":      {"../store/crash_test.go", `{"release_blobs", "1"`},
	"store.describe_artifact.before_commit": {"../store/crash_test.go", `{"describe_artifact", "1"`},
	"store.describe_artifact.after_commit":  {"../store/crash_test.go", `{"describe_artifact", "1"`},
	"store.abandon_artifact.before_commit":  {"../store/crash_test.go", `{"abandon_artifact", "1"`},
	"store.abandon_artifact.after_commit":   {"../store/crash_test.go", `{"abandon_artifact", "1"`},
	"store.expire_artifact.before_commit":   {"../store/crash_test.go", `{"expire_artifact", "1"`},
	"store.expire_artifact.after_commit":    {"../store/crash_test.go", `{"expire_artifact", "1"`},
	"store.packages.before_commit":          {"../store/crash_test.go", `{"packages", "1"`},
	"store.packages.after_commit":           {"../store/crash_test.go", `{"packages", "1"`},
	"store.meter.before_commit":             {"../store/crash_test.go", `{"meter", "1"`},
	"store.meter.after_commit":              {"../store/crash_test.go", `{"meter", "1"`},
	"store.judge.before_commit":             {"series_test.go", `"store.judge."+point`},
	"store.judge.after_commit":              {"series_test.go", `"store.judge."+point`},
	"store.delete_series.before_commit":     {"series_test.go", `"store.delete_series."+point`},
	"store.delete_series.after_commit":      {"series_test.go", `"store.delete_series."+point`},
	"store.publish.before_commit":           {"series_test.go", `"store.publish."+point`},
	"store.publish.after_commit":            {"series_test.go", `"store.publish."+point`},
}

// points are the failpoints at which servers still have to die. Several worlds
// share them.
type points struct {
	mu     sync.Mutex
	all    []string
	killed map[string]bool
}

// left are those that no server has died at. w's own deaths are noted first.
func (p *points) left(w *world) []string {
	raw, _ := os.ReadFile(filepath.Join(w.dir, "failpoints")) // none before the first hit
	p.mu.Lock()
	defer p.mu.Unlock()
	for line := range strings.Lines(string(raw)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "exit "); ok {
			p.killed[name] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(p.all), func(name string) bool { return p.killed[name] })
}

// The server is killed at every failpoint there is in the source, once: each of
// its lives ends at the first one that it comes to and that no other has ended
// at, while the clients go on. make soak goes through them one by one, too, at
// several hits.
func TestKillAtEveryFailpoint(t *testing.T) {
	p := &points{all: mustFailpoints(t), killed: map[string]bool{}}
	if len(p.all) < 100 {
		t.Fatalf("the source has only %d failpoints: %v", len(p.all), p.all)
	}
	t.Run("while", func(t *testing.T) {
		t.Run("runs come and go", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.killedAtEach(p, func(ctx context.Context, name string) error { return w.scenario(ctx, name, nil) }, w.check)
		})
		t.Run("sessions live", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "-warm=1", "-suspend-after=400ms")
			w.killedAtEach(p, w.lifeOf, w.checkRuns)
		})
		t.Run("tools are called", func(t *testing.T) {
			t.Parallel()
			c := newCounted(t)
			w := newWorld(t, "-webhook="+c.URL+"/hook")
			w.killedAtEach(p, w.toolsOf(c), w.checkCalls(c))
		})
	})
	for name, other := range elsewhere {
		if raw, err := os.ReadFile(other.file); err != nil || !strings.Contains(string(raw), other.says) {
			t.Errorf("%s ends no process at %s (%v)", other.file, name, err)
		}
		p.killed[name] = true
	}
	if left := p.left(newWorld(t)); len(left) > 0 {
		t.Errorf("no server died at %d failpoints: %v", len(left), left)
	}
}

// killedAtEach repeats what clients do until a round ends no server.
func (w *world) killedAtEach(p *points, round func(context.Context, string) error, check func(context.Context)) {
	t := w.t
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	w.dieAt = func() string {
		var all []string
		for _, name := range p.left(w) {
			all = append(all, name+"=exit")
		}
		return strings.Join(all, ",")
	}
	w.mustStart("")
	t.Cleanup(func() { w.on(t).stop() })
	watch, stopWatching := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() { w.supervise(watch) })
	w.mustKey(ctx)
	for n := 0; ; n++ {
		before := w.started()
		if err := round(ctx, fmt.Sprintf("%d", n)); err != nil {
			t.Errorf("round %d: %v\n%s", n, err, w.log())
			break
		}
		t.Logf("round %d: %d deaths, %d failpoints are left", n, w.started()-before, len(p.left(w)))
		if w.started() == before {
			break
		}
	}
	stopWatching()
	watcher.Wait()
	w.dieAt = nil
	w.kill() // at its next start it lives
	w.mustStart("")
	check(ctx)
	w.closeAll(ctx)
	w.stop()
	w.checkNothingLeft()
	w.checkDirectories()
	w.mustStart("") // for the cleanup
}

// lifeOf is what a client does with sessions besides running code in them.
func (w *world) lifeOf(ctx context.Context, name string) error {
	c := w.client(w.key)
	newLife := func(name string, keep bool) *life {
		return &life{w: w, c: c, name: name, keep: keep, random: rand.New(rand.NewPCG(1, 2)),
			files: map[string]string{}, trees: map[string]tree{}, cells: map[workbench.Language]*counter{}}
	}
	kept, lost := newLife("kept"+name, true), newLife("lost"+name, false)
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"a session that ends by itself", func(ctx context.Context) error { return w.shortLife(ctx, c, name) }},
		{"create", kept.create}, {"write", kept.write}, {"configure", kept.configure}, {"run", kept.run},
		{"python cell", kept.pythonCell}, {"idle", kept.idle}, {"python cell", kept.pythonCell},
		{"create another", lost.create}, {"bash cell", lost.bashCell}, {"idle", lost.idle}, {"bash cell", lost.bashCell},
		{"lose the sandboxes", func(context.Context) error { return w.killSandboxes() }}, {"bash cell", lost.bashCell}, {"run", lost.run},
		{"background", kept.background}, {"fork", kept.fork}, {"roll back", kept.rollBack}, {"download", kept.download},
		{"forget", kept.forget}, {"retain", kept.retain}, {"key", w.passingKey}, {"look", kept.look}, {"close", kept.close}, {"close another", lost.close},
	} {
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// shortLife makes a session that keeps what a run in it makes when its time is
// over, which nobody waits for.
func (w *world) shortLife(ctx context.Context, c *sdk.Client, name string) error {
	ttl := int64(12_000)
	s, err := again(ctx, func() (workbench.Session, error) {
		return c.CreateAgentSession(ctx, sdk.CreateSession{TTLMs: &ttl, KeepAtExpiry: []string{"**"}})
	})
	if err != nil {
		return err
	}
	_, err = w.submit(ctx, c, s.ID, "short-"+name, "echo one > one; echo two > two")
	if workbench.HasCode(err, workbench.CodeSessionExpired) {
		return nil
	}
	return err
}

// killSandboxes ends the sandboxes of the world's server from outside.
func (w *world) killSandboxes() error {
	instance, err := os.ReadFile(filepath.Join(w.dir, "data", "instance"))
	if err != nil {
		return err
	}
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range procs {
		line, _ := os.ReadFile(path)
		if !bytes.HasPrefix(line, []byte("runsc-sandbox")) || !bytes.Contains(line, bytes.TrimSpace(instance)) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return err
}

// configure makes a revision.
func (l *life) configure(ctx context.Context) error {
	agent := l.next()
	_, err := again(ctx, func() (workbench.Session, error) {
		return l.c.ConfigureAgentSession(ctx, l.id, sdk.ConfigureSession{Agent: &agent})
	})
	return err
}

// download reads a commit whole.
func (l *life) download(ctx context.Context) error {
	commit, _ := l.anyTree()
	if commit == "" {
		return nil
	}
	_, err := again(ctx, func() (int64, error) { return l.c.DownloadCommit(ctx, commit, io.Discard) })
	return err
}

// forget restarts a context and deletes it.
func (l *life) forget(ctx context.Context) error {
	if _, err := again(ctx, func() (workbench.Context, error) {
		return l.c.RestartContext(ctx, l.id, string(workbench.Python), true)
	}); err != nil {
		return err
	}
	_, err := again(ctx, func() (workbench.Context, error) { return l.c.DeleteContext(ctx, l.id, string(workbench.Python)) })
	if workbench.HasCode(err, workbench.CodeContextNotFound) { // deleted, and the answer was lost
		err = nil
	}
	delete(l.cells, workbench.Python)
	return err
}

// retain keeps a file, and deletes it.
func (l *life) retain(ctx context.Context) error {
	up, err := again(ctx, func() (workbench.Artifact, error) {
		return l.c.UploadSessionArtifact(ctx, l.id, sdk.Upload{Name: "kept.txt"}, strings.NewReader(l.name))
	})
	if err != nil {
		return err
	}
	_, err = again(ctx, func() (workbench.Artifact, error) { return l.c.DeleteSessionArtifact(ctx, up.ID) })
	if workbench.HasCode(err, workbench.CodeArtifactDeleted) {
		err = nil
	}
	return err
}

func (l *life) close(ctx context.Context) error {
	_, err := again(ctx, func() (workbench.Session, error) { return l.c.CloseAgentSession(ctx, l.id) })
	return err
}

// passingKey makes a key and revokes it.
func (w *world) passingKey(ctx context.Context) error {
	secret, err := os.ReadFile(filepath.Join(w.dir, "admin"))
	if err != nil {
		return err
	}
	admin := w.client(string(secret))
	made, err := again(ctx, func() (sdk.CreatedKey, error) {
		return admin.CreateKey(ctx, sdk.CreateKey{Kind: workbench.KeyDirect, Name: "passing", Tenant: "acme", User: "ada"})
	})
	if err != nil {
		return err
	}
	_, err = again(ctx, func() (workbench.Key, error) { return admin.RevokeKey(ctx, made.ID) })
	return err
}

// mustFailpoints reads the names of all failpoints from the source of the
// server: what failpoint.Hit is given, and the two of every write of the store.
func mustFailpoints(t *testing.T) []string {
	t.Helper()
	names, built := map[string]bool{}, 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			f, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			from, _ := f.X.(*ast.Ident)
			switch {
			case from != nil && from.Name == "failpoint" && f.Sel.Name == "Hit":
				if name, ok := literal(call.Args[0]); ok {
					names[name] = true
				} else {
					built++
				}
			case from != nil && from.Name == "db" && f.Sel.Name == "write" && len(call.Args) == 3 && filepath.Base(filepath.Dir(path)) == "store":
				name, ok := literal(call.Args[1])
				if !ok {
					t.Errorf("%s: a write without a name of its own", path)
				}
				names["store."+name+".before_commit"], names["store."+name+".after_commit"] = true, true
			}
			return true
		})
		return nil
	})
	if err = errors.Join(err); err != nil {
		t.Fatal(err)
	}
	if built != 2 {
		t.Errorf("%d failpoints have names that are made up as they are passed, want the two of every write", built)
	}
	return slices.Sorted(maps.Keys(names))
}

func literal(e ast.Expr) (string, bool) {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(l.Value)
	return s, err == nil
}
