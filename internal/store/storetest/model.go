package storetest

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/workbenchdev/workbench"
)

// job is what the model knows of an admitted run.
type job struct {
	id, tenant, user, fingerprint string
	number                        int64
}

// testModel admits at random, from two tenants with two users with two
// sessions each, against a map from (tenant, key) to the job.
func testModel(t *testing.T, open Open) {
	db := open(t)
	rapid.Check(t, func(rt *rapid.T) {
		w := mustWorldIn(t, db)
		people := []workbench.Principal{w.mustDirect("acme", "ann"), w.mustDirect("acme", "ben"), w.mustDirect("globex", "ann"), w.mustDirect("globex", "ben")}
		type place struct {
			session string
			closed  bool
			runs    int64
		}
		places := map[int]*place{}
		for i := range 8 {
			places[i] = &place{session: w.mustSession(people[i/2]).ID}
		}
		keyed := map[string]job{}
		submit := func(rt *rapid.T) {
			at := rapid.IntRange(0, 7).Draw(rt, "session")
			key := rapid.SampledFrom([]string{"", "k1", "k2", "k3"}).Draw(rt, "key")
			fingerprint := rapid.SampledFrom([]string{"f", "g"}).Draw(rt, "fingerprint")
			p, pl := people[at/2], places[at]
			run, replayed, err := w.Admit(ctx(t), p, w.admission(pl.session, key, fingerprint))
			original, known := keyed[p.TenantID+key]
			switch {
			case key != "" && known && original.user != p.UserID:
				expect(rt, err, workbench.CodeConflict)
			case key != "" && known && original.fingerprint != fingerprint:
				expect(rt, err, workbench.CodeIdempotencyReused)
			case key != "" && known:
				expect(rt, err, "")
				if !replayed || run.ID != original.id || run.Number != original.number {
					rt.Fatalf("a repeat gave %s, replayed %v; the original is %s", run.ID, replayed, original.id)
				}
			case pl.closed:
				expect(rt, err, workbench.CodeSessionClosed)
			default:
				expect(rt, err, "")
				pl.runs++
				if replayed || run.Number != pl.runs || run.SessionID != pl.session || run.UserID != p.UserID {
					rt.Fatalf("a new job is number %d of %s, replayed %v", run.Number, run.SessionID, replayed)
				}
				if key != "" {
					keyed[p.TenantID+key] = job{run.ID, p.TenantID, p.UserID, fingerprint, run.Number}
				}
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"submit": submit, "submit again": submit, "and again": submit,
			"close": func(rt *rapid.T) {
				at := rapid.IntRange(0, 7).Draw(rt, "session")
				_, err := w.EndSession(ctx(t), people[at/2], places[at].session, workbench.SessionClosed, w.now)
				expect(rt, err, "")
				places[at].closed = true
			},
			"": func(rt *rapid.T) {
				for at, pl := range places {
					got, err := w.ListRuns(ctx(t), people[at/2], workbench.RunFilter{SessionID: pl.session}, workbench.Page{Limit: 200})
					expect(rt, err, "")
					if int64(len(got.Items)) != pl.runs {
						rt.Fatalf("session %d has %d runs, want %d", at, len(got.Items), pl.runs)
					}
				}
			},
		})
	})
}

func expect(rt *rapid.T, err error, code workbench.Code) {
	if got := workbench.CodeOf(err); got != code {
		rt.Fatalf("error %q, want %q: %s", got, code, fmt.Sprint(err))
	}
}
