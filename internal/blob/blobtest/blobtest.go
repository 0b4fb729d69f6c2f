// Package blobtest is the suite that every blob.Store must pass.
package blobtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"
	"sync"
	"testing"

	"github.com/workbenchdev/workbench/internal/blob"

	"github.com/workbenchdev/workbench"
)

// Run runs the suite. open gives a store without blobs.
func Run(t *testing.T, open func(t *testing.T) blob.Store) {
	t.Run("what was put is there, whole and at any place", func(t *testing.T) {
		s := open(t)
		for _, size := range []int{0, 1, 4096, 3<<20 + 17} {
			id, content := fmt.Sprintf("a-%d", size), bytes.Repeat([]byte("0123456789"), size/10+1)[:size]
			if n, err := blob.Put(t.Context(), s, id, bytes.NewReader(content)); err != nil || n != int64(size) {
				t.Fatalf("put: %d, %v", n, err)
			}
			if got := MustRead(t, s, id); !bytes.Equal(got, content) {
				t.Errorf("%s: %d bytes came back", id, len(got))
			}
			info, err := s.Stat(t.Context(), id)
			if err != nil || info.ID != id || info.Size != int64(size) || info.Modified.IsZero() {
				t.Errorf("stat: %+v, %v", info, err)
			}
		}
		r, err := s.Open(t.Context(), "a-4096")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		p := make([]byte, 10)
		if n, err := r.ReadAt(p, 4090); n != 6 || !errors.Is(err, io.EOF) || string(p[:n]) != "012345" {
			t.Errorf("at the end: %d %q %v", n, p[:n], err)
		}
	})
	t.Run("what is not there is not_found, and deleting it is no error", func(t *testing.T) {
		s := open(t)
		_, err := s.Open(t.Context(), "none")
		want(t, err, workbench.CodeNotFound)
		_, err = s.Stat(t.Context(), "none")
		want(t, err, workbench.CodeNotFound)
		want(t, s.Delete(t.Context(), "none"), "")
	})
	t.Run("an id that is none is refused", func(t *testing.T) {
		s := open(t)
		for _, id := range []string{"", ".", "..", "../a", "a/b", "A", "ä", "a b", "a\x00", "a.b", strings.Repeat("a", 129)} {
			_, err := blob.Put(t.Context(), s, id, strings.NewReader("x"))
			want(t, err, workbench.CodeInvalidRequest)
			_, err = s.Open(t.Context(), id)
			want(t, err, workbench.CodeInvalidRequest)
			_, err = s.Stat(t.Context(), id)
			want(t, err, workbench.CodeInvalidRequest)
			want(t, s.Delete(t.Context(), id), workbench.CodeInvalidRequest)
			w, err := s.Create(t.Context())
			want(t, err, "")
			want(t, w.Commit(id), workbench.CodeInvalidRequest)
		}
		equal(t, ids(t, s, ""), []string{})
	})
	t.Run("nothing shows before the commit, or after an abort", func(t *testing.T) {
		s := open(t)
		w, err := s.Create(t.Context())
		want(t, err, "")
		_, err = w.Write([]byte("half"))
		want(t, err, "")
		equal(t, ids(t, s, ""), []string{})
		w.Abort()
		w.Abort()
		want(t, w.Commit("late"), workbench.CodeInternal)
		equal(t, ids(t, s, ""), []string{})
		_, err = blob.Put(t.Context(), s, "cut", io.MultiReader(strings.NewReader("some"), failing{}))
		if !errors.Is(err, errCut) {
			t.Errorf("the reader's error is lost: %v", err)
		}
		equal(t, ids(t, s, ""), []string{})
	})
	t.Run("a second put replaces in one step, and open readers keep what they had", func(t *testing.T) {
		s := open(t)
		mustPut(t, s, "a", "first")
		r, err := s.Open(t.Context(), "a")
		want(t, err, "")
		defer r.Close()
		mustPut(t, s, "a", "second!")
		equal(t, string(MustRead(t, s, "a")), "second!")
		equal(t, string(readAll(t, r)), "first")
		want(t, s.Delete(t.Context(), "a"), "")
		equal(t, string(readAll(t, r)), "first")
		_, err = s.Open(t.Context(), "a")
		want(t, err, workbench.CodeNotFound)
	})
	t.Run("list gives what begins with the prefix", func(t *testing.T) {
		s := open(t)
		for _, id := range []string{"c_1", "c_2", "p_1", "x"} {
			mustPut(t, s, id, id)
		}
		equal(t, ids(t, s, ""), []string{"c_1", "c_2", "p_1", "x"})
		equal(t, ids(t, s, "c_"), []string{"c_1", "c_2"})
		equal(t, ids(t, s, "q"), []string{})
		n := 0
		for range s.List(t.Context(), "") {
			n++
			break
		}
		equal(t, n, 1)
	})
	t.Run("a request that was given up changes nothing", func(t *testing.T) {
		s := open(t)
		gone, cancel := context.WithCancel(t.Context())
		w, err := s.Create(gone)
		want(t, err, "")
		cancel()
		_, err = w.Write([]byte("x"))
		want(t, err, workbench.CodeCancelled)
		want(t, w.Commit("a"), workbench.CodeCancelled)
		_, err = s.Create(gone)
		want(t, err, workbench.CodeCancelled)
		_, err = s.Open(gone, "a")
		want(t, err, workbench.CodeCancelled)
		want(t, s.Delete(gone, "a"), workbench.CodeCancelled)
		for _, err := range s.List(gone, "") {
			want(t, err, workbench.CodeCancelled)
		}
		equal(t, ids(t, s, ""), []string{})
	})
	t.Run("many writers of one id leave one whole blob", func(t *testing.T) {
		s := open(t)
		var group sync.WaitGroup
		for i := range 16 {
			group.Go(func() {
				_, err := blob.Put(t.Context(), s, "same", bytes.NewReader(bytes.Repeat([]byte{byte('a' + i)}, 100_000)))
				if err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		got := MustRead(t, s, "same")
		if len(got) != 100_000 || bytes.Count(got, got[:1]) != len(got) {
			t.Errorf("%d bytes, mixed", len(got))
		}
	})
}

var errCut = errors.New("cut off")

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errCut }

// MustRead reads a whole blob.
func MustRead(t *testing.T, s blob.Store, id string) []byte {
	t.Helper()
	r, err := s.Open(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	return readAll(t, r)
}

func readAll(t *testing.T, r blob.Reader) []byte {
	t.Helper()
	b, err := io.ReadAll(io.NewSectionReader(r, 0, r.Size()))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mustPut(t *testing.T, s blob.Store, id, content string) {
	t.Helper()
	if _, err := blob.Put(t.Context(), s, id, strings.NewReader(content)); err != nil {
		t.Fatal(err)
	}
}

func ids(t *testing.T, s blob.Store, prefix string) []string {
	t.Helper()
	var out []string
	for info, err := range s.List(t.Context(), prefix) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, info.ID)
	}
	sort.Strings(out)
	return out
}

func want(t *testing.T, err error, code workbench.Code) {
	t.Helper()
	if got := workbench.CodeOf(err); got != code {
		t.Errorf("%v is %q, want %q", err, got, code)
	}
}

func equal(t *testing.T, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
}
