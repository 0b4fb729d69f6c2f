package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// pandasHello is the hello of a program that begins with what takes long.
const pandasHello = "import pandas\n" + `print("hello")`

// pandasImage is the image that has it.
const pandasImage = "standard"

// job is a program that a session runs, and must answer with the hello.
func job(l workbench.Language, code string) sdk.CreateRun {
	return sdk.CreateRun{Language: l, Code: code}
}

// cellOf is a program as a cell of the session's default context.
func cellOf(l workbench.Language, code string) sdk.CreateRun {
	return sdk.CreateRun{Language: l, Code: code, ContextID: workbench.DefaultContext}
}

// contenders are the ways through Workbench. Each has a session of its own where
// it needs one, so that none finds what another has left.
func (w *world) contenders() []contender {
	var all []contender
	add := func(name string, l workbench.Language, few bool, run func(ctx context.Context) (time.Duration, error)) {
		all = append(all, contender{name: name, language: string(l), few: few, run: run, rest: w.rest})
	}
	for _, l := range raced {
		add(nameLive, l, false, func(ctx context.Context) (time.Duration, error) {
			began := time.Now()
			r, err := w.hello(ctx, w.live[l].id, l)
			took := time.Since(began)
			w.parts[l].add(took, r)
			return took, err
		})
	}
	for _, l := range []workbench.Language{workbench.Python, workbench.JavaScript} {
		add(nameCell, l, false, w.inSession(sdk.CreateSession{}, cellOf(l, hellos[l])))
	}
	for _, l := range raced {
		twice := w.inSession(sdk.CreateSession{}, job(l, hellos[l]))
		add(nameNext, l, true, func(ctx context.Context) (time.Duration, error) {
			if _, err := twice(ctx); err != nil {
				return 0, err
			}
			return twice(ctx)
		})
	}
	for _, l := range raced {
		judged := l == workbench.Python // by its p99
		all = append(all, contender{name: nameNew, language: string(l), few: !judged, tail: judged, rest: w.rest,
			run: func(ctx context.Context) (time.Duration, error) { return w.newSession(ctx, l) }})
	}
	add(nameLive, pandas, true, w.inSession(sdk.CreateSession{Image: pandasImage}, job(workbench.Python, pandasHello)))
	add(nameAdmit, workbench.Bash, false, w.admission)
	return all
}

// rest waits until the warm sandboxes are complete and the processors idle: the
// interpreter of a session's next run has started by then, as it does while an
// agent thinks.
func (w *world) rest(ctx context.Context) error {
	if err := w.refilled(ctx); err != nil {
		return err
	}
	return awaitQuiet(ctx)
}

// inSession times a run that says hello, in a session that is made when it is
// first needed.
func (w *world) inSession(s sdk.CreateSession, run sdk.CreateRun) func(context.Context) (time.Duration, error) {
	id := ""
	return func(ctx context.Context) (time.Duration, error) {
		if id == "" {
			made, err := w.session(ctx, s)
			if err != nil {
				return 0, err
			}
			id = made
		}
		return w.timed(ctx, id, run)
	}
}

// session makes a session.
func (w *world) session(ctx context.Context, s sdk.CreateSession) (string, error) {
	s.Agent = "bench"
	made, err := w.client.CreateAgentSession(ctx, s)
	return made.ID, err
}

// timed runs a job that says hello, and tells how long it took.
func (w *world) timed(ctx context.Context, session string, run sdk.CreateRun) (time.Duration, error) {
	began := time.Now()
	r, err := w.submit(ctx, session, run, time.Minute)
	took := time.Since(began)
	return took, saidHello(r, err)
}

// saidHello is an error unless a run came out as every contender's must.
func saidHello(r workbench.Receipt, err error) error {
	if err == nil && (r.Status != workbench.StatusSucceeded || r.Output() != helloText) {
		err = fmt.Errorf("the run ended %s (%s) %s: %s", r.Status, r.Reason, r.Message, r.ErrorOutput())
	}
	return err
}

// hello runs a language's hello in a session.
func (w *world) hello(ctx context.Context, session string, l workbench.Language) (workbench.Receipt, error) {
	r, err := w.submit(ctx, session, job(l, hellos[l]), time.Minute)
	return r, saidHello(r, err)
}

// newSession times a session's making and its first result.
func (w *world) newSession(ctx context.Context, l workbench.Language) (time.Duration, error) {
	began := time.Now()
	id, err := w.session(ctx, sdk.CreateSession{})
	if err != nil {
		return 0, err
	}
	_, err = w.hello(ctx, id, l)
	took := time.Since(began)
	_, closeErr := w.client.CloseAgentSession(ctx, id)
	return took, errors.Join(err, closeErr)
}

// admission times a submission up to its 202.
func (w *world) admission(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	r, err := w.submit(ctx, w.live[workbench.Bash].id, job(workbench.Bash, hellos[workbench.Bash]), 0)
	took := time.Since(began)
	if err != nil {
		return 0, err
	}
	_, err = w.client.WaitForSessionRun(ctx, r.ID)
	return took, err
}

// metric is the value of one line of the server's metrics; 0 if it has none.
func (w *world) metric(ctx context.Context, name string) (float64, error) {
	text, err := w.metrics(ctx)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, nil
}
