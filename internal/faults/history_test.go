package faults_test

import (
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// never is when a call returns whose answer did not arrive: it may have had its
// effect at any time since, or not have it at all.
const never = math.MaxInt64

// history is what clients called and were answered, in the real order of
// calls and answers. What is certain to have had no effect is left out.
type history struct {
	mu    sync.Mutex
	keys  map[string][]porcupine.Operation // idempotency key → its submissions
	queue map[string][]porcupine.Operation // session → submissions and looks
}

func newHistory() *history {
	return &history{keys: map[string][]porcupine.Operation{}, queue: map[string][]porcupine.Operation{}}
}

// submission is a call under a key; body stands for all of the request.
type submission struct{ body string }

// submitted is its answer. The zero value is none.
type submitted struct {
	run      string
	replayed bool
	conflict bool // the key has another body
}

// submission notes one call. It reports whether the caller may rely on what err
// says.
func (h *history) submission(session, key, body string, began int64, got sdk.Submitted, err error) {
	op := porcupine.Operation{Input: submission{body}, Call: began, Return: time.Now().UnixNano()}
	var answer *sdk.Error
	var network *net.OpError
	switch {
	case err == nil:
		op.Output = submitted{run: got.ID, replayed: got.Replayed}
	case workbench.HasCode(err, workbench.CodeIdempotencyReused):
		op.Output = submitted{conflict: true}
	case errors.As(err, &answer) && answer.Status < 500 || errors.As(err, &network) && network.Op == "dial":
		return // refused, or never sent
	default:
		op.Output, op.Return = submitted{}, never
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keys[key] = append(h.keys[key], op)
	if op.Output != (submitted{conflict: true}) {
		h.queue[session] = append(h.queue[session], porcupine.Operation{Input: enqueue{key}, Call: op.Call, Return: op.Return})
	}
}

// keyMap is the model of one idempotency key: the first submission to come
// through makes the run, all later ones get it or, with another body, a
// conflict.
var keyMap = porcupine.Model{
	Init: func() any { return taken{} },
	Step: func(state, in, out any) (bool, any) {
		is, sent, got := state.(taken), in.(submission), out.(submitted)
		switch {
		case is == taken{}:
			return !got.replayed && !got.conflict, taken{body: sent.body, run: got.run}
		case got.conflict:
			return sent.body != is.body, is
		case got == submitted{}:
			return true, is // unanswered, and it changed nothing
		}
		if is.run == "" {
			is.run = got.run
		}
		return got.replayed && sent.body == is.body && got.run == is.run, is
	},
}

// taken is whose a key is; run is "" while nobody has been told.
type taken struct{ body, run string }

// stage is how far a run has come, as a client can see it.
type stage byte

const (
	queued   stage = 'q'
	started  stage = 's' // and not over
	ended    stage = 'e' // after it was started
	withdraw stage = 'w' // over without having been started
	over     stage = 'o' // one of the last two: only later looks can tell
)

func stageOf(r workbench.Run) stage {
	switch {
	case r.Status == workbench.StatusQueued:
		return queued
	case !r.Status.Terminal():
		return started
	case r.StartedAt != nil:
		return ended
	}
	return withdraw
}

// enqueue is a submission as the session's queue sees it; look finds the key's
// run at a stage.
type (
	enqueue struct{ key string }
	look    struct {
		key string
		at  stage
	}
)

// look notes that a client, or an oracle, saw a run at a stage.
func (h *history) look(session, key string, at stage, began, returned int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.queue[session] = append(h.queue[session], porcupine.Operation{Input: look{key, at}, Call: began, Return: returned})
}

// sessionQueue is the model of one session's queue. Its state is the runs in
// order of submission, each as "stage key"; the server moves them on between
// the calls, so a run that is seen started means that all before it are over.
var sessionQueue = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, in, _ any) (bool, any) {
		line := strings.FieldsFunc(state.(string), func(r rune) bool { return r == '\n' })
		find := func(key string) int {
			return slices.IndexFunc(line, func(s string) bool { return s[1:] == key })
		}
		switch in := in.(type) {
		case enqueue:
			if find(in.key) < 0 {
				line = append(line, string(queued)+in.key)
			}
		case look:
			i := find(in.key)
			if i < 0 || !becomes(stage(line[i][0]), in.at) {
				return false, state
			}
			if was := stage(line[i][0]); (was == queued || was == started) && (in.at == started || in.at == ended) {
				for j, other := range line[:i] {
					if s := stage(other[0]); s == queued || s == started {
						line[j] = string(over) + other[1:]
					}
				}
			}
			line[i] = string(in.at) + in.key
		}
		return true, strings.Join(line, "\n")
	},
}

// becomes reports whether a run that was at a stage can be seen at another.
func becomes(was, is stage) bool {
	switch was {
	case queued:
		return true
	case started:
		return is == started || is == ended
	case over:
		return is == ended || is == withdraw
	case ended, withdraw:
		return is == was
	}
	return false
}

// checkWithin bounds the search for an order of one history.
const checkWithin = 20 * time.Second

// violations are the keys (P2) and queues (P6) whose history no order of its
// calls explains.
func (h *history) violations() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var found []string
	check := func(what string, model porcupine.Model, histories map[string][]porcupine.Operation) {
		for name, ops := range histories {
			switch porcupine.CheckOperationsTimeout(model, ops, checkWithin) {
			case porcupine.Ok:
			case porcupine.Illegal:
				found = append(found, fmt.Sprintf("%s %s: no order of its %d calls explains the answers:\n%s", what, name, len(ops), printed(ops)))
			default:
				found = append(found, fmt.Sprintf("%s %s: %d calls could not be checked in %v", what, name, len(ops), checkWithin))
			}
		}
	}
	check("P2: key", keyMap, h.keys)
	check("P6: session", sessionQueue, h.queue)
	return found
}

