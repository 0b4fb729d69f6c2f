package checkpoint_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/blob"
	"github.com/workbenchdev/workbench/internal/checkpoint"
	"github.com/workbenchdev/workbench/internal/seal"
	"github.com/workbenchdev/workbench/internal/store"
)

// world is a store of checkpoints over a real database and disk.
type world struct {
	t      testing.TB
	dir    string
	db     *store.DB
	blobs  *blob.Disk
	store  *checkpoint.Store
	tenant string
}

func mustWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir()}
	var err error
	w.db, err = store.Open(t.Context(), filepath.Join(w.dir, "wb.db"), store.Options{})
	w.must(err)
	t.Cleanup(func() { _ = w.db.Close() })
	w.blobs, err = blob.OpenDisk(filepath.Join(w.dir, "blobs"))
	w.must(err)
	t.Cleanup(func() { _ = w.blobs.Close() })
	masters, err := seal.NewMasters(bytes.Repeat([]byte{7}, 32))
	w.must(err)
	w.store = checkpoint.New(w.blobs, seal.New(masters, w.db), w.db)
	w.tenant = w.mustTenant("acme")
	return w
}

func (w *world) mustTenant(name string) string {
	w.t.Helper()
	project, err := w.db.EnsureProject(w.t.Context(), "default")
	w.must(err)
	tenant, err := w.db.EnsureTenant(w.t.Context(), project.ID, name)
	w.must(err)
	return tenant.ID
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) binding() checkpoint.Binding {
	return checkpoint.Binding{TenantID: w.tenant, SessionID: "ses_one", Generation: 3}
}

// marker is in every checkpoint of these tests and must be in no file on disk.
const marker = "a variable's value, in the clear"

