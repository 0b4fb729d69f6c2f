package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// Programs of the sessions whose commits are measured: 64 MiB in 1,000 files, of
// which one has 1 MiB.
const (
	fill1000 = `import os
os.makedirs("d", exist_ok=True)
with open("d/0", "wb") as f: f.write(os.urandom(1 << 20))
for i in range(1, 1000):
    with open(f"d/{i}", "wb") as f: f.write(os.urandom((63 << 20) // 999))
print("hello")`
	changeOne = `import os
with open("d/0", "wb") as f: f.write(os.urandom(1 << 20))
print("hello")`
	fillLittle = `open("note.txt", "w").write("note")
print("hello")`
)

// commitSize is a size whose workspace holds more than 64 MiB.
const commitSize = "medium"

// commits measures what a run pays for its commit, by what the server counts as
// workbench_commit_seconds: the sum before and after a run that is alone.
func (w *world) commits(ctx context.Context, o options) ([]row, error) {
	cases := []struct{ name, fill, run string }{
		{nameCommitLittle, fillLittle, hellos[workbench.Python]},
		{nameCommitSame, fill1000, hellos[workbench.Python]},
		{nameCommitOne, fill1000, changeOne},
	}
	sessions := make([]string, len(cases))
	for i, c := range cases {
		var err error
		if sessions[i], err = w.session(ctx, sdk.CreateSession{Size: commitSize}); err != nil {
			return nil, err
		}
		defer func() { _, _ = w.client.CloseAgentSession(context.WithoutCancel(ctx), sessions[i]) }() // the server ends with the bench
		if _, err := w.timed(ctx, sessions[i], job(workbench.Python, c.fill)); err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
	}
	commit, whole := make([][]time.Duration, len(cases)), make([][]time.Duration, len(cases))
	for range o.slowSamples + warmUps {
		for _, i := range rand.Perm(len(cases)) {
			paid, took, err := w.paid(ctx, sessions[i], cases[i].run)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", cases[i].name, err)
			}
			commit[i], whole[i] = append(commit[i], paid), append(whole[i], took)
			if err := w.rest(ctx); err != nil {
				return nil, err
			}
		}
	}
	var rows []row
	for i, c := range cases {
		rows = append(rows, rowOf(c.name, string(workbench.Python), commit[i][warmUps:]),
			rowOf(c.name+", the whole run", string(workbench.Python), whole[i][warmUps:]))
	}
	return rows, nil
}

// paid is what a run paid for its commit, and how long all of it took.
func (w *world) paid(ctx context.Context, session, code string) (commit, whole time.Duration, err error) {
	const sum, count = "workbench_commit_seconds_sum", "workbench_commit_seconds_count"
	var before, after [2]float64
	read := func(into *[2]float64) error {
		var errs [2]error
		into[0], errs[0] = w.metric(ctx, sum)
		into[1], errs[1] = w.metric(ctx, count)
		if errs[0] != nil {
			return errs[0]
		}
		return errs[1]
	}
	if err := read(&before); err != nil {
		return 0, 0, err
	}
	if whole, err = w.timed(ctx, session, job(workbench.Python, code)); err != nil {
		return 0, 0, err
	}
	if err := read(&after); err != nil {
		return 0, 0, err
	}
	if n := after[1] - before[1]; n != 1 {
		return 0, 0, fmt.Errorf("%v commits were counted during one run", n)
	}
	return time.Duration((after[0] - before[0]) * float64(time.Second)), whole, nil
}