func printed(ops []porcupine.Operation) string {
	ops = slices.Clone(ops)
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var b strings.Builder
	for _, op := range ops {
		took := "no answer"
		if op.Return != never {
			took = time.Duration(op.Return - op.Call).String()
		}
		fmt.Fprintf(&b, "  +%v (%s) %T%+v → %+v\n", time.Duration(op.Call-ops[0].Call), took, op.Input, op.Input, op.Output)
	}
	return b.String()
}

// Each history breaks one rule; with the line that breaks it taken out, or as
// it should have been, it is accepted.
func TestWrongHistoriesAreRefused(t *testing.T) {
	h := newHistory()
	if found := h.violations(); found != nil {
		t.Fatalf("an empty history is refused: %v", found)
	}
	op := func(call, ret int64, in, out any) porcupine.Operation {
		return porcupine.Operation{Call: call, Return: ret, Input: in, Output: out}
	}
	a, b := submission{"a"}, submission{"b"}
	keys := map[string]struct {
		right, wrong []porcupine.Operation
	}{
		"two runs": {
			right: []porcupine.Operation{op(1, 4, a, submitted{run: "r1", replayed: true}), op(2, 3, a, submitted{run: "r1"})},
			wrong: []porcupine.Operation{op(1, 4, a, submitted{run: "r1"}), op(2, 3, a, submitted{run: "r2"})},
		},
		"a second run after an unanswered call": {
			right: []porcupine.Operation{op(1, never, a, submitted{}), op(2, 3, a, submitted{run: "r1", replayed: true}), op(4, 5, a, submitted{run: "r1", replayed: true})},
			wrong: []porcupine.Operation{op(1, never, a, submitted{}), op(2, 3, a, submitted{run: "r1", replayed: true}), op(4, 5, a, submitted{run: "r2"})},
		},
		"a replay of nothing": {
			right: []porcupine.Operation{op(2, 3, a, submitted{run: "r1", replayed: true}), op(1, never, a, submitted{})},
			wrong: []porcupine.Operation{op(2, 3, a, submitted{run: "r1", replayed: true}), op(4, never, a, submitted{})},
		},
		"another body": {
			right: []porcupine.Operation{op(1, 2, a, submitted{run: "r1"}), op(3, 4, b, submitted{conflict: true})},
			wrong: []porcupine.Operation{op(1, 2, a, submitted{run: "r1"}), op(3, 4, b, submitted{run: "r1", replayed: true})},
		},
		"a conflict with itself": {
			right: []porcupine.Operation{op(1, never, b, submitted{}), op(3, 4, a, submitted{conflict: true})},
			wrong: []porcupine.Operation{op(1, never, a, submitted{}), op(3, 4, a, submitted{conflict: true})},
		},
	}
	for name, c := range keys {
		refuses(t, name, keyMap, c.right, c.wrong)
	}
	q := func(call, ret int64, key string) porcupine.Operation { return op(call, ret, enqueue{key}, nil) }
	l := func(call, ret int64, key string, at stage) porcupine.Operation {
		return op(call, ret, look{key, at}, nil)
	}
	queues := map[string]struct {
		right, wrong []porcupine.Operation
	}{
		"overtaken": {
			right: []porcupine.Operation{q(1, 4, "a"), q(2, 3, "b"), l(5, 6, "b", started), l(7, 8, "a", queued)},
			wrong: []porcupine.Operation{q(1, 2, "a"), q(3, 4, "b"), l(5, 6, "b", started), l(7, 8, "a", queued)},
		},
		"two at once": {
			right: []porcupine.Operation{q(1, 2, "a"), q(3, 4, "b"), l(5, 8, "a", started), l(6, 7, "b", started)},
			wrong: []porcupine.Operation{q(1, 2, "a"), q(3, 4, "b"), l(5, 6, "b", started), l(7, 8, "a", started)},
		},
		"back in the queue": {
			right: []porcupine.Operation{q(1, 2, "a"), l(3, 4, "a", started), l(5, 6, "a", ended)},
			wrong: []porcupine.Operation{q(1, 2, "a"), l(3, 4, "a", ended), l(5, 6, "a", started)},
		},
		"withdrawn and yet started": {
			right: []porcupine.Operation{q(1, 2, "a"), q(3, 4, "b"), l(5, 6, "b", started), l(7, 8, "a", withdraw)},
			wrong: []porcupine.Operation{q(1, 2, "a"), q(3, 4, "b"), l(5, 6, "a", withdraw), l(7, 8, "a", ended)},
		},
		"nobody submitted it": {
			right: []porcupine.Operation{q(1, never, "a"), l(3, 4, "a", queued)},
			wrong: []porcupine.Operation{q(5, never, "a"), l(3, 4, "a", queued)},
		},
	}
	for name, c := range queues {
		refuses(t, name, sessionQueue, c.right, c.wrong)
	}
	h.keys["k"], h.queue["s"] = keys["two runs"].wrong, queues["overtaken"].wrong
	if found := h.violations(); len(found) != 2 || !strings.HasPrefix(found[0], "P2: key k: no order of its 2 calls") || !strings.HasPrefix(found[1], "P6: session s: no order of its 4 calls") {
		t.Errorf("reported as %q", found)
	}
}

func refuses(t *testing.T, name string, model porcupine.Model, right, wrong []porcupine.Operation) {
	t.Helper()
	if !porcupine.CheckOperations(model, right) {
		t.Errorf("%s: a right history is refused:\n%s", name, printed(right))
	}
	if porcupine.CheckOperations(model, wrong) {
		t.Errorf("%s: a wrong history is accepted:\n%s", name, printed(wrong))
	}
}
