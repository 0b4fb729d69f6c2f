package workspace_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/workspace"
)

// A builder without room writes nothing, and one that only compares tells the
// same tree.
func TestRoom(t *testing.T) {
	w := mustWorld(t)
	large, refused := make([]byte, 6<<20), make([]byte, 6<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(large) // never fails
	_, _ = rand.NewChaCha8([32]byte{2}).Read(refused)
	full := workbench.E(workbench.CodeQuotaExceeded, "by whose bound it is")
	begin := func(room int64) *workspace.Builder {
		b := w.trees.Begin(t.Context(), w.session.TenantID, workspace.Empty())
		b.Room(func(context.Context) (workspace.Room, error) { return workspace.Room{Bytes: room, Full: full}, nil })
		return b
	}
	b := begin(5 << 20)
	put(b, "large", string(refused))(t)
	_, err := b.Commit(t.Context())
	if !errors.Is(err, full) {
		t.Errorf("a commit without room: %v, want what the room says", err)
	}
	if _, bytes := b.Written(); bytes > 5<<20 {
		t.Errorf("%d bytes were written with room for 5 MiB", bytes)
	}
	only := begin(0)
	only.CompareOnly()
	put(only, "large", string(large))(t)
	put(only, "small", "x")(t)
	written := len(w.mustBlobFiles())
	compared := w.mustCommit(only)
	if n := len(w.mustBlobFiles()); n != written || compared.Written != 0 || len(compared.Refs) != 0 {
		t.Errorf("a builder that compares left %d files, %d bytes and %d references", n-written, compared.Written, len(compared.Refs))
	}
	b = begin(7 << 20)
	put(b, "large", string(large))(t)
	put(b, "small", "x")(t)
	made := w.mustCommit(b)
	if made.Written < 6<<20-(256<<10) || made.Written > 6<<20+4096 { // where the cuts are differs
		t.Errorf("%d bytes were written, want 6 MiB, with or without the last chunk and the manifest", made.Written)
	}
	if made.Tree.Root() != compared.Tree.Root() {
		t.Error("what compares has another root than what stores")
	}
	again := begin(512 << 10)
	put(again, "copy", string(large))(t)
	if made := w.mustCommit(again); made.Written > 512<<10 {
		t.Errorf("%d bytes were written of a content that is there", made.Written)
	}
}
