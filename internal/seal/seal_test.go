package seal_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/seal"
	"github.com/workbenchdev/workbench/internal/store"
)

// world is two tenants over a real database.
type world struct {
	db         *store.DB
	acme, blue string
}

func mustWorld(t testing.TB) world {
	t.Helper()
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "wb.db"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	project, err := db.EnsureProject(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	tenant := func(name string) string {
		n, err := db.EnsureTenant(t.Context(), project.ID, name)
		if err != nil {
			t.Fatal(err)
		}
		return n.ID
	}
	return world{db, tenant("acme"), tenant("blue")}
}

var (
	keyA = bytes.Repeat([]byte{0xA1}, 32)
	keyB = bytes.Repeat([]byte{0xB2}, 32)
)

func (w world) mustSealer(t testing.TB, keys ...[]byte) *seal.Sealer {
	t.Helper()
	masters, err := seal.NewMasters(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return seal.New(masters, w.db)
}

func want(t *testing.T, what string, err error, code workbench.Code) {
	t.Helper()
	if got := workbench.CodeOf(err); got != code {
		t.Errorf("%s: %v is %q, want %q", what, err, got, code)
	}
}

func TestSmallValues(t *testing.T) {
	w := mustWorld(t)
	s := w.mustSealer(t, keyA)
	plain := []byte("print('canary-4711')")
	sealed, err := s.SealBytes(t.Context(), w.acme, "spec", "run_1", plain)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(sealed, []byte("canary")) || len(sealed) != len(plain)+seal.Overhead {
		t.Errorf("%d bytes: %x", len(sealed), sealed)
	}
	again, err := s.SealBytes(t.Context(), w.acme, "spec", "run_1", plain)
	if err != nil || bytes.Equal(sealed[17:], again[17:]) {
		t.Error("two seals of one value are alike")
	}
	got, err := s.OpenBytes(t.Context(), w.acme, "spec", "run_1", sealed)
	if err != nil || !bytes.Equal(got, plain) {
		t.Fatalf("%q, %v", got, err)
	}
	empty, err := s.SealBytes(t.Context(), w.acme, "spec", "run_1", nil)
	want(t, "empty", err, "")
	got, err = s.OpenBytes(t.Context(), w.acme, "spec", "run_1", empty)
	if err != nil || len(got) != 0 {
		t.Errorf("empty: %q, %v", got, err)
	}

	_, err = s.SealBytes(t.Context(), w.blue, "spec", "run_1", plain) // so that blue has a key
	want(t, "blue", err, "")
	for name, open := range map[string]func() error{
		"another run":    func() error { _, err := s.OpenBytes(t.Context(), w.acme, "spec", "run_2", sealed); return err },
		"another kind":   func() error { _, err := s.OpenBytes(t.Context(), w.acme, "log", "run_1", sealed); return err },
		"another tenant": func() error { _, err := s.OpenBytes(t.Context(), w.blue, "spec", "run_1", sealed); return err },
		"kind and place moved together": func() error {
			_, err := s.OpenBytes(t.Context(), w.acme, "specr", "un_1", sealed)
			return err
		},
		"cut": func() error {
			_, err := s.OpenBytes(t.Context(), w.acme, "spec", "run_1", sealed[:len(sealed)-1])
			return err
		},
		"short": func() error { _, err := s.OpenBytes(t.Context(), w.acme, "spec", "run_1", sealed[:20]); return err },
		"none":  func() error { _, err := s.OpenBytes(t.Context(), w.acme, "spec", "run_1", nil); return err },
	} {
		want(t, name, open(), workbench.CodeCorrupt)
	}
	for i := range sealed {
		flipped := bytes.Clone(sealed)
		flipped[i] ^= 1
		_, err := s.OpenBytes(t.Context(), w.acme, "spec", "run_1", flipped)
		code := workbench.CodeCorrupt
		if i >= 1 && i < 17 {
			code = workbench.CodeKeyUnavailable // it names a key that does not exist
		}
		want(t, fmt.Sprintf("bit of byte %d", i), err, code)
	}
}

func TestContentIDsAreKeyedPerTenant(t *testing.T) {
	w := mustWorld(t)
	s := w.mustSealer(t, keyA)
	sum := sha256.Sum256([]byte("equal"))
	id := func(s *seal.Sealer, tenant string) string {
		id, err := s.ContentID(t.Context(), tenant, sum)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	acme, blue := id(s, w.acme), id(s, w.blue)
	if acme == blue || len(acme) != 66 || !strings.HasPrefix(acme, "c_") || strings.Contains(acme, hex.EncodeToString(sum[:])) {
		t.Errorf("%s, %s", acme, blue)
	}
	if again := id(w.mustSealer(t, keyA), w.acme); again != acme {
		t.Errorf("after a restart it is %s, not %s", again, acme)
	}
}

// A tenant's key is made once, whoever asks first.
func TestTenantKeysRace(t *testing.T) {
	w := mustWorld(t)
	ids := make([]string, 8)
	var group sync.WaitGroup
	for i := range ids {
		s := w.mustSealer(t, keyA)
		group.Go(func() {
			id, err := s.ContentID(context.Background(), w.acme, [32]byte{})
			if err != nil {
				t.Error(err)
			}
			ids[i] = id
		})
	}
	group.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatalf("ids differ: %v", ids)
		}
	}
}

func TestRotation(t *testing.T) {
	w := mustWorld(t)
	old := w.mustSealer(t, keyA)
	value, err := old.SealBytes(t.Context(), w.acme, "spec", "run_1", []byte("old"))
	want(t, "seal", err, "")
	object := mustSeal(t, old, w.acme, []byte("old object"))

	both := w.mustSealer(t, keyB, keyA)
	got, err := both.OpenBytes(t.Context(), w.acme, "spec", "run_1", value)
	if err != nil || string(got) != "old" {
		t.Errorf("with both keys: %q, %v", got, err)
	}
	if got := mustOpenAll(t, both, w.acme, "k", "id", object); string(got) != "old object" {
		t.Errorf("with both keys: %q", got)
	}
	_, err = both.SealBytes(t.Context(), w.blue, "spec", "run_2", nil) // wrapped by the new one
	want(t, "seal", err, "")

	masters, err := seal.NewMasters(keyA)
	want(t, "masters", err, "")
	oldID := masters.ID()
	only := w.mustSealer(t, keyB)
	for what, err := range map[string]error{
		"value":  second(only.OpenBytes(t.Context(), w.acme, "spec", "run_1", value)),
		"object": second(only.Open(t.Context(), w.acme, "k", "id", bytes.NewReader(object), int64(len(object)))),
		"seal":   second(only.SealBytes(t.Context(), w.acme, "spec", "run_1", nil)),
	} {
		want(t, what, err, workbench.CodeKeyUnavailable)
		if e := workbench.AsError(err); !strings.Contains(e.Detail, oldID) || e.Hint == "" {
			t.Errorf("%s does not name key %s: %+v", what, oldID, e)
		}
	}
	_, err = only.SealBytes(t.Context(), w.blue, "spec", "run_2", nil)
	want(t, "a tenant of the new key", err, "")
}

func second[T any](_ T, err error) error { return err }

func mustSeal(t testing.TB, s *seal.Sealer, tenant string, plain []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := s.NewWriter(t.Context(), tenant, "k", &out)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(w, bytes.NewReader(plain)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close("id"); err != nil {
		t.Fatal(err)
	}
	if w.Size() != int64(len(plain)) || int64(out.Len()) != seal.SealedSize(int64(len(plain))) {
		t.Fatalf("%d bytes sealed to %d, SealedSize says %d", w.Size(), out.Len(), seal.SealedSize(int64(len(plain))))
	}
	return out.Bytes()
}

func mustOpenAll(t testing.TB, s *seal.Sealer, tenant, kind, id string, sealed []byte) []byte {
	t.Helper()
	o, err := s.Open(t.Context(), tenant, kind, id, bytes.NewReader(sealed), int64(len(sealed)))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const segment = 64 << 10

func TestObjectsOfEverySize(t *testing.T) {
	w := mustWorld(t)
	s := w.mustSealer(t, keyA)
	random := rand.NewChaCha8([32]byte{1})
	for _, size := range []int{0, 1, segment - 1, segment, segment + 1, 2*segment - 1, 2 * segment, 2*segment + 1, 5*segment + 123} {
		plain := make([]byte, size)
		_, _ = random.Read(plain)
		sealed := mustSeal(t, s, w.acme, plain)
		if got := mustOpenAll(t, s, w.acme, "k", "id", sealed); !bytes.Equal(got, plain) {
			t.Errorf("%d bytes came back as %d", size, len(got))
		}
		o, err := s.Open(t.Context(), w.acme, "k", "id", bytes.NewReader(sealed), int64(len(sealed)))
		if err != nil || o.Size() != int64(size) {
			t.Fatalf("size %d: %v", size, err)
		}
		if err := iotest.TestReader(o, plain); err != nil && size < 3*segment {
			t.Errorf("size %d: %v", size, err)
		}
		// The same bytes however they are cut when written.
		var out bytes.Buffer
		chunked, err := s.NewWriter(t.Context(), w.acme, "k", &out)
		want(t, "writer", err, "")
		for rest := plain; len(rest) > 0; {
			n := min(len(rest), 1+rand.IntN(2*segment))
			if _, err := chunked.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		want(t, "close", chunked.Close("id"), "")
		if got := mustOpenAll(t, s, w.acme, "k", "id", out.Bytes()); !bytes.Equal(got, plain) {
			t.Errorf("%d bytes in pieces came back as %d", size, len(got))
		}
	}
}

// counting counts the bytes that are read.
type counting struct {
	io.ReaderAt
	n int
}

func (c *counting) ReadAt(p []byte, off int64) (int, error) {
	n, err := c.ReaderAt.ReadAt(p, off)
	c.n += n
	return n, err
}

func TestRangesReadOnlyTheirSegments(t *testing.T) {
	w := mustWorld(t)
	s := w.mustSealer(t, keyA)
	plain := make([]byte, 8<<20)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(plain)
	sealed := mustSeal(t, s, w.acme, plain)
	src := &counting{ReaderAt: bytes.NewReader(sealed)}
	o, err := s.Open(t.Context(), w.acme, "k", "id", src, int64(len(sealed)))
	want(t, "open", err, "")
	src.n = 0
	p := make([]byte, 1000)
	if _, err := o.ReadAt(p, 5<<20-500); err != nil || !bytes.Equal(p, plain[5<<20-500:][:1000]) {
		t.Error("the range is wrong", err)
	}
	if src.n != 2*(segment+16) {
		t.Errorf("1000 bytes over a boundary read %d", src.n)
	}
	if _, err := o.Seek(-3, io.SeekEnd); err != nil {
		t.Error(err)
	}
	if tail, err := io.ReadAll(o); err != nil || !bytes.Equal(tail, plain[len(plain)-3:]) {
		t.Errorf("the end: %x, %v", tail, err)
	}
	if n, err := o.ReadAt(p, o.Size()); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("past the end: %d, %v", n, err)
	}
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			p := make([]byte, 3*segment)
			off := int64(i) * segment
			if _, err := o.ReadAt(p, off); err != nil || !bytes.Equal(p, plain[off:off+int64(len(p))]) {
				t.Error("a concurrent range is wrong", err)
			}
		})
	}
	group.Wait()
}

