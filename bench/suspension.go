package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"time"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

const (
	// suspendAfter makes sessions go soon; how long they idle before does not
	// change how they return.
	suspendAfter = 300 * time.Millisecond
	// suspendWithin bounds the wait for it.
	suspendWithin = time.Minute

	makeMiB = `import os
open("data.bin", "wb").write(os.urandom(1 << 20))
print("hello")`
	readMiB = `print("hello" if len(open("data.bin", "rb").read()) == 1 << 20 else "lost")`

	makeLive = `import os
data = os.urandom(30 << 20)
print("hello")`
	readLive = `print("hello" if len(data) == 30 << 20 else "lost")`
)

// returns measures how long a run takes that finds its session suspended, in
// turns with the bare runtime's restore.
func returns(ctx context.Context, o options, p *peers, dir string) (rows []row, figures []figure, err error) {
	w, err := openWorld(ctx, o, dir, setting{warm: warmSandboxes, suspendAfter: suspendAfter})
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	files := w.returning(nameReturnFiles, sdk.CreateSession{}, job(workbench.Python, makeMiB), job(workbench.Python, readMiB))
	memory := w.returning(nameReturnMemory, sdk.CreateSession{KeepMemory: true}, cellOf(workbench.Python, makeLive), cellOf(workbench.Python, readLive))
	all := []contender{files, memory}
	bare, err := p.bareRestore(ctx, o, filepath.Join(dir, "restore"))
	if err != nil {
		rows = append(rows, row{Name: nameRestore, Language: "python", NotMeasured: err.Error()})
	} else {
		defer func() { err = errors.Join(err, bare.close()) }()
		all = append(all, contender{name: nameRestore, language: "python", peer: true, run: bare.run})
	}
	few := o
	few.samples, few.tailSamples, few.only = o.slowSamples, 0, ""
	measured, err := measure(ctx, few, all)
	if err != nil {
		return rows, nil, err
	}
	suspended, err := w.suspendedMemory(ctx, o.suspended)
	return append(measured, rows...), []figure{suspended}, err
}

// returning is a session that is suspended before each of its runs.
func (w *world) returning(name string, s sdk.CreateSession, first, next sdk.CreateRun) contender {
	id := ""
	return contender{name: name, language: string(workbench.Python), run: func(ctx context.Context) (time.Duration, error) {
		if id == "" {
			made, err := w.session(ctx, s)
			if err != nil {
				return 0, err
			}
			if _, err := w.timed(ctx, made, first); err != nil {
				return 0, err
			}
			id = made
		}
		suspension, err := w.suspended(ctx, id)
		if err != nil {
			return 0, err
		}
		if suspension.MemoryKept != s.KeepMemory {
			return 0, fmt.Errorf("memory kept: %v, want %v", suspension.MemoryKept, s.KeepMemory)
		}
		if err := w.rest(ctx); err != nil {
			return 0, err
		}
		return w.timed(ctx, id, next)
	}}
}

// suspended waits until a session is.
func (w *world) suspended(ctx context.Context, id string) (workbench.Suspension, error) {
	ctx, cancel := context.WithTimeout(ctx, suspendWithin)
	defer cancel()
	for {
		s, err := w.client.AgentSession(ctx, id)
		if err != nil {
			return workbench.Suspension{}, err
		}
		if s.Suspended != nil {
			return *s.Suspended, nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return workbench.Suspension{}, fmt.Errorf("not suspended within %s", suspendWithin)
		}
	}
}

// suspendedMemory is what the server's process holds for a session that is
// suspended: heap in use and stacks, both after a collection.
func (w *world) suspendedMemory(ctx context.Context, n int) (figure, error) {
	f := figure{Name: nameSuspended, Unit: "KB", Samples: n, Note: "Go heap and stacks of the server"}
	one := func() (string, error) {
		id, err := w.session(ctx, sdk.CreateSession{})
		if err == nil {
			_, err = w.hello(ctx, id, workbench.Bash)
		}
		return id, err
	}
	id, err := one() // what the first brings is no session's
	if err != nil {
		return f, err
	}
	if _, err := w.suspended(ctx, id); err != nil {
		return f, err
	}
	before := inUse()
	ids := make([]string, n)
	for i := range ids {
		if ids[i], err = one(); err != nil {
			return f, err
		}
	}
	for _, id := range ids {
		if _, err := w.suspended(ctx, id); err != nil {
			return f, err
		}
	}
	if err := w.rest(ctx); err != nil {
		return f, err
	}
	f.Value = float64(inUse()-before) / 1000 / float64(n)
	return f, nil
}

// inUse is the memory of this process's Go heap and stacks.
func inUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what finalizers let go
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
