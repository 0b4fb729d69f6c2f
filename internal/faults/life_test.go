package faults_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// life is one session as its client knows it: what it was told is there.
type life struct {
	w      *world
	c      *sdk.Client
	id     string
	name   string
	keep   bool // its memory, while it is suspended
	random *rand.Rand
	n      int // things done, for names

	files map[string]string // path → digest; "" where a run that nobody saw the end of may have written it
	trees map[string]tree   // commit → its files
	cells map[workbench.Language]*counter
}

// tree is what is known of a commit: complete, since a client that waits for
// each answer is the only one.
type tree map[string]string

// counter is a variable that every cell of a context increments by one.
type counter struct {
	least, most int  // what it may be now; they differ after a cell whose end was not seen
	fresh       bool // the client restarted the context, or no cell has run yet
}

// tally is what came of cells, over all sessions.
type tally struct{ kept, restarted, refused, resumed, unknown int }

// create makes the session.
func (l *life) create(ctx context.Context) error {
	s, err := again(ctx, func() (workbench.Session, error) {
		return l.c.CreateAgentSession(ctx, sdk.CreateSession{Agent: l.name, KeepMemory: l.keep})
	})
	l.id = s.ID
	return err
}

// live does some of everything, in any order, and looks at all files in the end.
func (l *life) live(ctx context.Context, rounds int) error {
	if err := l.create(ctx); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	do := []struct {
		name string
		what func(context.Context) error
	}{
		{"write", l.write}, {"run", l.run}, {"background", l.background}, {"idle", l.idle}, {"fork", l.fork},
		{"roll back", l.rollBack}, {"bash cell", l.bashCell}, {"bash cell", l.bashCell}, {"python cell", l.pythonCell}, {"python cell", l.pythonCell},
		{"return", l.comeBack}, {"return", l.comeBack},
	}
	for range rounds {
		next := do[l.random.IntN(len(do))]
		if err := next.what(ctx); err != nil {
			return fmt.Errorf("%s: %w", next.name, err)
		}
	}
	if err := l.look(ctx); err != nil {
		return err
	}
	_, err := again(ctx, func() (workbench.Session, error) { return l.c.CloseAgentSession(ctx, l.id) })
	if err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

func (l *life) next() string {
	l.n++
	return fmt.Sprintf("%s-%d", l.name, l.n)
}

// write puts a file into the workspace from outside.
func (l *life) write(ctx context.Context) error {
	name := l.next()
	content := strings.Repeat(name+"\n", 1+l.random.IntN(20_000)) // up to a few chunks
	change, err := again(ctx, func() (workbench.WorkspaceChange, error) {
		return l.c.WriteWorkspaceFile(ctx, l.id, sdk.WriteFile{Path: "written-" + name}, strings.NewReader(content))
	})
	if err != nil {
		return err
	}
	l.files["written-"+name] = digest([]byte(content))
	l.trees[change.Commit.ID] = maps.Clone(l.files)
	return nil
}

// run has a program write a file and print.
func (l *life) run(ctx context.Context) error { return l.program(ctx, false) }

// background does so beside the queue, and takes its time.
func (l *life) background(ctx context.Context) error { return l.program(ctx, true) }

func (l *life) program(ctx context.Context, aside bool) error {
	key := l.next()
	file := "made-" + key
	code := fmt.Sprintf("echo %s > %s; echo %s", key, file, key)
	if aside {
		code = "sleep 0.5; " + code
	}
	r, err := l.submit(ctx, key, sdk.CreateRun{Language: workbench.Bash, Code: marking(key, code), Background: aside})
	if err != nil {
		return err
	}
	switch {
	case r.Status == workbench.StatusSucceeded && r.Output() == key+"\n":
		l.files[file] = digest([]byte(key + "\n"))
		l.trees[r.CommitID] = maps.Clone(l.files)
	case r.Status == workbench.StatusUnknown:
		l.files[file] = ""
	case r.Reason == workbench.ReasonInfrastructure:
	default:
		return fmt.Errorf("%s is %s (%s %s) and said %q, %q", r.ID, r.Status, r.Reason, r.Message, r.Output(), r.ErrorOutput())
	}
	return nil
}

// submit submits until there is an answer and waits for the end.
func (l *life) submit(ctx context.Context, key string, r sdk.CreateRun) (workbench.Receipt, error) {
	r.IdempotencyKey = key
	got, err := again(ctx, func() (sdk.Submitted, error) { return l.c.CreateSessionRun(ctx, l.id, r) })
	if err != nil {
		return workbench.Receipt{}, err
	}
	l.w.mu.Lock()
	l.w.runs[got.ID] = &known{key: key, session: l.id, last: got.Run}
	l.w.mu.Unlock()
	return l.w.wait(ctx, l.c, got.ID)
}

const (
	bashCount   = `n=$((${n:-0}+1)); echo $n`
	pythonCount = `
import os, tempfile
mark, _ = tempfile.mkstemp(dir="/opt/workbench/packages")
os.write(mark, b"%s\n"); os.fsync(mark); os.close(mark)
n = globals().get("n", 0) + 1
print(n)`
)

func (l *life) bashCell(ctx context.Context) error {
	key := l.next()
	return l.cell(ctx, workbench.Bash, key, marking(key, bashCount))
}

func (l *life) pythonCell(ctx context.Context) error {
	key := l.next()
	return l.cell(ctx, workbench.Python, key, fmt.Sprintf(pythonCount, key))
}

// cell increments a variable of a context and prints it. What it prints is what
// the client counted, or somebody said that the variables were gone.
func (l *life) cell(ctx context.Context, language workbench.Language, key, code string) error {
	known := l.cells[language]
	if known == nil {
		_, err := again(ctx, func() (workbench.Context, error) {
			return l.c.CreateContext(ctx, l.id, sdk.CreateContext{ID: string(language), Language: language})
		})
		if err != nil {
			return fmt.Errorf("context: %w", err)
		}
		known = &counter{fresh: true}
		l.cells[language] = known
	}
	r, err := l.submit(ctx, key, sdk.CreateRun{Language: language, Code: code, ContextID: string(language)})
	if workbench.HasCode(err, workbench.CodeContextLost) || err == nil && r.Reason == workbench.ReasonContextLost {
		return l.restartContext(ctx, language)
	}
	if err != nil {
		return err
	}
	return l.counted(known, r)
}

// restartContext takes note that the variables are gone.
func (l *life) restartContext(ctx context.Context, language workbench.Language) error {
	if l.cells[language].fresh {
		return errors.New("a context that has no variables lost them")
	}
	l.w.count(func(t *tally) { t.refused++ })
	_, err := again(ctx, func() (workbench.Context, error) {
		return l.c.RestartContext(ctx, l.id, string(language), true)
	})
	l.cells[language] = &counter{fresh: true}
	return err
}

// counted holds what a cell printed against what it may have found.
func (l *life) counted(known *counter, r workbench.Receipt) error {
	said := map[string]bool{}
	for _, n := range r.Notices {
		said[n.Code] = true
	}
	switch {
	case r.Status == workbench.StatusUnknown:
		l.w.count(func(t *tally) { t.unknown++ })
		known.most++
		known.fresh = false // what it defined went with the server
		return nil
	case r.Reason == workbench.ReasonInfrastructure:
		return nil
	case r.Status != workbench.StatusSucceeded:
		return fmt.Errorf("%s is %s (%s %s) and said %q, %q", r.ID, r.Status, r.Reason, r.Message, r.Output(), r.ErrorOutput())
	}
	n, err := strconv.Atoi(strings.TrimSpace(r.Output()))
	if err != nil {
		return fmt.Errorf("%s said %q", r.ID, r.Output())
	}
	least, most := known.least+1, known.most+1
	if said[workbench.NoticeContextRestart] || known.fresh {
		least, most = 1, 1
	}
	if n < least || n > most {
		return fmt.Errorf("a cell (%s) counted %d, want %d to %d; notices %v", r.ID, n, least, most, r.Notices)
	}
	l.w.count(func(t *tally) {
		switch {
		case said[workbench.NoticeContextRestart]:
			t.restarted++
		case said[workbench.NoticeResumed]:
			t.resumed++
		case !known.fresh:
			t.kept++
		}
	})
	*known = counter{least: n, most: n}
	return nil
}

// idle waits until the session is suspended, or the server has died meanwhile
// and everybody's patience is over.
func (l *life) idle(ctx context.Context) error {
	for deadline := time.Now().Add(8 * time.Second); time.Now().Before(deadline); {
		s, err := again(ctx, func() (workbench.Session, error) { return l.c.AgentSession(ctx, l.id) })
		if err != nil {
			return err
		}
		if s.Suspended != nil {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	return l.look(ctx)
}

// comeBack runs a cell on both sides of a suspension.
func (l *life) comeBack(ctx context.Context) error {
	cell := l.bashCell
	if l.random.IntN(2) == 0 {
		cell = l.pythonCell
	}
	for _, step := range []func(context.Context) error{cell, l.idle, cell} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// rollBack goes back to a commit that was told of.
func (l *life) rollBack(ctx context.Context) error {
	commit, files := l.anyTree()
	if commit == "" {
		return l.write(ctx)
	}
	back, err := again(ctx, func() (workbench.Session, error) {
		b, err := l.c.RollBackSession(ctx, l.id, sdk.RollBack{Commit: commit})
		return b.Session, err
	})
	if err != nil {
		return err
	}
	l.files = maps.Clone(files)
	l.trees[back.HeadCommit] = files
	return nil
}

func (l *life) anyTree() (string, tree) {
	for commit, files := range l.trees {
		return commit, files
	}
	return "", nil
}

// fork makes a session of a commit, uses it and closes it.
func (l *life) fork(ctx context.Context) error {
	commit, files := l.anyTree()
	if commit == "" {
		return l.run(ctx)
	}
	s, err := again(ctx, func() (workbench.Session, error) {
		return l.c.ForkAgentSession(ctx, l.id, sdk.ForkSession{Commit: commit})
	})
	if err != nil {
		return err
	}
	fork := &life{w: l.w, c: l.c, id: s.ID, name: l.next(), random: l.random, files: maps.Clone(files), trees: map[string]tree{}}
	if err := fork.look(ctx); err != nil {
		return fmt.Errorf("the fork: %w", err)
	}
	if err := fork.run(ctx); err != nil {
		return fmt.Errorf("the fork: %w", err)
	}
	if err := fork.look(ctx); err != nil {
		return fmt.Errorf("the fork: %w", err)
	}
	_, err = again(ctx, func() (workbench.Session, error) { return l.c.CloseAgentSession(ctx, s.ID) })
	return err
}

// look compares all files, and those of every commit, with what was told.
func (l *life) look(ctx context.Context) error {
	now, err := again(ctx, func() ([]workbench.TreeEntry, error) {
		v, err := l.c.ListWorkspace(ctx, l.id, workbench.TreeQuery{Recursive: true, Page: workbench.Page{Limit: 100}})
		return v.Items, err
	})
	if err != nil {
		return fmt.Errorf("files: %w", err)
	}
	if err := compare(now, l.files); err != nil {
		return fmt.Errorf("the workspace: %w", err)
	}
	for commit, files := range l.trees {
		at, err := again(ctx, func() ([]workbench.TreeEntry, error) {
			v, err := l.c.CommitTree(ctx, commit, workbench.TreeQuery{Recursive: true, Page: workbench.Page{Limit: 100}})
			return v.Items, err
		})
		if err != nil {
			return fmt.Errorf("commit %s: %w", commit, err)
		}
		if err := compare(at, files); err != nil {
			return fmt.Errorf("commit %s: %w", commit, err)
		}
	}
	return l.read(ctx)
}

// read reads one file whole.
func (l *life) read(ctx context.Context) error {
	for path, want := range l.files {
		if want == "" {
			continue
		}
		b, err := again(ctx, func() ([]byte, error) { return l.c.ReadWorkspaceFile(ctx, l.id, path) })
		if err != nil || digest(b) != want {
			return fmt.Errorf("%s reads %d bytes, %w", path, len(b), err)
		}
		return nil
	}
	return nil
}

func compare(entries []workbench.TreeEntry, want tree) error {
	there := map[string]bool{}
	for _, e := range entries {
		digest, known := want[e.Path]
		if !known || digest != "" && digest != e.SHA256 {
			return fmt.Errorf("%s has the digest %s, want %q (known: %t)", e.Path, e.SHA256, digest, known)
		}
		there[e.Path] = true
	}
	for path, digest := range want {
		if digest != "" && !there[path] {
			return fmt.Errorf("%s is gone", path)
		}
	}
	return nil
}
