package workbench_test

import (
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
)

func TestContextTransitionsEveryPair(t *testing.T) {
	allowed := map[string]bool{"idle>busy": true, "idle>lost": true, "idle>ended": true, "busy>idle": true, "busy>ended": true, "busy>lost": true,
		"ended>idle": true, "ended>busy": true, "lost>idle": true, "lost>busy": true, "lost>ended": true}
	for _, from := range workbench.ContextStates() {
		for _, to := range workbench.ContextStates() {
			if got, want := workbench.ContextTransition(from, to), allowed[string(from)+">"+string(to)]; got != want {
				t.Errorf("ContextTransition(%s, %s) = %v, want %v", from, to, got, want)
			}
		}
	}
}

func TestContextIDs(t *testing.T) {
	for _, id := range []string{"default", "a", "A-1_b.c", "_x", "9", strings.Repeat("x", 64)} {
		if err := workbench.CheckContextID("id", id); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
	for _, id := range []string{"", ".", "..", "-a", ".a", "a b", "a/b", "é", "a\x00", "a\n", strings.Repeat("x", 65)} {
		err := workbench.AsError(workbench.CheckContextID("contextId", id))
		if err == nil || err.Code != workbench.CodeInvalidRequest || err.Field != "contextId" || err.Hint == "" {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func TestContextUsable(t *testing.T) {
	at := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	js := workbench.Context{ID: "js", Language: workbench.JavaScript, State: workbench.ContextIdle}
	lost := workbench.Context{ID: "py", Language: workbench.Python, State: workbench.ContextLost, Lost: &workbench.ContextLoss{Reason: workbench.LossRoom, At: at}}
	for name, c := range map[string]struct {
		c      workbench.Context
		l      workbench.Language
		policy workbench.LostContextPolicy
		code   workbench.Code
	}{
		"its language":              {js, workbench.JavaScript, "", ""},
		"a language of its kernel":  {js, workbench.TypeScript, "", ""},
		"another language":          {js, workbench.Python, "", workbench.CodeContextLanguage},
		"lost":                      {lost, workbench.Python, "", workbench.CodeContextLost},
		"lost, said so":             {lost, workbench.Python, workbench.LostContextFail, workbench.CodeContextLost},
		"lost, and to be restarted": {lost, workbench.Python, workbench.LostContextRestart, ""},
	} {
		if err := c.c.Usable(c.l, c.policy); workbench.CodeOf(err) != c.code {
			t.Errorf("%s: %v, want %q", name, err, c.code)
		}
	}
	e := workbench.AsError(lost.Usable(workbench.Python, ""))
	if e.Detail != "the variables of this context are gone: the session's idle sandbox made room for another session's at 2026-11-29T12:00:00Z" {
		t.Errorf("detail %q", e.Detail)
	}
	if e = workbench.AsError(js.Usable(workbench.Python, "")); e.Detail != "the context speaks javascript, and the cell is python" {
		t.Errorf("detail %q", e.Detail)
	}
	for _, why := range workbench.LossReasons() {
		if d := (workbench.ContextLoss{Reason: why, At: at}).Detail(); strings.HasPrefix(d, " ") {
			t.Errorf("%s has no words", why)
		}
	}
}

func TestFingerprintCountsTheContext(t *testing.T) {
	spec := workbench.RunSpec{Language: workbench.Python, Code: "1"}
	of := func(s workbench.RunSpec) string { return workbench.Fingerprint(s, nil, workbench.DefaultLimits()) }
	cell, other, restart, fail := spec, spec, spec, spec
	cell.ContextID, other.ContextID = "default", "other"
	restart.ContextID, restart.OnLost = "default", workbench.LostContextRestart
	fail.ContextID, fail.OnLost = "default", workbench.LostContextFail
	seen := map[string]bool{of(spec): true, of(cell): true, of(other): true, of(restart): true}
	if len(seen) != 4 {
		t.Errorf("%d fingerprints of 4 jobs", len(seen))
	}
	if of(fail) != of(cell) {
		t.Error("the default policy, said, makes another job")
	}
}

func TestMIMETypes(t *testing.T) {
	for s, want := range map[string]bool{"text/plain": true, "image/svg+xml": true, "application/vnd.workbench.error+json": true, "a/b": true,
		"": false, "text": false, "text/": false, "/plain": false, "Text/plain": false, "text/plain; charset=utf-8": false, "text/pl ain": false,
		"text/a/b": false, "text/é": false, "text/\n": false, ".a/b": false, "text/" + strings.Repeat("x", 123): false} {
		if got := workbench.ValidMIME(s); got != want {
			t.Errorf("ValidMIME(%q) = %v, want %v", s, got, want)
		}
	}
	for s, want := range map[string]bool{"text/html": true, "image/png": false, "image/svg+xml": true, "application/pdf": false, "application/json": true,
		"application/vnd.vega.v5+json": true, "audio/mpeg": false, "application/javascript": true, "application/octet-stream": false} {
		if got := workbench.TextMIME(s); got != want {
			t.Errorf("TextMIME(%q) = %v, want %v", s, got, want)
		}
	}
}
