package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
)

// Rows about what one run or one session sees of another.

// pair returns two sandboxes, as of two tenants.
func (s *scene) pair(ctx context.Context) (a, b *session, err error) {
	if a, err = s.session(ctx, mainSession); err != nil {
		return nil, nil, err
	}
	b, err = s.session(ctx, secondSession)
	return a, b, err
}

// leaveProcess runs a program that leaves a detached process with the marker in
// its command line.
func (b *session) leaveProcess(ctx context.Context, mark string) error {
	out, err := b.exec(ctx, guestwire.ExecRequest{Argv: []string{"/bin/bash", "-c", "setsid bash -c 'exec -a " + mark + " sleep 30' >/dev/null 2>&1 </dev/null & sleep 0.3"}})
	if err == nil && out.ExitCode != 0 {
		err = fmt.Errorf("leave a process: exit %d: %s", out.ExitCode, lastBytes(out.stderr, 300))
	}
	return err
}

func checkNextRun(ctx context.Context, s *scene) finding {
	b, err := s.session(ctx, mainSession)
	if err != nil {
		return broke(err)
	}
	mark := marker()
	if err := b.leaveProcess(ctx, mark); err != nil {
		return broke(err)
	}
	return b.judge(ctx, "processes", map[string]any{"marker": mark, "whose": "the run before"})
}

func checkSharedView(ctx context.Context, s *scene) finding {
	a, b, err := s.pair(ctx)
	if err != nil {
		return broke(err)
	}
	mark := marker()
	run, err := a.begin(ctx, guestwire.ExecRequest{Argv: []string{"/bin/bash", "-c", "echo up; exec -a " + mark + " sleep 20"}})
	if err != nil {
		return broke(err)
	}
	defer run.stop(ctx)
	if err := run.hears(ctx, "up"); err != nil {
		return broke(err)
	}
	time.Sleep(100 * time.Millisecond)
	return judgeAll(
		func() finding {
			return b.judge(ctx, "processes", map[string]any{"marker": mark, "whose": "another session"})
		},
		func() finding {
			return a.judge(ctx, "processes", map[string]any{"marker": mark, "whose": "another run"})
		},
	)
}

func checkResidue(ctx context.Context, s *scene) finding {
	a, b, err := s.pair(ctx)
	if err != nil {
		return broke(err)
	}
	mark := marker()
	v, _, err := a.probe(ctx, "residue", map[string]any{"marker": mark, "drop": true})
	if err != nil {
		return broke(err)
	}
	if f := b.judge(ctx, "residue", map[string]any{"marker": mark, "drop": false}); f.outcome != Proved {
		return f
	}
	fresh, err := s.start(ctx, s.class())
	if err != nil {
		return broke(err)
	}
	defer fresh.discard(ctx)
	f := fresh.judge(ctx, "residue", map[string]any{"marker": mark, "drop": false})
	if f.outcome == Proved {
		return proved("%s in one session; none seen in another, nor in a new one", v.Why)
	}
	return f
}

func checkIPC(ctx context.Context, s *scene) finding {
	a, b, err := s.pair(ctx)
	if err != nil {
		return broke(err)
	}
	h := fnv.New32a()
	h.Write([]byte(s.instance + randomID()))
	key := int(h.Sum32()&0x3fffffff | 1)
	v, _, err := a.probe(ctx, "H36", map[string]any{"key": key, "leave": true})
	if err != nil {
		return broke(err)
	}
	onHost := removeHostIPC(v.Data)
	if strings.Contains(hostFile("/proc/sysvipc/shm"), fmt.Sprintf(" %d ", key)) || onHost {
		return failed("the shared memory is the host's own")
	}
	look := map[string]any{"key": key, "leave": false}
	f := judgeAll(
		func() finding { return a.judge(ctx, "H36", look) },
		func() finding { return b.judge(ctx, "H36", look) },
	)
	if f.outcome == Proved {
		return proved("%s; not found by the next run nor by another session", v.Why)
	}
	return f
}

// removeHostIPC removes objects of a broken profile that came to be the host's
// own, and reports whether there were any.
func removeHostIPC(data json.RawMessage) bool {
	var made map[string]int
	if json.Unmarshal(data, &made) != nil {
		return false
	}
	found := false
	for name, id := range made {
		file := map[string]string{"shmget": "shm", "semget": "sem", "msgget": "msg"}[name]
		owner := 0
		for line := range strings.SplitSeq(hostFile("/proc/sysvipc/"+file), "\n") {
			f := strings.Fields(line)
			if len(f) > 4 && f[1] == fmt.Sprint(id) && slices.Contains(f, "1000") {
				owner = id + 1
			}
		}
		if owner == 0 {
			continue
		}
		found = true
		switch name {
		case "shmget":
			_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
		case "semget":
			_, _, _ = unix.Syscall6(unix.SYS_SEMCTL, uintptr(id), 0, unix.IPC_RMID, 0, 0, 0)
		case "msgget":
			_, _, _ = unix.Syscall(unix.SYS_MSGCTL, uintptr(id), unix.IPC_RMID, 0)
		}
	}
	return found
}

