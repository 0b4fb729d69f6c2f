package storetest

import (
	"bytes"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

func testLog(t *testing.T, open Open) {
	t.Run("entries continue exactly, in seq and in every stream", func(t *testing.T) {
		w := mustWorld(t, open)
		_, r, epoch := w.mustOut(w.ann)
		running := workbench.StatusRunning
		want(t, w.AppendLog(ctx(t), r.ID, epoch, 1, &running, []workbench.LogEntry{
			store.StatusEntry(r.ID, 3, running, "", w.now), output(4, workbench.Stdout, 0, "abc"), output(5, workbench.Stderr, 0, "x"),
		}), "")
		equal(t, "status", w.mustRun(r.ID).Status, running)
		for name, entry := range map[string]workbench.LogEntry{
			"a gap in seq":          output(7, workbench.Stdout, 3, "d"),
			"a gap in the stream":   output(6, workbench.Stdout, 4, "d"),
			"an overlap":            output(6, workbench.Stdout, 2, "d"),
			"another stream's end":  output(6, workbench.Stderr, 3, "d"),
			"no stream":             {Seq: 6, Kind: workbench.LogOutput},
			"an unknown stream":     output(6, "stdlog", 0, "d"),
			"a terminal entry":      store.TerminalEntry(r.ID, 6, workbench.StatusSucceeded, "", w.now),
			"a repeat that differs": output(5, workbench.Stderr, 0, "xy"),
		} {
			if err := w.AppendLog(ctx(t), r.ID, epoch, 1, nil, []workbench.LogEntry{entry}); !workbench.HasCode(err, workbench.CodeConflict) {
				t.Fatalf("%s: %v, want a conflict", name, err)
			}
		}
		want(t, w.AppendLog(ctx(t), r.ID, epoch, 1, nil, []workbench.LogEntry{output(6, workbench.Stdout, 3, "d")}), "")
		read := w.mustRun(r.ID)
		equal(t, "stdout so far", read.Outputs.Stdout.CapturedBytes, 4)
		equal(t, "stderr so far", read.Outputs.Stderr.CapturedBytes, 1)
		log, err := w.Log(ctx(t), w.ann, r.ID, 0, 0)
		want(t, err, "")
		for i, e := range log {
			equal(t, "seq", e.Seq, int64(i+1))
		}
		equal(t, "entries", len(log), 6)
		page, err := w.Log(ctx(t), w.ann, r.ID, 2, 2)
		want(t, err, "")
		equal(t, "page", len(page), 2)
		equal(t, "from", page[0].Seq, 3)
		page, err = w.Log(ctx(t), w.ann, r.ID, 6, 0)
		want(t, err, "")
		equal(t, "behind the last", len(page), 0)
		_, err = w.Log(ctx(t), w.ann, r.ID, 7, 0)
		want(t, err, workbench.CodeOffsetInvalid)
		_, err = w.Log(ctx(t), w.mustDirect("acme", "ben"), r.ID, 7, 0)
		want(t, err, workbench.CodeNotFound)
	})
	t.Run("a repeat of a lost answer changes nothing", func(t *testing.T) {
		w := mustWorld(t, open)
		_, r, epoch := w.mustOut(w.ann)
		entries := []workbench.LogEntry{output(3, workbench.Stdout, 0, "abc"), output(4, workbench.Stdout, 3, "d")}
		want(t, w.AppendLog(ctx(t), r.ID, epoch, 1, nil, entries), "")
		want(t, w.AppendLog(ctx(t), r.ID, epoch, 1, nil, entries), "")
		equal(t, "bytes", w.mustRun(r.ID).Outputs.Stdout.CapturedBytes, 4)
		entries = append(entries, output(5, workbench.Stdout, 4, "new"))
		want(t, w.AppendLog(ctx(t), r.ID, epoch, 1, nil, entries), workbench.CodeConflict)
	})
	t.Run("only who holds the lease and the generation may append", func(t *testing.T) {
		w := mustWorld(t, open)
		s, r, epoch := w.mustOut(w.ann)
		e := []workbench.LogEntry{output(3, workbench.Stdout, 0, "abc")}
		want(t, w.AppendLog(ctx(t), r.ID, epoch-1, 1, nil, e), workbench.CodeFenced)
		want(t, w.AppendLog(ctx(t), r.ID, epoch, 2, nil, e), workbench.CodeFenced)
		want(t, w.AppendLog(ctx(t), "run_none", epoch, 1, nil, e), workbench.CodeNotFound)
		_, err := w.BumpGeneration(ctx(t), w.ann, s.ID, epoch, false)
		want(t, err, "")
		want(t, w.AppendLog(ctx(t), r.ID, epoch, 1, nil, e), workbench.CodeFenced)
		want(t, w.AppendLog(ctx(t), r.ID, epoch, 2, nil, e), workbench.CodeFenced) // the step is of generation 1
		queued := w.mustAdmit(w.ann, s.ID)
		want(t, w.AppendLog(ctx(t), queued.ID, epoch, 2, nil, []workbench.LogEntry{output(2, workbench.Stdout, 0, "a")}), workbench.CodeFenced)
		equal(t, "nothing was kept", w.mustRun(r.ID).Outputs.Stdout.CapturedBytes, 0)
	})
	t.Run("a range of output is the entries that overlap it", func(t *testing.T) {
		w := mustWorld(t, open)
		_, r, epoch := w.mustOut(w.ann)
		for i := range int64(10) {
			want(t, w.AppendLog(ctx(t), r.ID, epoch, 1, nil, []workbench.LogEntry{
				output(3+2*i, workbench.Stdout, 10*i, "0123456789"), output(4+2*i, workbench.Stderr, i, "e"),
			}), "")
		}
		for _, c := range []struct {
			offset, limit int64
			first         int64
			entries       int
		}{{0, 1, 0, 1}, {0, 10, 0, 1}, {9, 2, 0, 2}, {10, 10, 10, 1}, {35, 30, 30, 4}, {99, 50, 90, 1}} {
			got, total, err := w.OutputRange(ctx(t), w.ann, r.ID, workbench.Stdout, c.offset, c.limit)
			want(t, err, "")
			equal(t, "total", total, 100)
			equal(t, "entries", len(got), c.entries)
			equal(t, "first", got[0].Offset, c.first)
		}
		got, total, err := w.OutputRange(ctx(t), w.ann, r.ID, workbench.Stdout, 100, 10)
		want(t, err, "")
		equal(t, "past the end", len(got), 0)
		equal(t, "total", total, 100)
		var all bytes.Buffer
		got, _, err = w.OutputRange(ctx(t), w.ann, r.ID, workbench.Stderr, 0, 1000)
		want(t, err, "")
		for _, e := range got {
			all.Write(e.Data)
		}
		equal(t, "stderr", all.String(), "eeeeeeeeee")
	})
	t.Run("an admin without contents sees that there is output, not what", func(t *testing.T) {
		w := mustWorld(t, open)
		_, r, epoch := w.mustOut(w.ann)
		want(t, w.AppendLog(ctx(t), r.ID, epoch, 1, nil, []workbench.LogEntry{output(3, workbench.Stdout, 0, "secret")}), "")
		admin := w.admin()
		log, err := w.Log(ctx(t), admin, r.ID, 2, 0)
		want(t, err, "")
		equal(t, "length", log[0].Length, 6)
		equal(t, "data", log[0].Data == nil, true)
		_, _, err = w.OutputRange(ctx(t), admin, r.ID, workbench.Stdout, 0, 10)
		want(t, err, workbench.CodeForbidden)
		contents, err := w.Contents(ctx(t), admin, r.ID)
		want(t, err, "")
		equal(t, "entries with contents", len(contents), 1)
		equal(t, "contents", contents[0].Data == nil, true)
		read, err := w.Run(ctx(t), admin, r.ID)
		want(t, err, "")
		equal(t, "spec", read.Sealed == nil, true)
		admin.Contents = true
		contents, err = w.Contents(ctx(t), admin, r.ID)
		want(t, err, "")
		equal(t, "contents", string(contents[0].Data), "secret")
		_, _, err = w.OutputRange(ctx(t), admin, r.ID, workbench.Stdout, 0, 10)
		want(t, err, "")
	})
}
