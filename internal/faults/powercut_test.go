package faults_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/artifact"
	"github.com/workbenchdev/workbench/internal/blob"
	"github.com/workbenchdev/workbench/internal/faults/powercut"
	"github.com/workbenchdev/workbench/internal/seal"
	"github.com/workbenchdev/workbench/internal/server"
	"github.com/workbenchdev/workbench/internal/store"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// recording is the life of one server, with what would be left of it after each
// fsync, and what its client was told.
type recording struct {
	t        *testing.T
	dir      string
	r        *powercut.Recorder
	first    int // the moment from which the server answered
	key      string
	sessions []string
	told     []*promise
	now      *powercut.Moment // set by the client
}

// promise is something that the client was told, and that holds from then on.
type promise struct {
	what        string
	from, until int // moments; until 0: for ever
	holds       func(ctx context.Context, c *sdk.Client) error
}

// promise notes what the client has just been told.
func (rec *recording) promise(what string, holds func(ctx context.Context, c *sdk.Client) error) *promise {
	p := &promise{what: what, from: rec.r.Count(), holds: holds}
	rec.told = append(rec.told, p)
	return p
}

func mustOptions(t *testing.T, dir string) server.Options {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return server.Options{DataDir: dir, Images: images(), DefaultImage: "minimal", Log: slog.New(slog.DiscardHandler),
		Runsc: filepath.Join(root, "bin", "runsc"), Guest: filepath.Join(root, "bin", "guest")}
}

// mustRecord runs a server and a client on it. Without the fsyncs that skip
// names, if it is given, the server is a broken one.
func mustRecord(t *testing.T, skip func(path string) bool, client func(context.Context, *recording, *sdk.Client)) *recording {
	t.Helper()
	rec := &recording{t: t, dir: filepath.Join(t.TempDir(), "data")}
	var err error
	if rec.r, err = powercut.New(rec.dir, skip); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rec.r.Close() })
	o := mustOptions(t, rec.dir)
	o.Blobs, o.Store = rec.r.Blobs(), rec.r.Database()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	s, err := server.Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s.Handler())
	defer h.Close()
	defer func() {
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	rec.key = s.AdminKey()
	made, err := rec.client(h.URL).CreateKey(ctx, sdk.CreateKey{Kind: workbench.KeyDirect, Name: "t", Tenant: "acme", User: "ada"})
	if err != nil {
		t.Fatal(err)
	}
	rec.key = made.Secret
	rec.first = rec.r.Count()
	client(ctx, rec, rec.client(h.URL))
	return rec
}

func (rec *recording) client(url string) *sdk.Client {
	c, err := sdk.New(sdk.Options{BaseURL: url, Key: rec.key, Retries: -1})
	if err != nil {
		rec.t.Fatal(err)
	}
	return c
}

