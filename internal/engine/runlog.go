package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/workbenchdev/workbench"
)

const (
	// entryBytes is the most one output entry holds.
	entryBytes = 64 * 1024
	// flushAfter is how long output waits for more before it is persisted.
	flushAfter = 10 * time.Millisecond
	// noteAfter is how long what is no output waits for company: a program may make
	// a tool call every few milliseconds.
	noteAfter = 50 * time.Millisecond
	// pendingBytes is how much output may wait for the database; beyond it the
	// program's writes wait too.
	pendingBytes = 1 << 20
	// resultEntries is how many structured results of a run the log takes while
	// it runs.
	resultEntries = 16
)

func logContext(runID string, seq int64) string { return fmt.Sprintf("%s/%d", runID, seq) }

// statusMeta is the Meta of status and terminal entries.
type statusMeta struct {
	Status   workbench.Status `json:"status"`
	Reason   workbench.Reason `json:"reason,omitempty"`
	ExitCode *int             `json:"exitCode,omitempty"`
	Message  string           `json:"message,omitempty"`
}

func statusEntry(runID string, kind workbench.LogKind, m statusMeta, at time.Time) workbench.LogEntry {
	meta, _ := json.Marshal(m) // cannot fail: plain fields
	return workbench.LogEntry{RunID: runID, Kind: kind, Meta: meta, At: at}
}

// appendFunc persists entries and, the first time, that the run is running.
type appendFunc func(ctx context.Context, status *workbench.Status, entries []workbench.LogEntry) error

// runLog turns what a run writes into log entries: in order, persisted before
// they are published, coalesced for a few milliseconds, capped per stream. It
// owns one goroutine from start to finish.
type runLog struct {
	e      *Engine
	run    workbench.Run
	append appendFunc

	mu      sync.Mutex
	changed *sync.Cond
	streams map[workbench.Stream]*captured
	pending []workbench.LogEntry // plain, without seq
	size    int                  // bytes in pending
	results int                  // result entries so far, of all types
	inline  int64                // bytes of those that are displays
	set     int                  // structured ones among them
	last    json.RawMessage      // the newest structured result that waits for the end
	running bool                 // the running status was persisted or is about to be
	ended   bool
	err     error // the first failure to persist: nothing follows it
	noted   bool  // a note among pending has its flush ahead
	started bool  // the code runs; the running status is wanted
	kick    chan struct{}
	quit    chan struct{}
	done    chan struct{}
	seq     int64 // of the last persisted entry; the goroutine's until done
}

// captured is one stream: what the log takes, and the rest for the file.
type captured struct {
	limit  int64 // bytes the log takes
	logged int64
	closed bool // the cap was reached; everything after goes to rest
	rest   []byte
	room   int64 // bytes rest takes
	total  int64
}

// newRunLog starts a log whose last persisted entry has number seq.
func (e *Engine) newRunLog(run workbench.Run, seq, limit, fileLimit int64, persist appendFunc) *runLog {
	l := &runLog{e: e, run: run, append: persist, seq: seq,
		streams: map[workbench.Stream]*captured{
			workbench.Stdout: {limit: limit, room: fileLimit},
			workbench.Stderr: {limit: limit, room: fileLimit},
		},
		kick: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	l.changed = sync.NewCond(&l.mu)
	go l.persist()
	return l
}

// write takes bytes of a stream, in order. It waits while too much output
// waits for the database, and returns the error that ended the log.
func (l *runLog) write(stream workbench.Stream, data []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.size > pendingBytes && l.err == nil && !l.ended {
		l.changed.Wait()
	}
	if l.err != nil {
		return l.err
	}
	s := l.streams[stream]
	s.total += int64(len(data))
	take := s.take(data)
	s.rest = append(s.rest, data[take:min(int64(len(data)), int64(take)+s.room-int64(len(s.rest)))]...)
	if take > 0 {
		l.enqueue(stream, s.logged, data[:take])
		s.logged += int64(take)
		l.wake()
	}
	return nil
}

// take is how many bytes of data the log still takes. At the cap it stops
// between characters, so that what was captured ends whole.
func (s *captured) take(data []byte) int {
	if s.closed {
		return 0
	}
	left := s.limit - s.logged
	if int64(len(data)) <= left {
		return len(data)
	}
	s.closed = true
	n := workbench.CutText(data, int(left), true)
	return min(n, int(left))
}

// enqueue adds to the pending entries, onto the last one where it continues it.
func (l *runLog) enqueue(stream workbench.Stream, offset int64, data []byte) {
	for len(data) > 0 {
		n := min(len(data), entryBytes)
		if k := len(l.pending) - 1; k >= 0 && l.pending[k].Stream == stream && l.pending[k].Kind == workbench.LogOutput && len(l.pending[k].Data) < entryBytes {
			last := &l.pending[k]
			n = min(len(data), entryBytes-len(last.Data))
			last.Data = append(last.Data, data[:n]...)
		} else {
			l.pending = append(l.pending, workbench.LogEntry{RunID: l.run.ID, Kind: workbench.LogOutput, Stream: stream,
				Offset: offset, Data: append([]byte(nil), data[:n]...), At: l.e.now()})
		}
		offset += int64(n)
		l.size += n
		data = data[n:]
	}
}

// note adds an entry without data: a file kept, a result set.
func (l *runLog) note(kind workbench.LogKind, meta any) {
	raw, _ := json.Marshal(meta) // plain values
	l.mu.Lock()
	l.pending = append(l.pending, workbench.LogEntry{RunID: l.run.ID, Kind: kind, Meta: raw, At: l.e.now()})
	wake := !l.noted
	l.noted = true
	l.mu.Unlock()
	if wake {
		time.AfterFunc(noteAfter, l.wake)
	}
}

func (l *runLog) wake() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// begin says that the code runs. The status is persisted with the first output,
// or by itself a moment later: a short run ends before, and saves the write.
func (l *runLog) begin() {
	l.mu.Lock()
	l.started = true
	l.mu.Unlock()
	l.wake()
}

// persist writes what is pending whenever something is, until stop.
func (l *runLog) persist() {
	defer close(l.done)
	for {
		select {
		case <-l.quit:
			return
		case <-l.kick:
		}
		if l.small() {
			wait := time.NewTimer(flushAfter)
			select {
			case <-l.quit:
				wait.Stop()
				return
			case <-wait.C:
			}
		}
		l.flush()
	}
}

func (l *runLog) small() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.size < entryBytes
}