// mustDir makes a directory as a driver leaves one.
func mustDir(t testing.TB) (string, map[string][]byte) {
	t.Helper()
	random := make([]byte, 3<<20)
	_, _ = rand.Read(random)
	files := map[string][]byte{
		"checkpoint.img": []byte(strings.Repeat(marker+"\n", 4000)),
		"pages.img":      slices.Concat(random, make([]byte, 5<<20), []byte(marker)),
		"pages_meta.img": {},
		"workbench.json": []byte(`{"version":1}`),
	}
	dir := t.TempDir()
	for name, raw := range files {
		if err := os.WriteFile(filepath.Join(dir, name), raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, files
}

func (w *world) mustHold(dir string, files map[string][]byte) {
	w.t.Helper()
	entries, err := os.ReadDir(dir)
	w.must(err)
	if len(entries) != len(files) {
		w.t.Errorf("%d files came back, want %d", len(entries), len(files))
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Equal(got, want) {
			w.t.Errorf("%s came back with %d bytes, %v; want the %d it had", name, len(got), err, len(want))
		}
	}
}

func (w *world) mustSeal(b checkpoint.Binding) (checkpoint.Sealed, map[string][]byte) {
	w.t.Helper()
	dir, files := mustDir(w.t)
	sealed, err := w.store.Seal(w.t.Context(), b, dir)
	w.must(err)
	return sealed, files
}

func TestSealAndOpen(t *testing.T) {
	w := mustWorld(t)
	sealed, files := w.mustSeal(w.binding())
	if sealed.Bytes != int64(4000*(len(marker)+1)+8<<20+len(marker)+13) || sealed.Stored > 3<<20+64<<10 {
		t.Errorf("sealed as %+v; want all bytes, and the zeros and repetitions compressed", sealed)
	}
	into := t.TempDir()
	w.must(w.store.Open(t.Context(), w.binding(), sealed.BlobID, into))
	w.mustHold(into, files)
	w.must(filepath.WalkDir(w.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		raw, err := os.ReadFile(path)
		if bytes.Contains(raw, []byte(marker)) {
			t.Errorf("%s holds plaintext", path)
		}
		return err
	}))
}

func TestOpenRefuses(t *testing.T) {
	w := mustWorld(t)
	sealed, _ := w.mustSeal(w.binding())
	other, _ := w.mustSeal(checkpoint.Binding{TenantID: w.tenant, SessionID: "ses_two", Generation: 3})
	for name, c := range map[string]struct {
		change func(b *checkpoint.Binding)
		blob   string
	}{
		"another session":    {change: func(b *checkpoint.Binding) { b.SessionID = "ses_two" }},
		"another generation": {change: func(b *checkpoint.Binding) { b.Generation++ }},
		"another tenant":     {change: func(b *checkpoint.Binding) { b.TenantID = w.mustTenant("umbrella") }},
		"another blob":       {change: func(*checkpoint.Binding) {}, blob: other.BlobID},
		"no blob":            {change: func(*checkpoint.Binding) {}, blob: "k_none"},
	} {
		t.Run(name, func(t *testing.T) {
			b, id := w.binding(), sealed.BlobID
			c.change(&b)
			if c.blob != "" {
				id = c.blob
			}
			into := t.TempDir()
			if err := w.store.Open(t.Context(), b, id, into); !workbench.HasCode(err, workbench.CodeCorrupt) {
				t.Errorf("got %v, want content_corrupt", err)
			}
			if left, _ := os.ReadDir(into); len(left) != 0 {
				t.Errorf("%d files came out", len(left))
			}
		})
	}
	t.Run("one bit", func(t *testing.T) {
		for _, at := range []int64{40, 100_000, sealed.Stored - 1} {
			w.mustFlip(sealed.BlobID, at)
			if err := w.store.Open(t.Context(), w.binding(), sealed.BlobID, t.TempDir()); !workbench.HasCode(err, workbench.CodeCorrupt) {
				t.Errorf("byte %d: got %v, want content_corrupt", at, err)
			}
			w.mustFlip(sealed.BlobID, at)
		}
		w.must(w.store.Open(t.Context(), w.binding(), sealed.BlobID, t.TempDir()))
	})
	t.Run("cut short", func(t *testing.T) {
		w.must(os.Truncate(w.mustFind(sealed.BlobID), sealed.Stored/2))
		if err := w.store.Open(t.Context(), w.binding(), sealed.BlobID, t.TempDir()); !workbench.HasCode(err, workbench.CodeCorrupt) {
			t.Errorf("got %v, want content_corrupt", err)
		}
	})
}

// mustFind is the file of a blob.
func (w *world) mustFind(id string) string {
	w.t.Helper()
	found, err := filepath.Glob(filepath.Join(w.dir, "blobs", "*", id))
	if err != nil || len(found) != 1 {
		w.t.Fatalf("the blob is %v, %v", found, err)
	}
	return found[0]
}

func (w *world) mustFlip(id string, at int64) {
	w.t.Helper()
	f, err := os.OpenFile(w.mustFind(id), os.O_RDWR, 0)
	w.must(err)
	defer func() { w.must(f.Close()) }()
	var b [1]byte
	_, err = f.ReadAt(b[:], at)
	w.must(err)
	b[0] ^= 1
	_, err = f.WriteAt(b[:], at)
	w.must(err)
}

// A checkpoint that no record names belongs to the sweeper; one that a record
// names is left alone, whatever else is sealed for its session.
func TestRemove(t *testing.T) {
	w := mustWorld(t)
	owner := store.CheckpointBlobOwner(w.binding().SessionID)
	named, files := w.mustSeal(w.binding())
	w.must(w.db.PutBlobRefs(t.Context(), owner, w.tenant, []string{named.BlobID}))
	other, _ := w.mustSeal(w.binding()) // its suspension could not be recorded
	later := time.Now().Add(time.Hour)
	claimed, err := w.db.UnreferencedBlobs(t.Context(), later, 10)
	w.must(err)
	if !slices.Equal(claimed, []string{other.BlobID}) {
		t.Errorf("to be swept: %v; want the one alone that nothing names", claimed)
	}
	into := t.TempDir()
	w.must(w.store.Open(t.Context(), w.binding(), named.BlobID, into))
	w.mustHold(into, files)

	w.must(w.store.Remove(t.Context(), named.BlobID))
	w.must(w.store.Remove(t.Context(), named.BlobID)) // again
	if _, err := w.blobs.Stat(t.Context(), named.BlobID); !blob.IsNotFound(err) {
		t.Errorf("its bytes: %v; want none", err)
	}
	if err := w.store.Remove(t.Context(), "c_0000"); !workbench.HasCode(err, workbench.CodeInternal) {
		t.Errorf("removing another's blob: %v, want internal", err)
	}
}

func TestSealRefuses(t *testing.T) {
	w := mustWorld(t)
	refused := func(name string, code workbench.Code, spoil func(dir string) context.Context) {
		t.Run(name, func(t *testing.T) {
			dir, _ := mustDir(t)
			if _, err := w.store.Seal(spoil(dir), w.binding(), dir); !workbench.HasCode(err, code) {
				t.Errorf("got %v, want %s", err, code)
			}
			left, err := filepath.Glob(filepath.Join(w.dir, "blobs", "*", "*"))
			if err != nil || len(left) != 0 {
				t.Errorf("%v, %v left", left, err)
			}
		})
	}
	refused("a link", workbench.CodeInternal, func(dir string) context.Context {
		w.must(os.Symlink("/etc/passwd", filepath.Join(dir, "more.img")))
		return t.Context()
	})
	refused("a directory in it", workbench.CodeInternal, func(dir string) context.Context {
		w.must(os.Mkdir(filepath.Join(dir, "more"), 0o700))
		return t.Context()
	})
	refused("nothing there", workbench.CodeUnavailable, func(dir string) context.Context { w.must(os.RemoveAll(dir)); return t.Context() })
	refused("given up", workbench.CodeCancelled, func(string) context.Context {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return ctx
	})
}

func TestMalformedRecords(t *testing.T) {
	file := func(name string, size uint64, content string) string {
		return string([]byte{byte(len(name))}) + name + string(binary.BigEndian.AppendUint64(nil, size)) + content
	}
	const head = "WBCK\x02"
	for name, raw := range map[string]string{
		"nothing":            "",
		"another format":     "WBCK\x01\x00",
		"no end":             head + file("a", 1, "x"),
		"ends in a name":     head + "\x05ab",
		"ends in a file":     head + file("a", 10, "x"),
		"too large":          head + file("a", 1<<40, "x"),
		"a name with a path": head + file("../a", 1, "x") + "\x00",
		"a hidden name":      head + file(".a", 1, "x") + "\x00",
		"twice":              head + file("a", 1, "x") + file("a", 1, "y") + "\x00",
		"more after the end": head + "\x00more",
		"too many":           head + many(file) + "\x00",
	} {
		t.Run(name, func(t *testing.T) {
			want := workbench.CodeCorrupt
			if name == "twice" {
				want = workbench.CodeUnavailable
			}
			if err := checkpoint.ReadRecords(t.Context(), strings.NewReader(raw), t.TempDir()); !workbench.HasCode(err, want) {
				t.Errorf("got %v, want %s", err, want)
			}
		})
	}
}

func many(file func(name string, size uint64, content string) string) string {
	var all string
	for i := range 17 {
		all += file("a"+string(rune('a'+i)), 0, "")
	}
	return all
}

func TestMemory(t *testing.T) {
	w := mustWorld(t)
	sealed, files := w.mustSeal(w.binding())
	at := filepath.Join(t.TempDir(), "memory")
	m, err := checkpoint.OpenMemory(at, 16<<20)
	w.must(err)
	dir, err := m.Make()
	w.must(err)
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("a directory in it is %v, %v; want it closed to others", info.Mode(), err)
	}
	w.must(w.store.Open(t.Context(), w.binding(), sealed.BlobID, dir))
	w.mustHold(dir, files)

	second, err := m.Make()
	w.must(err)
	if err := w.store.Open(t.Context(), w.binding(), sealed.BlobID, second); !workbench.HasCode(err, workbench.CodeUnavailable) {
		t.Errorf("a second of 8 MiB in 16: %v, want unavailable", err)
	}
	w.must(m.Remove(second))
	w.must(m.Remove(dir))
	if err := m.Remove("/etc"); !workbench.HasCode(err, workbench.CodeInternal) {
		t.Errorf("removing something else: %v, want internal", err)
	}
	third, err := m.Make()
	w.must(err)
	w.must(os.WriteFile(filepath.Join(third, "left.img"), []byte(marker), 0o600))

	again, err := checkpoint.OpenMemory(at, 16<<20) // as after a crash
	w.must(err)
	if left, err := os.ReadDir(at); err != nil || len(left) != 0 {
		t.Errorf("an earlier process left %v, %v", left, err)
	}
	w.must(again.Close())
	if _, err := os.Stat(at); !os.IsNotExist(err) {
		t.Errorf("the place is still there: %v", err)
	}
}