func checkKeyring(ctx context.Context, s *scene) finding {
	a, b, err := s.pair(ctx)
	if err != nil {
		return broke(err)
	}
	mark := marker()
	v, _, err := a.probe(ctx, "H37", map[string]any{"marker": mark, "leave": true})
	if err != nil {
		return broke(err)
	}
	look := map[string]any{"marker": mark, "leave": false}
	f := judgeAll(
		func() finding { return b.judge(ctx, "H37", look) },
		func() finding { return a.judge(ctx, "H37", look) },
	)
	if f.outcome == Proved {
		return proved("%s; %s", v.Why, f.why)
	}
	return f
}

// checkLockChannel: on gVisor locks are the sandbox's own. With the host's
// kernel a lock on a shared file is a channel of one bit, which the threat
// model states.
func checkLockChannel(ctx context.Context, s *scene) finding {
	a, b, err := s.pair(ctx)
	if err != nil {
		return broke(err)
	}
	r, err := a.probeRequest("H38", map[string]any{"seconds": 5})
	if err != nil {
		return broke(err)
	}
	run, err := a.begin(ctx, r)
	if err != nil {
		return broke(err)
	}
	defer run.stop(ctx)
	if err := run.hears(ctx, "holding"); err != nil {
		return broke(err)
	}
	f := b.judge(ctx, "H38", map[string]any{"seconds": 0})
	switch {
	case f.outcome == Failed && !f.broken && s.o.Kind == oci.Runc:
		return warned("%s: the documented residual of one bit; gVisor has none", f.why)
	case f.outcome == Proved:
		return proved("a lock on a shared file of the image is not seen in another session")
	}
	return f
}

func checkNeighbour(ctx context.Context, s *scene) finding {
	a, b, err := s.pair(ctx)
	if err != nil {
		return broke(err)
	}
	port, err := freePort(ctx)
	if err != nil {
		return broke(err)
	}
	r, err := a.probeRequest("H109", map[string]any{"listen": true, "port": port, "seconds": 10})
	if err != nil {
		return broke(err)
	}
	run, err := a.begin(ctx, r)
	if err != nil {
		return broke(err)
	}
	defer run.stop(ctx)
	if err := run.hears(ctx, "listening"); err != nil {
		return broke(err)
	}
	return b.judge(ctx, "H109", map[string]any{"listen": false, "port": port})
}

// checkClonedState: what should differ between two sandboxes of one image does.
func checkClonedState(ctx context.Context, s *scene) finding {
	a, b, err := s.pair(ctx)
	if err != nil {
		return broke(err)
	}
	var seen []map[string]string
	for _, box := range []*session{a, b, a} {
		r, err := box.probeRequest("H113", nil)
		if err != nil {
			return broke(err)
		}
		r.Argv = slices.DeleteFunc(r.Argv, func(arg string) bool { return arg == "-I" }) // with the environment that runs have
		out, err := box.exec(ctx, r)
		if err != nil {
			return broke(err)
		}
		v, err := out.verdict()
		if err != nil {
			return broke(err)
		}
		var data struct{ Values map[string]string }
		if err := json.Unmarshal(v.Data, &data); err != nil {
			return broke(err)
		}
		if len(data.Values) < 4 {
			return errorf("only %d values were given", len(data.Values))
		}
		seen = append(seen, data.Values)
	}
	for name, value := range seen[0] {
		if seen[1][name] == value {
			return failed("%s is the same in two sandboxes", name)
		}
		if seen[2][name] == value {
			return failed("%s is the same in two runs", name)
		}
	}
	if f := checkForks(ctx, a, b); f.outcome != Proved {
		return f
	}
	return proved("%s differ between two sandboxes and between two runs, also where interpreters waited", strings.Join(slices.Sorted(maps.Keys(seen[0])), ", "))
}

// checkForks: so does what interpreters draw that waited for their run. Those of
// one sandbox may be forks of one process.
func checkForks(ctx context.Context, a, b *session) finding {
	seen := map[string]bool{}
	for _, box := range []*session{a, b, a, b} {
		out, err := box.language(ctx, workbench.Python, "import os, random, uuid\nprint(os.urandom(16).hex(), random.getrandbits(128), uuid.uuid4())")
		if err != nil {
			return broke(err)
		}
		values := strings.Fields(out.stdout)
		if len(values) != 3 {
			return errorf("a run of Python drew %q %s", out.stdout, lastBytes(out.stderr, 300))
		}
		for _, v := range values {
			if seen[v] {
				return failed("two interpreters that waited drew the same: %s", v)
			}
			seen[v] = true
		}
	}
	return proved("")
}

