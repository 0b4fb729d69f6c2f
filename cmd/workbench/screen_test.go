package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

func TestNotesBeginOnALineOfTheirOwn(t *testing.T) {
	for _, tc := range []struct {
		name           string
		outTTY, errTTY bool
		stream         workbench.Stream
		printed        string
		out, err       string
	}{
		{"both on the terminal, no end of line", true, true, workbench.Stdout, "42", "42\nworkbench: note\n", ""},
		{"both on the terminal, with its end", true, true, workbench.Stdout, "42\n", "42\nworkbench: note\n", ""},
		{"nothing printed", true, true, workbench.Stdout, "", "workbench: note\n", ""},
		{"stderr without its end", true, true, workbench.Stderr, "oops", "oops\nworkbench: note\n", ""},
		{"stdout piped", false, true, workbench.Stdout, "42", "42", "workbench: note\n"},
		{"stderr piped", true, false, workbench.Stdout, "42", "42", "workbench: note\n"},
		{"both piped", false, false, workbench.Stdout, "42", "42", "workbench: note\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			a := &app{out: &out, err: &errOut, outTTY: tc.outTTY, errTTY: tc.errTTY}
			if tc.outTTY && tc.errTTY {
				a.err = &out // one terminal
			}
			a.shareScreen()
			p := a.printer()
			if err := p.chunk(sdk.Chunk{Stream: tc.stream, Length: int64(len(tc.printed)), Text: tc.printed}); err != nil {
				t.Fatal(err)
			}
			if err := p.close(); err != nil {
				t.Fatal(err)
			}
			a.note("note")
			if out.String() != tc.out || errOut.String() != tc.err {
				t.Errorf("stdout %q, want %q; stderr %q, want %q", out.String(), tc.out, errOut.String(), tc.err)
			}
		})
	}
}

func TestEndings(t *testing.T) {
	at := time.Date(2026, 5, 1, 8, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		run  workbench.Run
		want string
	}{
		{workbench.Run{ID: "run_1", Status: workbench.StatusSucceeded, StartedAt: &at, FinishedAt: &at, DurationMs: 42}, "run_1 succeeded in 42ms"},
		{workbench.Run{ID: "run_1", Status: workbench.StatusFailed, Reason: workbench.ReasonExit, StartedAt: &at, FinishedAt: &at, DurationMs: 1230, Message: "exit code 3"}, "run_1 failed (nonzero_exit) after 1.23s: exit code 3"},
		{workbench.Run{ID: "run_1", Status: workbench.StatusUnknown, Reason: workbench.ReasonServerLost, StartedAt: &at, FinishedAt: &at, Message: "the server was lost"}, "run_1 unknown (server_lost): the server was lost"},
		{workbench.Run{ID: "run_1", Status: workbench.StatusCancelled, Reason: workbench.ReasonCancelled, FinishedAt: &at}, "run_1 cancelled (cancelled_by_user) before it started"},
	} {
		if got := ending(tc.run); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
	if got := counted(1, "file") + ", " + counted(2, "file") + ", " + counted(0, "file"); got != "1 file, 2 files, 0 files" {
		t.Errorf("counted: %s", got)
	}
}