func (l *runLog) flush() {
	l.mu.Lock()
	first := l.started && !l.running
	if l.ended || l.err != nil || len(l.pending) == 0 && !first {
		l.mu.Unlock()
		return
	}
	batch := l.pending
	l.pending, l.noted = nil, false
	l.running = l.running || first
	l.mu.Unlock()

	var status *workbench.Status
	if first {
		running := workbench.StatusRunning
		status = &running
		batch = append([]workbench.LogEntry{statusEntry(l.run.ID, workbench.LogStatus, statusMeta{Status: running}, l.e.now())}, batch...)
	}
	sealed, err := l.number(batch)
	if err == nil {
		err = l.e.stubbornly(l.e.ctx, "log", func() error { return l.append(l.e.ctx, status, sealed) },
			l.e.persisted(l.run.ID, sealed[len(sealed)-1].Seq))
	}
	l.mu.Lock()
	if err != nil {
		l.err = err
	} else {
		l.seq += int64(len(batch))
	}
	l.size = 0
	for _, p := range l.pending {
		l.size += len(p.Data)
	}
	l.changed.Broadcast()
	l.mu.Unlock()
}

// number gives entries their sequence numbers and seals their data.
func (l *runLog) number(batch []workbench.LogEntry) ([]workbench.LogEntry, error) {
	for i := range batch {
		batch[i].Seq = l.seq + int64(i) + 1
		batch[i].Length = int64(len(batch[i].Data))
		if len(batch[i].Data) == 0 {
			continue
		}
		sealed, err := l.e.o.Seal.SealBytes(l.e.ctx, l.run.TenantID, "log", logContext(l.run.ID, batch[i].Seq), batch[i].Data)
		if err != nil {
			return nil, err
		}
		batch[i].Data = sealed
	}
	return batch, nil
}

// logTail is what a finished log leaves for the settlement.
type logTail struct {
	entries []workbench.LogEntry // numbered and sealed, the terminal one last
	err     error                // what was captured is only a prefix
}

// finish stops the goroutine and returns the entries that were not persisted
// yet, with the last ones, of which one is terminal, behind them. write must not
// be called any more.
func (l *runLog) finish(last ...workbench.LogEntry) logTail {
	l.stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	var batch []workbench.LogEntry
	if l.started && !l.running {
		batch = append(batch, statusEntry(l.run.ID, workbench.LogStatus, statusMeta{Status: workbench.StatusRunning}, l.e.now()))
	}
	if l.err == nil { // a gap is never papered over
		batch = append(batch, l.pending...)
		if l.last != nil {
			entry, err := workbench.StructuredResult(l.results, l.last).Entry(l.run.ID, l.e.now())
			if err != nil {
				return logTail{err: err}
			}
			batch = append(batch, entry)
		}
	}
	batch = append(batch, last...)
	entries, err := l.number(batch)
	return logTail{entries: entries, err: firstError(l.err, err)}
}

// stop ends the goroutine; pending entries stay.
func (l *runLog) stop() {
	l.mu.Lock()
	already := l.ended
	l.ended = true
	l.changed.Broadcast()
	l.mu.Unlock()
	if !already {
		close(l.quit)
	}
	<-l.done
}

// stream returns the counts of a stream, and what went beyond the cap.
func (l *runLog) stream(s workbench.Stream) (logged, total int64, rest []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.streams[s]
	return c.logged, c.total, c.rest
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// result sets the structured result: the last one counts. It is sealed like
// output. Code that sets it over and over must not fill the database: of those
// that wait only the newest is kept, and beyond resultEntries it waits for the
// log's end.
func (l *runLog) result(value json.RawMessage) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	value = slices.Clone(value)
	for i := range l.pending {
		if p := &l.pending[i]; p.Kind == workbench.LogResult && structured(*p) {
			l.size += len(value) - len(p.Data)
			p.Data, p.At = value, l.e.now()
			return nil
		}
	}
	if l.set >= resultEntries || l.results >= workbench.MaxResults-1 {
		l.last = value
		return nil
	}
	l.set++
	return l.put(workbench.StructuredResult(l.results, value))
}

func structured(e workbench.LogEntry) bool {
	r, err := workbench.ResultOf(e)
	return err == nil && r.Type == workbench.ResultStructured
}

// next is the index of the run's next result, and how many bytes of forms the
// log still takes; ok is false when it takes no display any more: one place is
// the structured result's.
func (l *runLog) next() (index int, room int64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.results, workbench.MaxRunResultsInline - l.inline, l.results < workbench.MaxResults-1
}

// show adds what the code displayed. Its Index is what next said.
func (l *runLog) show(r workbench.Result) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, form := range r.Data {
		l.inline += int64(len(form))
	}
	return l.put(r)
}

// put appends a result. The caller holds l.mu.
func (l *runLog) put(r workbench.Result) error {
	entry, err := r.Entry(l.run.ID, l.e.now())
	if err != nil {
		return err
	}
	l.pending = append(l.pending, entry)
	l.size += len(entry.Data)
	l.results++
	l.wake()
	return nil
}