func TestDamagedObjects(t *testing.T) {
	w := mustWorld(t)
	s := w.mustSealer(t, keyA)
	const header, sealedSegment = 64, segment + 16
	plain := bytes.Repeat([]byte("0123456789abcdef"), 3*segment/16)
	plain = append(plain, "the last segment"...)
	sealed := mustSeal(t, s, w.acme, plain)
	other := mustSeal(t, s, w.acme, plain)
	_ = mustSeal(t, s, w.blue, nil)
	cutAt := func(n int) []byte { return bytes.Clone(sealed[:n]) }
	swap := func(i, j int) []byte {
		b := bytes.Clone(sealed)
		x, y := b[header+i*sealedSegment:][:sealedSegment], b[header+j*sealedSegment:][:sealedSegment]
		tmp := bytes.Clone(x)
		copy(x, y)
		copy(y, tmp)
		return b
	}
	splice := bytes.Clone(sealed)
	copy(splice[header:header+sealedSegment], other[header:])
	flip := func(i int) []byte { b := bytes.Clone(sealed); b[i] ^= 0x40; return b }
	read := func(tenant, kind, id string, b []byte) error {
		o, err := s.Open(t.Context(), tenant, kind, id, bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return err
		}
		got, err := io.ReadAll(o)
		if err == nil && !bytes.Equal(got, plain) {
			t.Errorf("other bytes came back as if they were whole: %d", len(got))
		}
		return err
	}
	want(t, "whole", read(w.acme, "k", "id", sealed), "")
	for name, b := range map[string][]byte{
		"nothing": {}, "header only": cutAt(header), "less than a tag": cutAt(header + 10), "one byte less": cutAt(len(sealed) - 1),
		"last segment gone": cutAt(header + 3*sealedSegment), "two segments gone": cutAt(header + 2*sealedSegment), "all but one gone": cutAt(header + sealedSegment),
		"cut inside a segment": cutAt(header + 2*sealedSegment + 100), "cut inside a tag": cutAt(header + 2*sealedSegment + 5),
		"segments exchanged": swap(0, 1), "a segment of a twin": splice, "bytes added": append(bytes.Clone(sealed), make([]byte, 40)...),
		"a segment repeated": append(cutAt(header+3*sealedSegment), sealed[header:]...),
		"magic":              flip(0), "version": flip(4), "segment size": flip(5), "reserved": flip(7), "master id": flip(9), "salt": flip(40),
		"first byte of a segment": flip(header), "middle of a segment": flip(header + sealedSegment + 777), "a tag": flip(header + sealedSegment - 3), "last byte": flip(len(sealed) - 1),
		"another object's header": append(bytes.Clone(other[:header]), sealed[header:]...),
	} {
		want(t, name, read(w.acme, "k", "id", b), workbench.CodeCorrupt)
	}
	want(t, "tenant key id", read(w.acme, "k", "id", flip(20)), workbench.CodeKeyUnavailable)
	want(t, "another id", read(w.acme, "k", "id2", sealed), workbench.CodeCorrupt)
	want(t, "another kind", read(w.acme, "k2", "id", sealed), workbench.CodeCorrupt)
	want(t, "another tenant", read(w.blue, "k", "id", sealed), workbench.CodeCorrupt)
}