// checkPlanted: what one run plants in the workspace is not used by the next,
// whose interpreter starts as every run's does.
func checkPlanted(probe string) func(context.Context, *scene) finding {
	return func(ctx context.Context, s *scene) finding {
		b, err := s.start(ctx, s.class())
		if err != nil {
			return broke(err)
		}
		defer b.discard(ctx)
		v, _, err := b.probe(ctx, probe, map[string]any{"plant": true})
		if err != nil {
			return broke(err)
		}
		if !v.OK {
			return failed("%s", v.Why)
		}
		for _, l := range b.bound.Languages {
			source := map[workbench.Language]string{
				workbench.Python: "print('ran')", workbench.Bash: "echo ran", workbench.JavaScript: "console.log('ran')", workbench.TypeScript: "console.log('ran' as string)",
			}[l]
			out, err := b.language(ctx, l, source)
			if err != nil {
				return broke(err)
			}
			if out.ExitCode != 0 || out.stdout != "ran\n" {
				return failed("after planting, a run of %s ended with %d and printed %q %s", l, out.ExitCode, out.stdout, lastBytes(out.stderr, 300))
			}
		}
		// The probe itself, without isolation from its environment.
		r, err := b.probeRequest(probe, map[string]any{"plant": false})
		if err != nil {
			return broke(err)
		}
		out, err := b.exec(ctx, r)
		if err != nil {
			return broke(err)
		}
		if v, err = out.verdict(); err != nil {
			return broke(err)
		}
		if !v.OK {
			return failed("%s", v.Why)
		}
		return proved("%s; runs of %d languages were not touched", v.Why, len(b.bound.Languages))
	}
}

// checkDescriptors: the first process of a group, a program and an interpreter
// have the standard descriptors alone.
func checkDescriptors(ctx context.Context, s *scene) finding {
	b, err := s.session(ctx, mainSession)
	if err != nil {
		return broke(err)
	}
	return judgeAll(
		func() finding { return b.judge(ctx, "H70", nil) },
		func() finding {
			out, err := b.language(ctx, workbench.Python, `
import os, stat
# The interpreter's driver has one pipe of its own, on which it says how the run
# ended; a program that it starts, by whatever means, must not.
for f in sorted(int(f) for f in os.listdir('/proc/self/fd')):
    try:
        mode = os.fstat(f).st_mode
    except OSError:
        continue
    if not stat.S_ISFIFO(mode) and os.readlink('/proc/self/fd/%d' % f) != '/dev/null':
        print(f, os.readlink('/proc/self/fd/%d' % f))
pid = os.fork()
if pid == 0:
    os.execv('/bin/bash', ['bash', '-c', 'for f in /proc/self/fd/*; do n=${f##*/}; t=$(readlink $f); [ $n -le 2 ] || [[ $t = /proc/* ]] || [[ $n = 255 ]] || [ -z "$t" ] || echo "child has $n $t"; done'])
os.waitpid(pid, 0)
`)
			if err != nil {
				return broke(err)
			}
			if out.ExitCode != 0 {
				return errorf("exit %d: %s", out.ExitCode, lastBytes(out.stderr, 300))
			}
			if found := strings.TrimSpace(out.stdout); found != "" {
				return failed("a Python run has more than its pipes: %s", printable(found))
			}
			return proved("a Python run has pipes only, and what it executes has the three")
		},
	)
}

// checkNode: what Node offers meets the same limits.
func checkNode(ctx context.Context, s *scene) finding {
	b, err := s.session(ctx, limitsSession)
	if err != nil {
		return broke(err)
	}
	source, err := probes.ReadFile("probes/H118.mjs")
	if err != nil {
		return broke(err)
	}
	l := s.promised()
	script := fmt.Sprintf("const P = {tasks: %d, memory: %d};\n%s", l.Tasks, l.MemoryBytes, source)
	var why []string
	for _, mode := range []string{"processes", "memory"} {
		out, err := b.exec(ctx, guestwire.ExecRequest{Argv: []string{"/usr/bin/node", "--input-type=module", "-e", script, mode}, Timeout: 40 * time.Second})
		if err != nil {
			return broke(err)
		}
		v, err := out.verdict()
		switch {
		case err == nil && !v.OK:
			return failed("%s", v.Why)
		case err == nil:
			why = append(why, v.Why)
		case mode == "memory" && out.memoryEnded():
			why = append(why, "memory: the run ended as out_of_memory")
		default:
			return broke(err)
		}
		if err := b.alive(ctx); err != nil {
			return failed("%v", err)
		}
	}
	return proved("%s", strings.Join(why, "; "))
}
