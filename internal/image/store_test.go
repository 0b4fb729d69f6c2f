package image_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/image"
)

func TestNames(t *testing.T) {
	s := MustOpen(t, t.TempDir())
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	s.Clock = func() time.Time { now = now.Add(time.Minute); return now }
	a := MustImport(t, s, smallRoot(file("a", ""))...)
	b := MustImport(t, s, smallRoot(file("b", ""))...)

	t.Run("a name moves to what was made last", func(t *testing.T) {
		m, err := s.Get(t.Context(), "test")
		if err != nil || m.ID != b.ID || !slices.Equal(m.Names, []string{"test"}) {
			t.Fatalf("%s %v %v, want %s", m.ID, m.Names, err, b.ID)
		}
		m, err = s.Get(t.Context(), a.ID)
		if err != nil || len(m.Names) != 0 {
			t.Fatalf("the first image: names %v, %v", m.Names, err)
		}
	})

	t.Run("a name moves when it is set", func(t *testing.T) {
		if err := s.SetName(t.Context(), "test", a.ID); err != nil {
			t.Fatal(err)
		}
		if m, err := s.Get(t.Context(), "test"); err != nil || m.ID != a.ID {
			t.Fatalf("%s %v, want %s", m.ID, err, a.ID)
		}
	})

	t.Run("an image is found by the beginning of its id, when that is enough", func(t *testing.T) {
		if m, err := s.Get(t.Context(), a.ID[:12]); err != nil || m.ID != a.ID {
			t.Fatalf("%s %v, want %s", m.ID, err, a.ID)
		}
		for _, id := range []string{a.ID[:11], "img_", "", "nothing", "../test", "img_" + "0123456789abcdef"} {
			if _, err := s.Get(t.Context(), id); !workbench.HasCode(err, workbench.CodeImageNotFound) {
				t.Errorf("%q: %v, want image_not_found", id, err)
			}
		}
	})

	t.Run("the list has the newest first", func(t *testing.T) {
		all, err := s.List(t.Context())
		if err != nil || len(all) != 2 || all[0].ID != b.ID || all[1].ID != a.ID {
			t.Fatalf("%v %v", all, err)
		}
		if got := all[0].CreatedAt.Format(time.RFC3339); got != "2026-03-01T12:02:00Z" {
			t.Errorf("created %s", got)
		}
	})

	t.Run("impossible names and images are refused", func(t *testing.T) {
		for _, name := range []string{"", "UPPER", "../up", "a/b", "img_x", ".hidden"} {
			if err := s.SetName(t.Context(), name, a.ID); !workbench.HasCode(err, workbench.CodeInvalidRequest) {
				t.Errorf("%q: %v, want invalid_request", name, err)
			}
		}
		for _, id := range []string{"img_" + "00", "../names", "tmp"} {
			if err := s.SetName(t.Context(), "fine", id); !workbench.HasCode(err, workbench.CodeImageNotFound) {
				t.Errorf("%q: %v, want image_not_found", id, err)
			}
		}
	})
}

func TestDefault(t *testing.T) {
	s := MustOpen(t, t.TempDir())
	want := func(id string) {
		t.Helper()
		m, err := s.Default(t.Context())
		if id == "" {
			if !workbench.HasCode(err, workbench.CodeImageNotFound) {
				t.Fatalf("%v, want image_not_found", err)
			}
			return
		}
		if err != nil || m.ID != id {
			t.Fatalf("%s %v, want %s", m.ID, err, id)
		}
	}
	want("")
	a := MustImport(t, s, smallRoot(file("a", ""))...)
	want(a.ID)
	b := MustImport(t, s, smallRoot(file("b", ""))...)
	if err := s.SetName(t.Context(), "minimal", a.ID); err != nil {
		t.Fatal(err)
	}
	want(a.ID)
	if err := s.SetName(t.Context(), "standard", b.ID); err != nil {
		t.Fatal(err)
	}
	want(b.ID)
}