func TestAFailedWriteStays(t *testing.T) {
	w := mustWorld(t)
	s := w.mustSealer(t, keyA)
	cause := errors.New("disk gone")
	sealer, err := s.NewWriter(t.Context(), w.acme, "k", &failAfter{left: 64, err: cause})
	want(t, "header", err, "")
	_, err = sealer.Write(make([]byte, 3*segment))
	if !errors.Is(err, cause) {
		t.Errorf("write: %v", err)
	}
	if err := sealer.Close("id"); !errors.Is(err, cause) {
		t.Errorf("close: %v", err)
	}
}

type failAfter struct {
	left int
	err  error
}

func (f *failAfter) Write(p []byte) (int, error) {
	if f.left -= len(p); f.left < 0 {
		return 0, f.err
	}
	return len(p), nil
}

// oneKey keeps the key of one tenant: a database would only slow the fuzzer.
type oneKey struct {
	id      string
	wrapped []byte
}

func (k *oneKey) TenantKey(context.Context, string) (string, []byte, error) {
	if k.id == "" {
		return "", nil, workbench.ErrNotFound("tenant key")
	}
	return k.id, k.wrapped, nil
}

func (k *oneKey) PutTenantKey(_ context.Context, _, id string, wrapped []byte) (string, []byte, error) {
	k.id, k.wrapped = id, wrapped
	return id, wrapped, nil
}