// must ends the test on an error.
func must[T any](t *testing.T, v T, err error) T {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (rec *recording) session(ctx context.Context, c *sdk.Client) string {
	s, err := c.CreateAgentSession(ctx, sdk.CreateSession{})
	must(rec.t, s, err)
	rec.sessions = append(rec.sessions, s.ID)
	rec.promise("session "+s.ID+" exists", func(ctx context.Context, c *sdk.Client) error {
		_, err := c.AgentSession(ctx, s.ID)
		return err
	})
	return s.ID
}

func (rec *recording) upload(ctx context.Context, c *sdk.Client, session string) (string, *promise) {
	content := make([]byte, 100_000)
	_, _ = rand.Read(content)
	a, err := c.UploadSessionArtifact(ctx, session, sdk.Upload{Name: "in.bin"}, bytes.NewReader(content))
	must(rec.t, a, err)
	return a.ID, rec.promise("upload "+a.ID+" is whole", func(ctx context.Context, c *sdk.Client) error {
		got, err := c.ReadSessionArtifact(ctx, a.ID)
		if err == nil && !bytes.Equal(got, content) {
			err = fmt.Errorf("%d other bytes", len(got))
		}
		return err
	})
}

func (rec *recording) submit(ctx context.Context, c *sdk.Client, session, code string, selected ...string) string {
	r := sdk.CreateRun{Language: workbench.Bash, Code: code}
	for _, id := range selected {
		r.Artifacts = append(r.Artifacts, workbench.ArtifactSelect{ID: id})
	}
	run, err := c.CreateSessionRun(ctx, session, r)
	must(rec.t, run, err)
	rec.promise("P1: run "+run.ID+" exists", func(ctx context.Context, c *sdk.Client) error {
		_, err := c.GetRun(ctx, run.ID, 0)
		return err
	})
	return run.ID
}

// ended waits for a run's end; nothing of its receipt changes from then on.
func (rec *recording) ended(ctx context.Context, c *sdk.Client, run string) workbench.Receipt {
	told, err := c.GetRun(ctx, run, 45*time.Second)
	must(rec.t, told, err)
	rec.promise(fmt.Sprintf("P4: run %s is %s", run, told.Status), func(ctx context.Context, c *sdk.Client) error {
		got, err := c.GetRun(ctx, run, 0)
		if err != nil {
			return err
		}
		if got.Status != told.Status || got.OutputRoot != told.OutputRoot || len(got.Artifacts) != len(told.Artifacts) || *got.Stdout != *told.Stdout {
			return fmt.Errorf("it is %s, root %s, %d files, output %q", got.Status, got.OutputRoot, len(got.Artifacts), *got.Stdout)
		}
		return nil
	})
	return told
}

func (rec *recording) remove(ctx context.Context, c *sdk.Client, upload string, whole *promise) {
	whole.until = rec.r.Count()
	_, err := c.DeleteSessionArtifact(ctx, upload)
	must(rec.t, upload, err)
	rec.promise("upload "+upload+" is deleted", func(ctx context.Context, c *sdk.Client) error {
		if _, err := c.ReadSessionArtifact(ctx, upload); !workbench.HasCode(err, workbench.CodeArtifactDeleted) {
			return fmt.Errorf("reading it: %w", err)
		}
		return nil
	})
}

// everything is a client that makes the server write everything it keeps.
func everything(ctx context.Context, rec *recording, c *sdk.Client) {
	a := rec.session(ctx, c)
	up, whole := rec.upload(ctx, c, a)
	first := rec.submit(ctx, c, a, `head -c 300000 /dev/urandom >big.bin; sha256sum <big.bin; cp big.bin kept.bin; workbench save kept.bin; wc -c <in.bin`, up)
	receipt := rec.ended(ctx, c, first)
	sum, _, _ := strings.Cut(*receipt.Stdout, " ")
	rec.promise("the workspace of "+first+" is whole", func(ctx context.Context, c *sdk.Client) error {
		got, err := c.ReadRunFile(ctx, first, "big.bin")
		if err == nil && digest(got) != sum {
			err = fmt.Errorf("big.bin has %d other bytes", len(got))
		}
		return err
	})
	rec.ended(ctx, c, rec.submit(ctx, c, a, "rm big.bin; for i in 1 2 3; do echo $i; sleep 0.05; done; exit 3"))
	rec.remove(ctx, c, up, whole)
	unused, whole := rec.upload(ctx, c, a) // in no commit, so its blob goes too
	rec.remove(ctx, c, unused, whole)
	b := rec.session(ctx, c)
	rec.ended(ctx, c, rec.submit(ctx, c, b, "echo hello >hello.txt"))
	long, waiting := rec.submit(ctx, c, a, "sleep 3"), rec.submit(ctx, c, a, "echo never")
	_, err := c.CloseAgentSession(ctx, a)
	must(rec.t, a, err)
	rec.promise("session "+a+" is closed", func(ctx context.Context, c *sdk.Client) error {
		s, err := c.AgentSession(ctx, a)
		if err == nil && s.State != workbench.SessionClosed {
			err = fmt.Errorf("it is %s", s.State)
		}
		return err
	})
	rec.ended(ctx, c, long)
	rec.ended(ctx, c, waiting)
}

// violations starts a server on what was left at a moment and says which
// promises are broken. index is the moment's.
func (rec *recording) violations(index int, m powercut.Moment) []string {
	t := rec.t
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	if err := rec.r.Restore(m, dir); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	s, err := server.Open(ctx, mustOptions(t, dir))
	if err != nil {
		return []string{fmt.Sprintf("the server does not start: %v", errors.Join(err, errors.Unwrap(err)))}
	}
	h := httptest.NewServer(s.Handler())
	c := rec.client(h.URL)
	var found []string
	for _, p := range rec.told {
		if p.from > index || p.until != 0 && p.until <= index {
			continue
		}
		if err := p.holds(ctx, c); err != nil {
			found = append(found, fmt.Sprintf("%s: %v", p.what, err))
		}
	}
	for _, session := range rec.sessions {
		found = append(found, wholeSession(ctx, c, session)...)
	}
	h.Close()
	if err := s.Close(ctx); err != nil {
		found = append(found, fmt.Sprintf("the server does not stop: %v", err))
	}
	found = append(found, danglingBlobs(ctx, rec.t, dir)...)
	if err := os.RemoveAll(filepath.Dir(dir)); err != nil {
		t.Fatal(err)
	}
	return found
}

// wholeSession: what the server lists of a session, if it knows it, is whole,
// and its runs come to an end.
func wholeSession(ctx context.Context, c *sdk.Client, session string) []string {
	var found []string
	runs, err := c.ListRuns(ctx, sdk.RunFilter{SessionID: session}, workbench.Page{})
	if err != nil && !workbench.HasCode(err, workbench.CodeNotFound) {
		found = append(found, fmt.Sprintf("runs of %s: %v", session, err))
	}
	for _, r := range runs.Items {
		if got, err := c.GetRun(ctx, r.ID, 45*time.Second); err != nil || !got.Status.Terminal() {
			found = append(found, fmt.Sprintf("P14: run %s is %s, %v", r.ID, got.Status, err))
		}
	}
	files, err := c.ListSessionArtifacts(ctx, session, workbench.Page{})
	if err != nil && !workbench.HasCode(err, workbench.CodeNotFound) {
		found = append(found, fmt.Sprintf("files of %s: %v", session, err))
	}
	for _, a := range files.Items {
		if got, err := c.ReadSessionArtifact(ctx, a.ID); err != nil || digest(got) != a.SHA256 {
			found = append(found, fmt.Sprintf("P9: listed file %s (%s) is not whole: %v", a.ID, a.Name, err))
		}
	}
	return found
}

// mustSweep does what a server does once the grace of unreferenced blobs is
// over.
func mustSweep(t *testing.T, dir string, so store.Options, bo ...blob.Option) (found []string) {
	t.Helper()
	db, err := store.Open(t.Context(), filepath.Join(dir, "workbench.db"), so)
	must(t, db, err)
	masters, err := seal.LoadMasters(dir, "")
	must(t, masters, err)
	disk, err := blob.OpenDisk(filepath.Join(dir, "blobs"), bo...)
	must(t, disk, err)
	files := artifact.New(disk, seal.New(masters, db), db)
	err = errors.Join(files.Sweep(t.Context(), time.Now().Add(2*time.Hour)), disk.Close(), db.Close())
	if err != nil {
		found = append(found, fmt.Sprintf("sweep: %v", err))
	}
	return found
}

// danglingBlobs: after a sweep the blobs on the disk are those that something
// refers to, with all their bytes.
func danglingBlobs(ctx context.Context, t *testing.T, dir string) []string {
	t.Helper()
	found := mustSweep(t, dir, store.Options{})
	raw, err := sql.Open("sqlite", filepath.Join(dir, "workbench.db"))
	must(t, raw, err)
	defer func() { _ = raw.Close() }()
	rows, err := raw.QueryContext(ctx, `SELECT b.id, b.size, EXISTS (SELECT 1 FROM blob_refs r WHERE r.blob_id = b.id) FROM blobs b
		WHERE NOT EXISTS (SELECT 1 FROM inline_blobs i WHERE i.blob_id = b.id)`)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	known := map[string]bool{}
	for rows.Next() {
		var id string
		var size int64
		var referred bool
		if err := rows.Scan(&id, &size, &referred); err != nil {
			t.Fatal(err)
		}
		known[id] = true
		at, _ := filepath.Glob(filepath.Join(dir, "blobs", "??", id))
		if !referred {
			found = append(found, "P9: blob "+id+" was not swept")
		}
		if len(at) != 1 {
			found = append(found, "P9: blob "+id+" is referred to and gone")
		} else if info, err := os.Stat(at[0]); err != nil || info.Size() < size {
			found = append(found, fmt.Sprintf("P9: blob %s is cut: %v", id, err))
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	left, _ := filepath.Glob(filepath.Join(dir, "blobs", "??", "*"))
	for _, path := range left {
		if !known[filepath.Base(path)] {
			found = append(found, "P9: blob "+filepath.Base(path)+" is nobody's and stays for ever")
		}
	}
	return found
}

// The power goes at every fsync of a server's life: what was acknowledged
// before is there when it comes back, and what is listed is whole.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	rec := mustRecord(t, nil, everything)
	served := rec.r.Count()
	if found := mustSweep(t, rec.dir, rec.r.Database(), rec.r.Blobs()...); found != nil {
		t.Fatal(found)
	}
	moments := rec.r.Moments()
	seed := uint64(time.Now().UnixNano())
	order := mathrand.New(mathrand.NewPCG(seed, 0)).Perm(served - rec.first)
	for i := served; i < len(moments); i++ { // the sweep's, all of them
		order = append([]int{i - rec.first}, order...)
	}
	end := time.Now().Add(20 * time.Second) // as many as there is time for, and ten
	checked, synced := 0, map[string]int{}
	for _, i := range order {
		if os.Getenv("WORKBENCH_SOAK") == "" && checked >= 10 && time.Now().After(end) {
			break
		}
		i += rec.first
		checked++
		synced[filepath.Dir(moments[i].After)]++
		for _, problem := range rec.violations(i, moments[i]) {
			t.Errorf("moment %d, after the fsync of %s: %s", i, moments[i].After, problem)
		}
	}
	t.Logf("seed %d: %d promises at %d of %d moments, after fsyncs in %v", seed, len(rec.told), checked, len(moments)-rec.first, synced)
	if checked < 10 {
		t.Errorf("only %d moments were checked", checked)
	}
}

// A server that leaves out an fsync is caught.
func TestPowerCutBites(t *testing.T) {
	t.Parallel()
	blobs := "blobs" + string(filepath.Separator)
	for name, c := range map[string]struct {
		skip func(path string) bool
		says string
	}{
		"of a blob":             {func(path string) bool { return strings.HasPrefix(path, blobs+"tmp") }, "is whole"},
		"of a blob's directory": {func(path string) bool { return strings.HasPrefix(path, blobs) && !strings.HasPrefix(path, blobs+"tmp") }, "is whole"},
		"of the database's log": {func(path string) bool { return path == "workbench.db-wal" }, "exists"},
	} {
		t.Run(name, func(t *testing.T) {
			rec := mustRecord(t, c.skip, func(ctx context.Context, rec *recording, c *sdk.Client) {
				rec.upload(ctx, c, rec.session(ctx, c))
				m := rec.r.Now()
				rec.now = &m
			})
			found := rec.violations(len(rec.r.Moments()), *rec.now)
			if !strings.Contains(strings.Join(found, "\n"), c.says) {
				t.Errorf("found %q, want something that %q no more", found, c.says)
			}
		})
	}
	t.Run("of a removal", func(t *testing.T) {
		sweeping := false
		rec := mustRecord(t, func(path string) bool { return sweeping && strings.HasPrefix(path, blobs) }, func(ctx context.Context, rec *recording, c *sdk.Client) {
			up, whole := rec.upload(ctx, c, rec.session(ctx, c))
			rec.remove(ctx, c, up, whole)
		})
		sweeping = true
		if found := mustSweep(t, rec.dir, rec.r.Database(), rec.r.Blobs()...); found != nil {
			t.Fatal(found)
		}
		found := rec.violations(rec.r.Count(), rec.r.Now())
		if len(found) != 1 || !strings.Contains(found[0], "stays for ever") {
			t.Errorf("found %q, want a blob that stays for ever", found)
		}
	})
}
