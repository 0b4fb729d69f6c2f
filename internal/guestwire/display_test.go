package guestwire_test

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// show makes a display call of a running program.
func show(ctx context.Context, x *guestwire.Running, a guestwire.DisplayArgs, content string) error {
	raw, err := json.Marshal(a)
	if err != nil {
		return err
	}
	_, err = x.Call(ctx, guestwire.OpDisplay, raw, int64(len(content)), strings.NewReader(content))
	return err
}

// TestADisplayComesAfterWhatWasPrintedBefore: output and calls travel side by
// side, and a handler may take its time with output.
func TestADisplayComesAfterWhatWasPrintedBefore(t *testing.T) {
	c := MustServe(t, &scriptedGuest{program: func(ctx context.Context, _ guestwire.ExecRequest, x *guestwire.Running) guestwire.ExecResult {
		_, _ = x.Stdout.Write([]byte("before"))
		if err := show(ctx, x, guestwire.DisplayArgs{Kind: guestwire.DisplayShow, ID: "chart 1", At: guestwire.Offsets{Stdout: 6}}, `{"text/plain":"hi"}`); err != nil {
			return guestwire.ExecResult{ExitCode: 1}
		}
		_, _ = x.Stdout.Write([]byte(" after"))
		return guestwire.ExecResult{Context: &guestwire.ContextState{Fresh: true, Alive: true, Cell: 1}, Displays: 1}
	}})()
	MustBind(t, c)
	h := newRecorder()
	h.hold = make(chan struct{}, 2)
	var seen, content string
	var args guestwire.DisplayArgs
	h.onCall = func(_ context.Context, call guestwire.BrokerCall) (json.RawMessage, error) {
		seen = h.text(workbench.Stdout)
		raw, err := io.ReadAll(call.Content)
		content = string(raw)
		if err == nil {
			err = json.Unmarshal(call.Args, &args)
		}
		return nil, err
	}
	r := request("e1")
	r.Context, r.Group = "default", "default"
	e, err := c.Exec(t.Context(), r, h)
	if err != nil {
		t.Fatal(err)
	}
	h.hold <- struct{}{}
	h.hold <- struct{}{}
	res, err := e.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if seen != "before" || content != `{"text/plain":"hi"}` || args.ID != "chart 1" || h.text(workbench.Stdout) != "before after" {
		t.Errorf("displayed after %q: %q, %+v", seen, content, args)
	}
	if res.Context == nil || *res.Context != (guestwire.ContextState{Fresh: true, Alive: true, Cell: 1}) || res.Displays != 1 {
		t.Errorf("%+v", res)
	}
}

// TestADisplayAfterOutputThatNeverComesEndsWithItsExec: a guest may lie.
func TestADisplayAfterOutputThatNeverComesEndsWithItsExec(t *testing.T) {
	c := MustServe(t, &scriptedGuest{program: func(ctx context.Context, _ guestwire.ExecRequest, x *guestwire.Running) guestwire.ExecResult {
		go func() {
			_ = show(ctx, x, guestwire.DisplayArgs{Kind: guestwire.DisplayShow, At: guestwire.Offsets{Stderr: 1}}, `{}`)
		}()
		return guestwire.ExecResult{}
	}})()
	MustBind(t, c)
	h := newRecorder()
	h.onCall = func(context.Context, guestwire.BrokerCall) (json.RawMessage, error) {
		t.Error("the display was shown")
		return nil, nil
	}
	e, err := c.Exec(t.Context(), request("e1"), h)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.Close() // waits for calls under way; the test would hang
}

func TestCellsThatCannotBe(t *testing.T) {
	good := guestwire.ExecRequest{ID: "e1", Group: "c", Context: "c", Language: workbench.Bash, Source: []byte("true")}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(r *guestwire.ExecRequest){
		"contextId": func(r *guestwire.ExecRequest) { r.Context, r.Group = "a/b", "a" },
		"group":     func(r *guestwire.ExecRequest) { r.Group = "other" },
		"args":      func(r *guestwire.ExecRequest) { r.Args = []string{"x"} },
		"stdin":     func(r *guestwire.ExecRequest) { r.Stdin = []byte("x") },
		"language":  func(r *guestwire.ExecRequest) { r.Language, r.Argv = "", []string{"true"} },
	} {
		r := good
		spoil(&r)
		if e := workbench.AsError(r.Check()); e.Code != workbench.CodeInvalidRequest || e.Field != name {
			t.Errorf("%s: %+v", name, e)
		}
	}
}