func (k *oneKey) TenantKeyByID(context.Context, string) (string, []byte, error) {
	return "", nil, workbench.ErrNotFound("tenant key")
}

func FuzzOpen(f *testing.F) {
	masters, err := seal.NewMasters(keyA)
	if err != nil {
		f.Fatal(err)
	}
	s, w := seal.New(masters, &oneKey{}), world{acme: "ten_1"}
	for _, size := range []int{0, 10, segment, segment + 1} {
		f.Add(mustSeal(f, s, w.acme, make([]byte, size)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := s.Open(t.Context(), w.acme, "k", "id", bytes.NewReader(b), int64(len(b)))
		if err == nil {
			_, err = io.Copy(io.Discard, o)
		}
		if code := workbench.CodeOf(err); err != nil && code != workbench.CodeCorrupt && code != workbench.CodeKeyUnavailable {
			t.Errorf("%v", err)
		}
		_, err = s.OpenBytes(t.Context(), w.acme, "k", "id", b)
		if code := workbench.CodeOf(err); code != workbench.CodeCorrupt && code != workbench.CodeKeyUnavailable {
			t.Errorf("%v", err)
		}
	})
}

func TestLoadMasters(t *testing.T) {
	one, two := base64.StdEncoding.EncodeToString(keyA), base64.RawURLEncoding.EncodeToString(keyB)
	idOf := func(key []byte) string {
		m, err := seal.NewMasters(key)
		want(t, "masters", err, "")
		return m.ID()
	}
	write := func(t *testing.T, content string, mode os.FileMode) string {
		t.Helper()
		file := filepath.Join(t.TempDir(), "key")
		if err := errors.Join(os.WriteFile(file, []byte(content), mode), os.Chmod(file, mode)); err != nil {
			t.Fatal(err)
		}
		return file
	}
	t.Run("the first start makes a key and says so, the second uses it", func(t *testing.T) {
		dir := t.TempDir()
		m, err := seal.LoadMasters(dir, "")
		want(t, "first", err, "")
		if !strings.Contains(m.Notice(), m.ID()) {
			t.Errorf("notice %q", m.Notice())
		}
		info, err := os.Stat(filepath.Join(dir, "master.key"))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
		again, err := seal.LoadMasters(dir, "")
		want(t, "second", err, "")
		if again.ID() != m.ID() || again.Notice() != "" {
			t.Errorf("%s %q", again.ID(), again.Notice())
		}
	})
	t.Run("a lost key is not replaced", func(t *testing.T) {
		dir := t.TempDir()
		m, err := seal.LoadMasters(dir, "")
		want(t, "first", err, "")
		if err := os.Remove(filepath.Join(dir, "master.key")); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"", write(t, one, 0o600)} {
			_, err = seal.LoadMasters(dir, file)
			want(t, "lost", err, workbench.CodeKeyUnavailable)
			if !strings.Contains(err.Error(), m.ID()) {
				t.Errorf("it does not name key %s: %v", m.ID(), err)
			}
		}
	})
	t.Run("several keys, the first seals, the old one stays known", func(t *testing.T) {
		dir := t.TempDir()
		_, err := seal.LoadMasters(dir, write(t, one, 0o600))
		want(t, "one", err, "")
		m, err := seal.LoadMasters(dir, write(t, "# new first\n"+two+"\n\n"+one+"\n", 0o400))
		want(t, "two", err, "")
		if got := m.IDs(); len(got) != 2 || got[0] != idOf(keyB) || got[1] != idOf(keyA) {
			t.Errorf("ids %v", got)
		}
		_, err = seal.LoadMasters(dir, write(t, one, 0o600))
		want(t, "only the old one", err, workbench.CodeKeyUnavailable)
	})
	t.Run("the environment", func(t *testing.T) {
		t.Setenv(seal.EnvMasterKey, two+","+one)
		m, err := seal.LoadMasters(t.TempDir(), "/does/not/matter")
		want(t, "keys", err, "")
		if m.ID() != idOf(keyB) {
			t.Errorf("id %s", m.ID())
		}
		t.Setenv(seal.EnvMasterKey, "")
		t.Setenv(seal.EnvMasterKeyFile, write(t, one, 0o600))
		m, err = seal.LoadMasters(t.TempDir(), "")
		want(t, "file", err, "")
		if m.ID() != idOf(keyA) {
			t.Errorf("id %s", m.ID())
		}
	})
	for name, bad := range map[string]func(t *testing.T) string{
		"open to its group": func(t *testing.T) string { return write(t, one, 0o640) },
		"open to all":       func(t *testing.T) string { return write(t, one, 0o604) },
		"too short":         func(t *testing.T) string { return write(t, "QUJD", 0o600) },
		"no base64":         func(t *testing.T) string { return write(t, "hunter2 hunter2", 0o600) },
		"empty":             func(t *testing.T) string { return write(t, "# nothing\n", 0o600) },
		"not there":         func(*testing.T) string { return "/does/not/exist" },
		"a directory":       func(t *testing.T) string { return t.TempDir() },
	} {
		t.Run(name, func(t *testing.T) {
			_, err := seal.LoadMasters(t.TempDir(), bad(t))
			want(t, name, err, workbench.CodeKeyUnavailable)
			if strings.Contains(fmt.Sprint(err), "hunter2") {
				t.Error("the error repeats the key")
			}
		})
	}
}

