package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

func chart() workbench.Result {
	return workbench.Result{Index: 1, Type: workbench.ResultDisplay, Data: map[string]json.RawMessage{
		"image/png": json.RawMessage(`"iVBORw0KGg=="`), "text/plain": json.RawMessage(`"Figure"`)}}
}

// TestEventsOnATerminal: what a run showed is told by type and size there, and
// whole where it was asked for or a program reads.
func TestEventsOnATerminal(t *testing.T) {
	shown := chart()
	e := sdk.Event{Seq: 4, Kind: workbench.LogResult, At: time.Date(2026, 5, 1, 8, 0, 0, 0, time.UTC), Result: &shown}
	for full, want := range map[bool]string{
		false: "result\t1 display  image/png (7 B), text/plain (6 B)\n",
		true:  `result` + "\t" + `{"index":1,"type":"display","data":{"image/png":"iVBORw0KGg==","text/plain":"Figure"}}` + "\n",
	} {
		var out bytes.Buffer
		a := &app{out: &out, outTTY: true}
		if err := a.event(e, full); err != nil || !strings.HasSuffix(out.String(), want) {
			t.Errorf("full %v: %q, %v; want the end %q", full, out.String(), err, want)
		}
	}
}

// TestSummaryOfWhatWasShown: the summary names what printing does not show, how
// to get it, and changes in which others had a part.
func TestSummaryOfWhatWasShown(t *testing.T) {
	r := workbench.Receipt{Run: workbench.Run{ID: "run_1", Status: workbench.StatusSucceeded, CommitID: "cmt_1",
		Files: workbench.FilesChanged{Total: 1, Items: []workbench.ChangedFile{{Path: "a", Type: "file"}}}},
		Results: []workbench.Result{chart(), {Index: 2, Type: workbench.ResultValue, Data: map[string]json.RawMessage{"text/plain": json.RawMessage(`"1"`)}}}}
	for exclusive, want := range map[bool]string{
		false: "workbench: run_1 succeeded in \n" +
			"workbench: the run showed 1 result (image/png): workbench runs files run_1 --out DIR brings it here\n" +
			"workbench: what changed in the workspace is shared: other code, or changes from outside, had a part in this\n" +
			"workbench: the run changed 1 file: workbench runs files run_1 --out DIR brings it here\n",
		true: "workbench: run_1 succeeded in \n" +
			"workbench: the run showed 1 result (image/png): workbench runs files run_1 --out DIR brings it here\n" +
			"workbench: the run changed 1 file: workbench runs files run_1 --out DIR brings it here\n",
	} {
		var errs bytes.Buffer
		r.Files.Exclusive = exclusive
		(&app{err: &errs}).summary(r, nil, "", "")
		if errs.String() != want {
			t.Errorf("exclusive %v:\n%s\nwant\n%s", exclusive, errs.String(), want)
		}
	}
}
