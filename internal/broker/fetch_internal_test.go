package broker

import (
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
)

// Whoever leaves answers untaken loses them, and nobody else does.
func TestAnswersOfOneTenantDoNotCrowdOutAnothers(t *testing.T) {
	k, now := remainders{all: map[string]*remainder{}}, time.Now()
	const answer = 8 << 20
	var hoarded []string
	for i := range 30 {
		hoarded = append(hoarded, k.keep("hoarder", string(rune('a'+i/keptOfRun)), make([]byte, answer), now))
		if k.size > keptAnswers {
			t.Fatalf("%d bytes are held", k.size)
		}
	}
	mine := k.keep("other", "run", make([]byte, answer), now)
	again := k.keep("hoarder", "z", make([]byte, answer), now)
	if piece, more, err := k.next("run", mine, now); err != nil || !more || len(piece) != fetchPiece {
		t.Errorf("another tenant's answer: %d bytes, more %v, %v", len(piece), more, err)
	}
	if _, _, err := k.next("z", again, now); err != nil {
		t.Errorf("the newest of who holds most: %v", err)
	}
	if _, _, err := k.next("a", hoarded[0], now); !workbench.HasCode(err, workbench.CodeNotFound) {
		t.Errorf("the oldest of who holds most: %v", err)
	}
	sum := 0
	for _, r := range k.all {
		sum += len(r.body)
	}
	if sum != k.size {
		t.Errorf("%d bytes are held and %d counted", sum, k.size)
	}
}