func BenchmarkSealBytes(b *testing.B) {
	w := mustWorld(b)
	s := w.mustSealer(b, keyA)
	for _, size := range []int{100, 4096} {
		plain := make([]byte, size)
		b.Run(fmt.Sprintf("seal %d", size), func(b *testing.B) {
			for b.Loop() {
				if _, err := s.SealBytes(b.Context(), w.acme, "log", "run_1/1", plain); err != nil {
					b.Fatal(err)
				}
			}
		})
		sealed, err := s.SealBytes(b.Context(), w.acme, "log", "run_1/1", plain)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("open %d", size), func(b *testing.B) {
			for b.Loop() {
				if _, err := s.OpenBytes(b.Context(), w.acme, "log", "run_1/1", sealed); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkObject8MiB(b *testing.B) {
	w := mustWorld(b)
	s := w.mustSealer(b, keyA)
	plain := make([]byte, 8<<20)
	b.Run("seal", func(b *testing.B) {
		b.SetBytes(8 << 20)
		for b.Loop() {
			o, err := s.NewWriter(b.Context(), w.acme, "k", io.Discard)
			if err != nil {
				b.Fatal(err)
			}
			_, _ = o.Write(plain)
			_ = o.Close("id")
		}
	})
	sealed := mustSeal(b, s, w.acme, plain)
	b.Run("open", func(b *testing.B) {
		b.SetBytes(8 << 20)
		for b.Loop() {
			o, err := s.Open(b.Context(), w.acme, "k", "id", bytes.NewReader(sealed), int64(len(sealed)))
			if err != nil {
				b.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, o); err != nil {
				b.Fatal(err)
			}
		}
	})
}