func TestDelete(t *testing.T) {
	t.Run("refuses an image in use", func(t *testing.T) {
		s := MustOpen(t, t.TempDir())
		m := MustImport(t, s, smallRoot()...)
		err := s.Delete(t.Context(), "test", func(_ context.Context, id string) (bool, error) { return id == m.ID, nil })
		if !workbench.HasCode(err, workbench.CodeImageInUse) {
			t.Fatalf("%v, want image_in_use", err)
		}
		if _, err := s.Get(t.Context(), "test"); err != nil {
			t.Fatal(err)
		}
	})

	t.Run("keeps the image when use cannot be found out", func(t *testing.T) {
		s := MustOpen(t, t.TempDir())
		MustImport(t, s, smallRoot()...)
		broken := errors.New("broken")
		if err := s.Delete(t.Context(), "test", func(context.Context, string) (bool, error) { return false, broken }); !errors.Is(err, broken) {
			t.Fatal(err)
		}
		if _, err := s.Get(t.Context(), "test"); err != nil {
			t.Fatal(err)
		}
	})

	t.Run("removes the image and every name of it, and no other", func(t *testing.T) {
		s := MustOpen(t, t.TempDir())
		m := MustImport(t, s, smallRoot(file("a", ""))...)
		if err := s.SetName(t.Context(), "second", m.ID); err != nil {
			t.Fatal(err)
		}
		if err := s.Delete(t.Context(), m.ID, nil); err != nil {
			t.Fatal(err)
		}
		MustBeEmpty(t, s)
		if err := s.Delete(t.Context(), m.ID, nil); !workbench.HasCode(err, workbench.CodeImageNotFound) {
			t.Fatalf("%v, want image_not_found", err)
		}
	})
}

func TestVerify(t *testing.T) {
	s := MustOpen(t, t.TempDir())
	m := MustImport(t, s, smallRoot(file("a", "before"))...)
	if err := s.Verify(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.Root, "a"), []byte("after!"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(t.Context(), m); !workbench.HasCode(err, workbench.CodeCorrupt) {
		t.Fatalf("%v, want content_corrupt", err)
	}
}

func TestTwoAtOnce(t *testing.T) {
	dir := t.TempDir()
	first, second := MustOpen(t, dir), MustOpen(t, dir)
	archive := MustWrite(t, MustTar(t, smallRoot()...))
	other := MustWrite(t, MustTar(t, smallRoot(file("other", ""))...))
	waits := make(chan struct{})
	secondEnds := make(chan error, 1)
	started := false
	// The second import starts while the first has the lock and is not done.
	_, err := first.Import(t.Context(), archive, "first", func(p image.Progress) {
		if p.Stage != image.StageDigest || started {
			return
		}
		started = true
		go func() {
			_, err := second.Import(t.Context(), other, "second", func(p image.Progress) {
				if p.Stage == image.StageWait {
					close(waits)
				}
			})
			secondEnds <- err
		}()
		<-waits
	})
	if err := errors.Join(err, <-secondEnds); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"first", "second"} {
		if _, err := first.Get(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
}

func TestInterrupted(t *testing.T) {
	archive := MustWrite(t, MustTar(t, smallRoot()...))

	for _, stage := range []image.Stage{image.StagePrepare, image.StageDigest, image.StageProbe, image.StagePack} {
		t.Run("an import cancelled at "+string(stage)+" leaves nothing", func(t *testing.T) {
			s := MustOpen(t, t.TempDir())
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			_, err := s.Import(ctx, archive, "test", func(p image.Progress) {
				if p.Stage == stage {
					cancel()
				}
			})
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("%v, want cancelled", err)
			}
			MustBeEmpty(t, s)
		})
	}

	t.Run("what a killed process left is cleared, and the next import works", func(t *testing.T) {
		s := MustOpen(t, t.TempDir())
		for _, left := range []string{"tmp/image-1/image/rootfs/etc", ".deleted-img_0"} {
			if err := os.MkdirAll(filepath.Join(s.Dir(), left), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		MustImport(t, s, smallRoot()...)
		if err := s.Delete(t.Context(), "test", nil); err != nil {
			t.Fatal(err)
		}
		MustBeEmpty(t, s)
	})

	t.Run("an image without its description is none", func(t *testing.T) {
		s := MustOpen(t, t.TempDir())
		m := MustImport(t, s, smallRoot()...)
		if err := os.Remove(filepath.Join(s.Dir(), m.ID, "image.json")); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Get(t.Context(), m.ID); !workbench.HasCode(err, workbench.CodeImageNotFound) {
			t.Fatalf("%v, want image_not_found", err)
		}
		if again := MustImport(t, s, smallRoot()...); again.ID != m.ID {
			t.Fatalf("made %s, want %s", again.ID, m.ID)
		}
	})
}

func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatalf("these tests need root with CAP_SYS_ADMIN: mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	s := MustOpen(t, dir)
	big := MustWrite(t, MustTar(t, smallRoot(file("big", string(make([]byte, 2<<20))))...))
	_, err := s.Import(t.Context(), big, "test", nil)
	e := workbench.AsError(err)
	if e.Code != workbench.CodeUnavailable || e.Hint == "" || !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("%v, hint %q; want unavailable with a hint", err, e.Hint)
	}
	MustBeEmpty(t, s)
	recipe, err := image.LoadRecipe("standard")
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Build(t.Context(), recipe, nil)
	if e := workbench.AsError(err); e.Code != workbench.CodeUnavailable || e.Detail != "could not make the image: the disk is full" {
		t.Fatalf("%v, want the disk is full before anything is built", err)
	}
	MustBeEmpty(t, s)
}
