package workspace_test

import (
	"io"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/workspace"
)

func TestStagedContents(t *testing.T) {
	w := mustWorld(t)
	const canary = "a content that must not lie about in plain"
	head := ""
	for name, content := range map[string]string{"empty": "", "small": "hello", "large": canary + noise(3, 3<<20)} {
		st, err := w.trees.Stage(t.Context(), w.session.TenantID, 4<<20, strings.NewReader(content))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for range 2 { // it can be read again
			r, err := st.Open(t.Context())
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			got, err := io.ReadAll(r)
			if err != nil || string(got) != content || st.Size != int64(len(content)) {
				t.Errorf("%s: %d bytes of %d came back, size %d, %v", name, len(got), len(content), st.Size, err)
			}
			_ = r.Close()
		}
		w.mustNotHold(canary)
		b := w.trees.Begin(t.Context(), w.session.TenantID, workspace.Empty())
		r, err := st.Open(t.Context())
		w.must(err)
		want(t, name, b.File(t.Context(), workspace.Entry{Path: "f", Mode: 0o644, Size: st.Size}, r), "")
		_ = r.Close()
		st.Discard(t.Context())
		made := w.mustCommit(b)
		head = w.mustRecord(made, head).ID
		if got := w.mustReadFile(made.Tree, "f"); got != content {
			t.Errorf("%s: the tree has %d bytes of %d", name, len(got), len(content))
		}
	}
	for _, blob := range w.mustBlobFiles() {
		if strings.Contains(blob, "s_") {
			t.Errorf("a staged content is left: %s", blob)
		}
	}
	_, err := w.trees.Stage(t.Context(), w.session.TenantID, 300<<10, strings.NewReader(noise(4, 300<<10+1)))
	want(t, "too large", err, workbench.CodeWorkspaceFull)
	_, err = w.trees.Stage(t.Context(), w.session.TenantID, 4, strings.NewReader("hello"))
	want(t, "small and too large", err, workbench.CodeWorkspaceFull)
}
