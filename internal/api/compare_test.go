package api_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/api"
)

// comparing is an engine that compares a run of three pages, and counts how
// often it loads what it compares.
type comparing struct {
	api.Engine
	loads int
}

func (e *comparing) CompareRun(context.Context, workbench.Principal, string) (workbench.Compared, error) {
	e.loads++
	return func(_ context.Context, page workbench.Page) (workbench.Comparison, error) {
		at, _ := strconv.Atoi(page.Cursor) // "" is the first page
		out := workbench.Comparison{RunIDs: []string{}, Total: 3, Items: []workbench.FileDiff{{Path: strconv.Itoa(at), Diff: fmt.Sprintf("diff %d\n", at)}}}
		if at < 2 {
			out.Next = strconv.Itoa(at + 1)
		}
		return out, nil
	}, nil
}

// A comparison as text is all of its pages, of trees that are loaded once.
func TestPatchOfManyPagesLoadsItsTreesOnce(t *testing.T) {
	e := &comparing{}
	w := MustWorld(t, func(o *api.Options) { e.Engine, o.Engine = o.Engine, e })
	x := w.Do("GET", "/v1/workbench/runs/"+workbench.NewID(workbench.KindRun)+"/diff", w.Direct("", "acme", "ada"), "", "Accept", "text/x-diff").Want(200)
	if got := string(x.Body); got != "diff 0\ndiff 1\ndiff 2\n" || !strings.HasPrefix(x.Header.Get("Content-Type"), "text/x-diff") {
		t.Errorf("the patch is %q of %s", got, x.Header.Get("Content-Type"))
	}
	if e.loads != 1 {
		t.Errorf("the trees were loaded %d times", e.loads)
	}
}
