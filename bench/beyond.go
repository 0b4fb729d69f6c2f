package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// rate is how many sessions a second go from creation to close.
type rate struct {
	What      string  `json:"what"`
	Clients   int     `json:"clients"`
	Sessions  int     `json:"sessions"`
	PerSecond float64 `json:"perSecond"`
}

func (w *world) sessions(ctx context.Context) ([]rate, error) {
	var rates []rate
	for _, r := range []struct {
		what     string
		clients  int
		sessions int
		run      bool
	}{
		{"created and closed", 1, 200, false},
		{"created and closed", 8, 400, false},
		{"created, one Bash run, closed", 1, 20, true},
		{"created, one Bash run, closed", 8, 40, true},
	} {
		perSecond, err := w.sessionRate(ctx, r.clients, r.sessions, r.run)
		if err != nil {
			return nil, fmt.Errorf("sessions %s: %w", r.what, err)
		}
		rates = append(rates, rate{What: r.what, Clients: r.clients, Sessions: r.sessions, PerSecond: perSecond})
	}
	return rates, nil
}

func (w *world) sessionRate(ctx context.Context, clients, sessions int, run bool) (float64, error) {
	var left atomic.Int64
	left.Store(int64(sessions))
	errs := make([]error, clients)
	var wg sync.WaitGroup
	began := time.Now()
	for i := range clients {
		wg.Go(func() {
			for errs[i] == nil && left.Add(-1) >= 0 {
				errs[i] = w.sessionLife(ctx, run)
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	return float64(sessions) / took.Seconds(), errors.Join(errs...)
}

func (w *world) sessionLife(ctx context.Context, run bool) error {
	if run {
		_, err := w.newSession(ctx, workbench.Bash)
		return err
	}
	s, err := w.client.CreateAgentSession(ctx, sdk.CreateSession{Agent: "bench"})
	if err != nil {
		return err
	}
	_, err = w.client.CloseAgentSession(ctx, s.ID)
	return err
}

// idle is the memory of a session that does nothing.
type idle struct {
	What      string  `json:"what"`
	Processes int     `json:"processes"` // on the host
	PSSMiB    float64 `json:"pssMiB"`
	CgroupMiB float64 `json:"cgroupMiB"` // what its control group is charged
}

// idleAfter is how long a session is left alone before it is measured.
const idleAfter = 5 * time.Second

// idleSessions is how many sessions are measured of each kind, beside one that is
// there before.
const idleSessions = 3

// idleMemory measures what each further session with one Python run behind it
// adds to the memory of all sandboxes, of the image without and of that with
// imports to load. What they share, as the pages of the image and of the runtime
// are, counts once and is nobody's.
func (w *world) idleMemory(ctx context.Context, image string) ([]idle, []figure, error) {
	var all []idle
	var figures []figure
	for _, kind := range []struct{ name, image string }{{nameIdlePlain, image}, {nameIdleLoaded, pandasImage}} {
		f := figure{Name: kind.name, Unit: "MB", Samples: idleSessions, Note: "what one session more adds to the proportional set sizes of all sandboxes; image " + kind.image}
		var opened []*liveSession
		before := 0.0
		for i := range 1 + idleSessions {
			s, err := w.openLive(ctx, workbench.Python, kind.image)
			if err != nil {
				return nil, nil, err
			}
			opened = append(opened, s)
			select {
			case <-time.After(idleAfter):
			case <-ctx.Done():
				return nil, nil, ctx.Err()
			}
			sum, err := w.allMemory(ctx)
			if err != nil {
				return nil, nil, err
			}
			if i > 0 { // with the first the pool's own may have come
				f.Raw = append(f.Raw, (sum-before)*float64(workbench.MiB)/1e6)
			}
			before = sum
		}
		f.Value = middle(f.Raw)
		figures = append(figures, f)
		for _, s := range opened {
			m, err := w.memory(ctx, s.sandbox, "after Python runs, image "+kind.image)
			if err != nil {
				return nil, nil, err
			}
			all = append(all, m)
		}
		for _, s := range opened {
			if _, err := w.client.CloseAgentSession(ctx, s.id); err != nil {
				return nil, nil, err
			}
		}
	}
	for _, l := range raced {
		m, err := w.memory(ctx, w.live[l].sandbox, "after all runs of "+string(l))
		if err != nil {
			return nil, nil, err
		}
		all = append(all, m)
	}
	return all, figures, nil
}

// allMemory is the sum of the proportional set sizes of every sandbox's processes,
// in MiB.
func (w *world) allMemory(ctx context.Context) (float64, error) {
	boxes, err := w.driver.List(ctx)
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, box := range boxes {
		m := idle{}
		if err := m.measure(box.ID); err != nil {
			return 0, err
		}
		sum += m.PSSMiB
	}
	return sum, nil
}

// memory measures a sandbox's processes on the host: those in its control
// group.
func (w *world) memory(ctx context.Context, sandbox, what string) (idle, error) {
	m := idle{What: what}
	box, err := w.driver.Attach(ctx, sandbox)
	if err != nil {
		return m, err
	}
	stats, err := box.Stats(ctx)
	if err != nil {
		return m, err
	}
	m.CgroupMiB = float64(stats.MemoryBytes) / float64(workbench.MiB)
	if err := m.measure(sandbox); err != nil {
		return m, err
	}
	if m.Processes == 0 {
		return m, errors.New("no process of an idle session's sandbox was found")
	}
	return m, nil
}

// measure adds up a sandbox's processes. An address space that several have counts
// once: gVisor runs the threads of a program in processes that share one.
func (m *idle) measure(sandbox string) error {
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return err
	}
	var counted []int
	for _, file := range groups {
		raw, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(raw, []byte(sandbox)) {
			continue // it ended, or is another's
		}
		rollup, err := os.ReadFile(filepath.Join(filepath.Dir(file), "smaps_rollup"))
		if err != nil {
			continue
		}
		m.Processes++
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return err
		}
		if slices.ContainsFunc(counted, func(other int) bool { return sharesMemory(pid, other) }) {
			continue
		}
		counted = append(counted, pid)
		for line := range strings.Lines(string(rollup)) {
			if f := strings.Fields(line); len(f) == 3 && f[0] == "Pss:" {
				kib, err := strconv.ParseFloat(f[1], 64)
				if err != nil {
					return err
				}
				m.PSSMiB += kib / 1024
			}
		}
	}
	return nil
}

// sharesMemory reports whether two processes have one address space; a kernel that
// does not tell says no.
func sharesMemory(a, b int) bool {
	const kcmpVM = 1
	differs, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpVM, 0, 0, 0)
	return errno == 0 && differs == 0
}

// transfer is the speed of one kind of file transfer.
type transfer struct {
	What        string  `json:"what"`
	Samples     int     `json:"samples"`
	P50Ms       float64 `json:"p50Ms"`
	MBPerSecond float64 `json:"mbPerSecond"` // at the median, in 10⁶ bytes
}

const (
	fileBytes   = 8 << 20
	fileSamples = 20
)

// transfers uploads, downloads and deletes a file that does not compress.
func (w *world) transfers(ctx context.Context) ([]transfer, error) {
	s, err := w.client.CreateAgentSession(ctx, sdk.CreateSession{Agent: "bench"})
	if err != nil {
		return nil, err
	}
	content := make([]byte, fileBytes)
	var up, down []time.Duration
	for range fileSamples {
		if _, err := rand.Read(content); err != nil {
			return nil, err
		}
		began := time.Now()
		a, err := w.client.UploadSessionArtifact(ctx, s.ID, sdk.Upload{Name: "file.bin"}, bytes.NewReader(content))
		if err != nil {
			return nil, err
		}
		up = append(up, time.Since(began))
		began = time.Now()
		n, err := w.client.DownloadSessionArtifact(ctx, a.ID, io.Discard)
		if err != nil {
			return nil, err
		}
		if n != fileBytes {
			return nil, fmt.Errorf("downloaded %d bytes of %d", n, fileBytes)
		}
		down = append(down, time.Since(began))
		if _, err := w.client.DeleteSessionArtifact(ctx, a.ID); err != nil {
			return nil, err
		}
	}
	_, err = w.client.CloseAgentSession(ctx, s.ID)
	return []transfer{transferOf("upload, encrypted and durable", up), transferOf("download", down)}, err
}

func transferOf(what string, took []time.Duration) transfer {
	p50 := percentile(sorted(took), 50)
	return transfer{What: what, Samples: len(took), P50Ms: ms(p50), MBPerSecond: fileBytes / p50.Seconds() / 1e6}
}
