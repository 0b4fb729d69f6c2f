package e2e_test

import (
	"testing"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// What a cell leaves under way when it is stopped is nobody's: the cells behind it
// neither wait for it nor lose their variables.
func TestCallThatNeverSettlesEndsWithItsCell(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	short := int64(1500)
	stuck := s.mustRun(sdk.CreateRun{Language: workbench.JavaScript, ContextID: workbench.DefaultContext, TimeoutMs: &short,
		Code: `var z = 1; for (let i = 0; i < 20; i++) workbench.save("never" + i, (async function* () { yield "a"; await new Promise(() => {}); })());`})
	if stuck.Status != workbench.StatusTimedOut {
		t.Fatalf("the cell ended %s (%s)", stuck.Status, stuck.Reason)
	}
	for _, code := range []string{"z", "workbench.display(z); z"} {
		r := s.cell(workbench.JavaScript, code)
		wantEnd(t, r, workbench.StatusSucceeded, workbench.ReasonNone)
		if last := r.Results[len(r.Results)-1]; string(last.Data["text/plain"]) != `"1"` {
			t.Errorf("%s gives %s", code, last.Data["text/plain"])
		}
	}
}

func TestCellOfATextShowsIt(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	for _, l := range []workbench.Language{workbench.JavaScript, workbench.TypeScript} {
		for code, want := range map[string]string{`"hello"`: `"'hello'"`, `'a'; "b";`: `"'b'"`, "`c`": `"'c'"`} {
			r := s.cell(l, code)
			if len(r.Results) != 1 || string(r.Results[0].Data["text/plain"]) != want {
				t.Errorf("%s %s gives %+v, want %s", l, code, r.Results, want)
			}
		}
	}
}

// A helper's refusal at a cell's end is the cell's error, and no value beside it.
func TestRefusedCallAtACellsEnd(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	r := s.cell(workbench.JavaScript, `workbench.result(undefined)`)
	if r.Status != workbench.StatusFailed || len(r.Results) != 1 || r.Results[0].Type != workbench.ResultError {
		t.Errorf("the cell ended %s with %+v", r.Status, r.Results)
	}
}
