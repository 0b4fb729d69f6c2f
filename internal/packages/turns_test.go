package packages

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
)

// One tenant's many requests do not keep another's few from their turn.
func TestTenantsTakeTurnsToInstall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(2)
		var got []string
		ask := func(ctx context.Context, tenant string) {
			go func() {
				if turns.take(ctx, tenant) {
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
		for len(got) < 8 {
			before := len(got)
			turns.give(got[len(got)-2])
			synctest.Wait()
			if len(got) != before+1 {
				t.Fatalf("a place went from %v to %v", got[:before], got)
			}
		}
		if order := strings.Join(got, ""); order != "aabacbaa" {
			t.Errorf("the turns were %s, want aabacbaa", order)
		}
		turns.give("a")
		turns.give("a")
		if turns.free != 2 || len(turns.has) != 0 || len(turns.waiting) != 0 || len(turns.order) != 0 {
			t.Errorf("what is left is %+v", turns)
		}
	})
}
