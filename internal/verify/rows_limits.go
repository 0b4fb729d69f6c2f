package verify

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/sandbox"
)

// checkForkBomb: the bomb is refused at the limit, and nothing of it is left.
func checkForkBomb(ctx context.Context, s *scene) finding {
	b, err := s.session(ctx, limitsSession)
	if err != nil {
		return broke(err)
	}
	f := b.judge(ctx, "H01", nil)
	if f.outcome != Proved {
		return f
	}
	if left, err := b.settled(ctx); err != nil || left != 0 {
		return failed("%d tasks are left after the run (%v)", left, err)
	}
	return f
}

// settled is the number of tasks of user code once the last run has ended.
func (b *session) settled(ctx context.Context) (int, error) {
	var tasks int
	for range 100 {
		groups, err := b.client.ListGroups(ctx)
		if err != nil {
			return 0, err
		}
		tasks = 0
		for _, g := range groups {
			tasks += max(1, g.Tasks)
		}
		if tasks == 0 {
			return 0, nil
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return tasks, err
		}
	}
	return tasks, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// checkMemoryBomb: the run ends for its memory, everything of it with it, and
// the supervisor goes on.
func checkMemoryBomb(probe string) func(context.Context, *scene) finding {
	return func(ctx context.Context, s *scene) finding {
		b, err := s.session(ctx, limitsSession)
		if err != nil {
			return broke(err)
		}
		// What is beyond the limit is held for so long: a watchdog has to look.
		r, err := b.probeRequest(probe, map[string]any{"held": 4})
		if err != nil {
			return broke(err)
		}
		out, err := b.exec(ctx, r)
		if err != nil {
			return b.outlived(ctx, probe != "H03", err)
		}
		if v, err := out.verdict(); err == nil {
			return failed("%s", v.Why)
		}
		if !out.memoryEnded() {
			return failed("it ended with exit %d %s, reason %q: %s", out.ExitCode, out.Signal, out.Reason, lastBytes(out.stderr, 300))
		}
		if err := b.alive(ctx); err != nil {
			return failed("%v", err)
		}
		if left, err := b.settled(ctx); err != nil || left != 0 {
			return failed("%d tasks are left after the run (%v)", left, err)
		}
		return b.withinBound(ctx, "ended as out_of_memory after %.1f s with all its processes; the supervisor lives", out.took.Seconds())
	}
}

// outlived judges a memory bomb whose run gave no answer. Many eaters at once can
// be faster than the guest's watchdog; then the host's bound ends the sandbox,
// which counts their sum as well. The run's reason is the same, and the engine
// restores the session into another sandbox.
func (b *session) outlived(ctx context.Context, allowed bool, err error) finding {
	select {
	case <-b.box.Done():
	case <-time.After(5 * time.Second):
		return broke(err)
	case <-ctx.Done():
		return broke(err)
	}
	exit := b.box.Exit()
	if exit.Reason != sandbox.ExitOutOfMemory || !allowed {
		return failed("the sandbox ended with its run: %s: %s", exit.Reason, exit.Detail)
	}
	if exit.Last.MemoryPeakBytes > exit.Last.MemoryLimit+chargeBatch {
		return failed("the host saw %d MiB in a sandbox of %d MiB", exit.Last.MemoryPeakBytes>>20, exit.Last.MemoryLimit>>20)
	}
	return proved("their sum met the host's bound of %d MiB before the guest's watchdog, and ended the sandbox as out_of_memory", exit.Last.MemoryLimit>>20)
}

// chargeBatch is by how much a peak may pass a bound: the kernel charges memory
// in batches for each CPU.
const chargeBatch = 4 << 20

// withinBound proves what it is told unless the host saw the sandbox beyond its
// bound on memory.
func (b *session) withinBound(ctx context.Context, format string, args ...any) finding {
	stats, err := b.box.Stats(ctx)
	if err != nil {
		return broke(err)
	}
	if stats.MemoryLimit > 0 && stats.MemoryPeakBytes > stats.MemoryLimit+chargeBatch {
		return failed("the host saw %d MiB in a sandbox of %d MiB", stats.MemoryPeakBytes>>20, stats.MemoryLimit>>20)
	}
	return proved(format, args...)
}

// checkKernelMemory: buffers that the kernel holds for code count like its own
// memory. Whatever ends it, the sandbox's bound is not passed.
func checkKernelMemory(ctx context.Context, s *scene) finding {
	b, err := s.session(ctx, limitsSession)
	if err != nil {
		return broke(err)
	}
	target := int64(700 << 20)
	r, err := b.probeRequest("H06", map[string]any{"target": target})
	if err != nil {
		return broke(err)
	}
	before := availableMemory()
	out, err := b.exec(ctx, r)
	if err == nil {
		if v, verdictErr := out.verdict(); verdictErr == nil {
			if !v.OK {
				return failed("%s", v.Why)
			}
			return b.withinBound(ctx, "%s, then refused", v.Why)
		}
		if out.Reason != workbench.ReasonOutOfMemory && out.Signal == "" && out.ExitCode == 0 {
			return errorf("the probe gave no verdict: %s", lastBytes(out.stderr, 300))
		}
		return b.withinBound(ctx, "charged to the run, which ended by %s %s", out.Reason, out.Signal)
	}
	// The sandbox itself may be what the host ended.
	select {
	case <-b.box.Done():
	case <-time.After(10 * time.Second):
		return errorf("the run gave no answer: %v", err)
	}
	exit := b.box.Exit()
	if exit.Reason != sandbox.ExitOutOfMemory {
		return failed("the sandbox ended by %s: %s", exit.Reason, exit.Detail)
	}
	if exit.Last.MemoryPeakBytes > exit.Last.MemoryLimit+chargeBatch {
		return failed("the host saw %d MiB in a sandbox of %d MiB", exit.Last.MemoryPeakBytes>>20, exit.Last.MemoryLimit>>20)
	}
	if lost := before - availableMemory(); before > 0 && lost > target {
		return failed("the host has %d MiB less", lost>>20)
	}
	return proved("charged to the sandbox, which the host ended at its bound of %d MiB", exit.Last.MemoryLimit>>20)
}

// checkPriority: whatever the calls answer, no thread on the host is favoured.
func checkPriority(ctx context.Context, s *scene) finding {
	b, err := s.session(ctx, mainSession)
	if err != nil {
		return broke(err)
	}
	r, err := b.probeRequest("H10", nil)
	if err != nil {
		return broke(err)
	}
	r.Grace = 20 * time.Second // it holds until it is interrupted
	run, err := b.begin(ctx, r)
	if err != nil {
		return broke(err)
	}
	if err := run.hears(ctx, "holding"); err != nil {
		return broke(err)
	}
	threads, favoured, err := s.favoured(b)
	cancelErr := run.exec.Cancel(ctx)
	out, waitErr := run.wait(ctx)
	if err := errors.Join(err, cancelErr, waitErr); err != nil {
		return broke(err)
	}
	v, err := out.verdict()
	if err != nil {
		return broke(err)
	}
	if len(favoured) > 0 {
		return failed("on the host: %s", favoured[0])
	}
	if threads == 0 {
		return errorf("the host sees no thread of the sandbox")
	}
	return proved("%s; on the host all %d threads have the ordinary policy and no better priority", v.Why, threads)
}

// checkDiskFill: the limits answer, and nothing was written to the host's disk.
func checkDiskFill(ctx context.Context, s *scene) finding {
	b, err := s.session(ctx, limitsSession)
	if err != nil {
		return broke(err)
	}
	before := diskUse(s.stateDir) + diskUse(s.rootfs())
	f := b.judge(ctx, "H13", nil)
	if after := diskUse(s.stateDir) + diskUse(s.rootfs()); f.outcome == Proved && after > before+(1<<20) {
		return failed("the sandbox's files on the host grew by %d KiB", (after-before)>>10)
	}
	return f
}

// checkWideTree: the limit holds, and the host's look at what is there takes a
// bounded time, as does its end.
func checkWideTree(ctx context.Context, s *scene) finding {
	b, err := s.start(ctx, s.class())
	if err != nil {
		return broke(err)
	}
	defer b.discard(ctx)
	v, _, err := b.probe(ctx, "H17", nil)
	if err != nil {
		return broke(err)
	}
	began := time.Now()
	promised := s.promised().WorkspaceFiles
	var sink countingSink
	scan, err := b.client.Scan(ctx, guestwire.ScanRequest{MaxEntries: 4 * promised}, &sink)
	if err != nil {
		return failed("the tree cannot be listed: %v", err)
	}
	listed := time.Since(began)
	if scan.Entries > promised {
		return failed("the tree has %d entries, more than %d", scan.Entries, promised)
	}
	if listed > 20*time.Second {
		return failed("listing %d entries took %v", scan.Entries, listed)
	}
	began = time.Now()
	if err := b.end(ctx); err != nil {
		return failed("the sandbox cannot be removed: %v", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		return failed("removing it took %v", took)
	}
	return proved("%s; %d entries listed in %.1f s, removed in %.1f s", v.Why, scan.Entries, listed.Seconds(), time.Since(began).Seconds())
}

// checkFlood: output is cut at the cap and counted, and this process does not
// grow by it.
func checkFlood(ctx context.Context, s *scene) finding {
	b, err := s.session(ctx, limitsSession)
	if err != nil {
		return broke(err)
	}
	limit := s.promised().OutputBytes
	const written = 48 << 20
	before := ownMemory()
	out, err := b.exec(ctx, guestwire.ExecRequest{
		Argv:        []string{"/usr/bin/python3", "-I", "-S", "-c", fmt.Sprintf("import os\nb=b'x'*65536\nfor _ in range(%d): os.write(1, b)", written>>16)},
		OutputBytes: limit, Timeout: 40 * time.Second,
	})
	if err != nil {
		return broke(err)
	}
	if out.ExitCode != 0 {
		return errorf("the flood ended with %d %s", out.ExitCode, lastBytes(out.stderr, 200))
	}
	if int64(len(out.stdout)) > limit {
		return failed("%d bytes came through a cap of %d", len(out.stdout), limit)
	}
	if int64(len(out.stdout)) != limit || out.Forwarded.Stdout != limit || out.Total.Stdout != written {
		return failed("%d bytes arrived, %d forwarded, %d counted; want %d, %d and %d", len(out.stdout), out.Forwarded.Stdout, out.Total.Stdout, limit, limit, written)
	}
	if grown := ownMemory() - before; grown > 16<<20 {
		return failed("this process grew by %d MiB", grown>>20)
	}
	return proved("%d MiB written, cut at %d bytes, counted exactly; memory flat", written>>20, limit)
}

// checkBinaryFlood: bytes that are no text and have no lines arrive exactly.
func checkBinaryFlood(ctx context.Context, s *scene) finding {
	b, err := s.session(ctx, limitsSession)
	if err != nil {
		return broke(err)
	}
	const blocks = 12
	r, err := b.probeRequest("H20", map[string]any{"blocks": blocks})
	if err != nil {
		return broke(err)
	}
	out, err := b.exec(ctx, r)
	if err != nil {
		return broke(err)
	}
	v, err := out.verdict()
	if err != nil && out.ExitCode == 0 {
		return failed("the end of the output is missing: %d bytes", len(out.stdout))
	}
	if err != nil {
		return broke(err)
	}
	var want struct{ Stdout, Stderr string }
	if err := json.Unmarshal(v.Data, &want); err != nil {
		return broke(err)
	}
	const perOut, perErr = 61_001, 7_919
	if len(out.stdout) < blocks*perOut || len(out.stderr) != blocks*perErr {
		return failed("%d and %d bytes arrived; want at least %d and exactly %d", len(out.stdout), len(out.stderr), blocks*perOut, blocks*perErr)
	}
	if got := digest(out.stdout[:blocks*perOut]); got != want.Stdout {
		return failed("stdout arrived changed")
	}
	if got := digest(out.stderr); got != want.Stderr {
		return failed("stderr arrived changed")
	}
	if out.Total.Stdout != int64(len(out.stdout)) || out.Total.Stderr != int64(len(out.stderr)) {
		return failed("%+v counted, %d and %d arrived", out.Total, len(out.stdout), len(out.stderr))
	}
	return proved("%d and %d random bytes arrived unchanged and counted", blocks*perOut, blocks*perErr)
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// checkSleeper: a run past its wall time ends as timed out; a bad limit is
// refused.
func checkSleeper(ctx context.Context, s *scene) finding {
	b, err := s.session(ctx, limitsSession)
	if err != nil {
		return broke(err)
	}
	if _, err := b.client.Exec(ctx, guestwire.ExecRequest{ID: "bad", Group: "bad", Argv: []string{"/bin/true"}, Timeout: -time.Second}, &capture{}); err == nil {
		return failed("a wall time of -1 s was accepted")
	}
	return b.outlasts(ctx, "H24", "asleep")
}

// checkDeaf: a run that blocks every signal, and a process of it that stopped
// itself, are killed after the grace.
func checkDeaf(ctx context.Context, s *scene) finding {
	b, err := s.session(ctx, limitsSession)
	if err != nil {
		return broke(err)
	}
	return b.outlasts(ctx, "H25", "deaf")
}

// outlasts runs a probe that would go on for longer than its wall limit of 1 s.
// Where the interpreter alone takes longer to start, the limit is longer.
func (b *session) outlasts(ctx context.Context, probe, word string) finding {
	limit := time.Second
	out, err := b.outlast(ctx, probe, limit)
	for err == nil && out.Reason == workbench.ReasonTimeout && !strings.Contains(out.stdout, word) && limit < 16*time.Second {
		limit *= 2
		out, err = b.outlast(ctx, probe, limit)
	}
	if err != nil {
		return broke(err)
	}
	if !strings.Contains(out.stdout, word) {
		return errorf("the probe did not say %q: it ended by %q, exit %d: %s", word, out.Reason, out.ExitCode, lastBytes(out.stderr, 300))
	}
	if v, err := out.verdict(); err == nil {
		return failed("%s", v.Why)
	}
	if out.Reason != workbench.ReasonTimeout {
		return failed("it ended by %q, exit %d %s", out.Reason, out.ExitCode, out.Signal)
	}
	if out.Duration > limit+20*time.Second {
		return failed("it ended only after %v", out.Duration)
	}
	if left, err := b.settled(ctx); err != nil || left != 0 {
		return failed("%d tasks are left (%v)", left, err)
	}
	return proved("ended as timeout after %.1f s, with all its processes", out.Duration.Seconds())
}

// outlast runs such a probe to its end.
func (b *session) outlast(ctx context.Context, probe string, limit time.Duration) (ended, error) {
	r, err := b.probeRequest(probe, map[string]any{"seconds": (limit + 2500*time.Millisecond).Seconds()})
	if err != nil {
		return ended{}, err
	}
	r.Timeout, r.Grace = limit, 300*time.Millisecond
	return b.exec(ctx, r)
}

// checkHeldStdout: a detached child that keeps the pipe does not hold the run.
func checkHeldStdout(ctx context.Context, s *scene) finding {
	b, err := s.session(ctx, limitsSession)
	if err != nil {
		return broke(err)
	}
	_, out, err := b.probe(ctx, "H29", nil)
	if err != nil {
		return broke(err)
	}
	if strings.Contains(out.stdout, "outlived") {
		return failed("the run took %.1f s, as long as the child that holds its output", out.took.Seconds())
	}
	if left, err := b.settled(ctx); err != nil || left != 0 {
		return failed("%d tasks are left (%v)", left, err)
	}
	return proved("the run ended after %.1f s with its main process; the child that held its output is gone", out.took.Seconds())
}
