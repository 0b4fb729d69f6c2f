package fair

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// One tenant's many requests do not keep another's few from their turn.
func TestTenantsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		places := New(2)
		var got []string
		ask := func(ctx context.Context, tenant string) {
			go func() {
				if places.Acquire(ctx, tenant) == nil {
					got = append(got, tenant)
				}
			}()
			synctest.Wait()
		}
		leaves, leave := context.WithCancel(t.Context())
		for _, tenant := range strings.Fields("a a a a a") {
			ask(t.Context(), tenant)
		}
		ask(leaves, "d")
		for _, tenant := range strings.Fields("b b c") {
			ask(t.Context(), tenant)
		}
		leave()
		synctest.Wait()
		if places.Try("d") {
			t.Fatal("one that does not wait was given a place before those that do")
		}
		for len(got) < 8 {
			before := len(got)
			places.Release(got[len(got)-2])
			synctest.Wait()
			if len(got) != before+1 {
				t.Fatalf("a place went from %v to %v", got[:before], got)
			}
		}
		if order := strings.Join(got, ""); order != "aabacbaa" {
			t.Errorf("the turns were %s, want aabacbaa", order)
		}
		places.Release("a")
		places.Release("a")
		mustBeFree(t, places)
	})
}

// Whoever gives up at the moment it is given a place has none, and none is lost.
func TestGivingUpLosesNoPlace(t *testing.T) {
	places := New(3)
	var all sync.WaitGroup
	for _, tenant := range strings.Fields("a b c d e f g h") {
		all.Go(func() {
			for range 2000 {
				ctx, leave := context.WithCancel(t.Context())
				go leave()
				if places.Acquire(ctx, tenant) == nil {
					places.Release(tenant)
				}
				leave()
			}
		})
	}
	all.Wait()
	mustBeFree(t, places)
}

func mustBeFree(t *testing.T, p *Places) {
	t.Helper()
	if p.Taken() != 0 || len(p.has) != 0 || len(p.waiting) != 0 || len(p.order) != 0 {
		t.Errorf("what is left is %+v", p)
	}
}
