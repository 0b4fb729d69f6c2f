package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

func testLeases(t *testing.T, open Open) {
	t.Run("of many engines one gets the lease", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		errs := together(10, func(i int) error {
			epoch, err := w.AcquireLease(ctx(t), s.ID, fmt.Sprintf("eng_%d", i), time.Minute)
			if err == nil && epoch != 1 {
				return fmt.Errorf("epoch %d", epoch)
			}
			return err
		})
		equal(t, "owners", count(errs, ""), 1)
		equal(t, "refused", count(errs, workbench.CodeConflict), 9)
	})
	t.Run("the owner keeps its epoch, another one's takeover fences it", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		epoch, err := w.AcquireLease(ctx(t), s.ID, engine, 10*time.Millisecond)
		want(t, err, "")
		r := w.mustAdmit(w.ann, s.ID)
		waitFor(t, func() bool { // prolonged before or taken anew after it ran out
			epoch, err = w.AcquireLease(ctx(t), s.ID, engine, 10*time.Second)
			return err == nil
		})
		w.mustDispatch(r, epoch)
		again, err := w.AcquireLease(ctx(t), s.ID, engine, 10*time.Second)
		want(t, err, "")
		equal(t, "epoch", again, epoch)
		_, err = w.AcquireLease(ctx(t), s.ID, "eng_two", time.Minute)
		want(t, err, workbench.CodeConflict)
		waitFor(t, func() bool { // it runs out
			taken, err := w.AcquireLease(ctx(t), s.ID, "eng_two", time.Minute)
			return err == nil && taken == epoch+1
		})
		equal(t, "owner", w.mustRead(s.ID).LeaseOwner, "eng_two")
		want(t, w.AppendLog(ctx(t), r.ID, epoch, 1, nil, []workbench.LogEntry{output(3, workbench.Stdout, 0, "late")}), workbench.CodeFenced)
		want(t, w.Settle(ctx(t), w.settlement(r, epoch, workbench.StatusSucceeded)), workbench.CodeFenced)
		lost, err := w.RenewLeases(ctx(t), engine, time.Minute)
		want(t, err, "")
		equal(t, "the old owner hears of it", slices.Contains(lost, s.ID), true)
		lost, err = w.RenewLeases(ctx(t), engine, time.Minute)
		want(t, err, "")
		equal(t, "once", len(lost), 0)
		equal(t, "and takes nothing back", w.mustRead(s.ID).LeaseOwner, "eng_two")
		// The new owner may settle it, the step being an older epoch's.
		_, err = w.SettleUnknown(ctx(t), r.ID, epoch+1, workbench.ReasonServerLost, w.now)
		want(t, err, "")
	})
	t.Run("renewing prolongs, also a lease that ran out and that nobody took", func(t *testing.T) {
		w := mustWorld(t, open)
		kept, late, taken := w.mustSession(w.ann), w.mustSession(w.ann), w.mustSession(w.ann)
		_, err := w.AcquireLease(ctx(t), kept.ID, engine, 30*time.Second)
		want(t, err, "")
		epoch, err := w.AcquireLease(ctx(t), late.ID, engine, time.Millisecond)
		want(t, err, "")
		r := w.mustAdmit(w.ann, late.ID)
		w.mustDispatch(r, epoch)
		_, err = w.AcquireLease(ctx(t), taken.ID, engine, time.Millisecond)
		want(t, err, "")
		time.Sleep(5 * time.Millisecond)
		_, err = w.AcquireLease(ctx(t), taken.ID, "eng_two", time.Minute)
		want(t, err, "")
		lost, err := w.RenewLeases(ctx(t), engine, time.Minute)
		want(t, err, "")
		equal(t, "lost", slices.Equal(lost, []string{taken.ID}), true)
		s := w.mustRead(late.ID)
		equal(t, "owner", s.LeaseOwner, engine)
		equal(t, "epoch", s.LeaseEpoch, epoch)
		equal(t, "kept", w.mustRead(kept.ID).LeaseOwner, engine)
		_, err = w.AcquireLease(ctx(t), late.ID, "eng_two", time.Minute)
		want(t, err, workbench.CodeConflict)
		want(t, w.Settle(ctx(t), w.settlement(r, epoch, workbench.StatusSucceeded)), "") // its work counts
	})
	t.Run("an admission takes a lease that is free, and no other", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		admit := func(key, fingerprint string) (int64, error) {
			a := w.admission(s.ID, key, fingerprint)
			a.Lease = &store.LeaseWish{EngineID: engine, TTL: time.Minute}
			_, _, err := w.Admit(ctx(t), w.ann, a)
			return a.Lease.Epoch, err
		}
		epoch, err := admit("k", "f")
		want(t, err, "")
		equal(t, "epoch", epoch, 1)
		equal(t, "owner", w.mustRead(s.ID).LeaseOwner, engine)
		own, err := w.AcquireLease(ctx(t), s.ID, engine, time.Minute)
		want(t, err, "")
		equal(t, "it is the engine's as any", own, epoch)
		_, err = w.AcquireLease(ctx(t), s.ID, "eng_two", time.Minute)
		want(t, err, workbench.CodeConflict)
		again, err := admit("", "f")
		want(t, err, "")
		equal(t, "what the engine has already", again, 0)

		want(t, w.ReleaseLease(ctx(t), s.ID, engine, epoch), "")
		replayed, err := admit("k", "f")
		want(t, err, "")
		equal(t, "for a repeat", replayed, 0)
		refused, err := admit("k", "other")
		want(t, err, workbench.CodeIdempotencyReused)
		equal(t, "for what is refused", refused, 0)
		equal(t, "nobody's", w.mustRead(s.ID).LeaseOwner, "")

		taken, err := w.AcquireLease(ctx(t), s.ID, "eng_two", time.Minute)
		want(t, err, "")
		equal(t, "epoch of the other", taken, epoch+1)
		others, err := admit("", "f")
		want(t, err, "")
		equal(t, "of another's", others, 0)
		equal(t, "owner", w.mustRead(s.ID).LeaseOwner, "eng_two")
	})
	t.Run("a released lease is free, a stale release does nothing", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		epoch := w.mustLease(s.ID)
		want(t, w.ReleaseLease(ctx(t), s.ID, engine, epoch-1), "")
		want(t, w.ReleaseLease(ctx(t), s.ID, "eng_two", epoch), "")
		_, err := w.AcquireLease(ctx(t), s.ID, "eng_two", time.Minute)
		want(t, err, workbench.CodeConflict)
		want(t, w.ReleaseLease(ctx(t), s.ID, engine, epoch), "")
		taken, err := w.AcquireLease(ctx(t), s.ID, "eng_two", time.Minute)
		want(t, err, "")
		equal(t, "epoch", taken, epoch+1)
		_, err = w.AcquireLease(ctx(t), "ses_none", engine, time.Minute)
		want(t, err, workbench.CodeNotFound)
	})
	t.Run("a takeover moves every lease of the dead engine at once", func(t *testing.T) {
		w := mustWorld(t, open)
		a, b, other := w.mustSession(w.ann), w.mustSession(w.ann), w.mustSession(w.ann)
		w.mustLease(a.ID)
		w.mustLease(b.ID)
		_, err := w.AcquireLease(ctx(t), other.ID, "eng_other", time.Minute)
		want(t, err, "")
		taken, err := w.TakeOver(ctx(t), "eng_new", engine, time.Minute)
		want(t, err, "")
		equal(t, "sessions", slices.Equal(taken, []string{a.ID, b.ID}), true)
		equal(t, "epoch", w.mustRead(a.ID).LeaseEpoch, 2)
		equal(t, "owner", w.mustRead(b.ID).LeaseOwner, "eng_new")
		equal(t, "another engine's stays", w.mustRead(other.ID).LeaseOwner, "eng_other")
		_, err = w.TakeOver(ctx(t), engine, engine, time.Minute)
		want(t, err, workbench.CodeInvalidRequest)
	})
	t.Run("sessions with work out and no owner are found", func(t *testing.T) {
		w := mustWorld(t, open)
		s, _, epoch := w.mustOut(w.ann)
		idle := w.mustSession(w.ann)
		w.mustAdmit(w.ann, idle.ID)
		none, err := w.AbandonedSessions(ctx(t), "eng_two", 10, "")
		want(t, err, "")
		equal(t, "while owned", len(none), 0)
		want(t, w.ReleaseLease(ctx(t), s.ID, engine, epoch), "")
		found, err := w.AbandonedSessions(ctx(t), "eng_two", 10, "")
		want(t, err, "")
		equal(t, "found", slices.Equal(found, []string{s.ID}), true)
		none, err = w.AbandonedSessions(ctx(t), "eng_two", 10, s.ID)
		want(t, err, "")
		equal(t, "after it", len(none), 0)
	})
	t.Run("an engine that is late to renew has not abandoned its own work", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		epoch, err := w.AcquireLease(ctx(t), s.ID, engine, time.Millisecond)
		want(t, err, "")
		w.mustDispatch(w.mustAdmit(w.ann, s.ID), epoch)
		time.Sleep(5 * time.Millisecond)
		own, err := w.AbandonedSessions(ctx(t), engine, 10, "")
		want(t, err, "")
		equal(t, "to itself", len(own), 0)
		others, err := w.AbandonedSessions(ctx(t), "eng_two", 10, "")
		want(t, err, "")
		equal(t, "to others", slices.Equal(others, []string{s.ID}), true)
	})
}

// waitFor polls a condition that only the database's clock brings about.
func waitFor(t testing.TB, done func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if done() {
			return
		}
	}
	t.Fatal("it did not come about in half a minute")
}

func testEngines(t *testing.T, open Open) {
	w := mustWorld(t, open)
	want(t, w.RegisterEngine(ctx(t), "eng_a", "instance1", w.now), "")
	want(t, w.RegisterEngine(ctx(t), "eng_b", "instance1", w.now), "")
	want(t, w.RegisterEngine(ctx(t), "eng_c", "instance2", w.now), "")
	dead, err := w.DeadEngines(ctx(t), "eng_b", "instance1", time.Hour)
	want(t, err, "")
	equal(t, "dead", len(dead), 1)
	equal(t, "the same instance's older one", dead[0].ID, "eng_a")
	time.Sleep(20 * time.Millisecond)
	want(t, w.HeartbeatEngine(ctx(t), "eng_b"), "")
	dead, err = w.DeadEngines(ctx(t), "eng_b", "instance1", 10*time.Millisecond)
	want(t, err, "")
	equal(t, "and the silent", len(dead), 2)
	want(t, w.ForgetEngine(ctx(t), "eng_a"), "")
	want(t, w.HeartbeatEngine(ctx(t), "eng_a"), workbench.CodeNotFound)
	now, err := w.Now(ctx(t))
	want(t, err, "")
	equal(t, "the database's clock is a clock", time.Since(now).Abs() < time.Minute, true)
}

func testQueue(t *testing.T, open Open) {
	t.Run("first in, first out in a lane", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		epoch := w.mustLease(s.ID)
		_, ok, err := w.NextQueued(ctx(t), s.ID, workbench.LaneForeground)
		want(t, err, "")
		equal(t, "found", ok, false)
		a, b := w.mustAdmit(w.ann, s.ID), w.mustAdmit(w.ann, s.ID)
		next, ok, err := w.NextQueued(ctx(t), s.ID, workbench.LaneForeground)
		want(t, err, "")
		equal(t, "found", ok, true)
		equal(t, "first", next.ID, a.ID)
		same(t, "with its spec", next.Sealed, []byte("sealed:f"))
		w.mustDispatch(a, epoch)
		next, _, err = w.NextQueued(ctx(t), s.ID, workbench.LaneForeground)
		want(t, err, "")
		equal(t, "second", next.ID, b.ID)
		_, ok, err = w.NextQueued(ctx(t), s.ID, workbench.LaneBackground)
		want(t, err, "")
		equal(t, "another lane", ok, false)
	})
	t.Run("a tenant with many sessions does not hold up another", func(t *testing.T) {
		w := mustWorld(t, open)
		bob := w.mustDirect("globex", "bob")
		for range 10 {
			w.mustAdmit(w.ann, w.mustSession(w.ann).ID)
		}
		late := w.mustSession(bob)
		w.mustAdmit(bob, late.ID)
		first, err := w.SessionsWithQueued(ctx(t), engine, 2, "")
		want(t, err, "")
		equal(t, "is among the first two", slices.Contains(first, late.ID), true)
		seen := map[string]bool{}
		for after := ""; ; {
			part, err := w.SessionsWithQueued(ctx(t), engine, 3, after)
			want(t, err, "")
			if len(part) == 0 {
				break
			}
			for _, id := range part {
				equal(t, "seen before", seen[id], false)
				seen[id], after = true, id
			}
		}
		equal(t, "sessions", len(seen), 11)
	})
	t.Run("only sessions that could start something now", func(t *testing.T) {
		w := mustWorld(t, open)
		busy, _, _ := w.mustOut(w.ann)
		w.mustAdmit(w.ann, busy.ID) // waits for the one that is out
		elsewhere := w.mustSession(w.ann)
		w.mustAdmit(w.ann, elsewhere.ID)
		_, err := w.AcquireLease(ctx(t), elsewhere.ID, "eng_two", time.Minute)
		want(t, err, "")
		w.mustSession(w.ann) // nothing queued
		ready := w.mustSession(w.ann)
		w.mustAdmit(w.ann, ready.ID)
		got, err := w.SessionsWithQueued(ctx(t), engine, 10, "")
		want(t, err, "")
		equal(t, "sessions", slices.Equal(got, []string{ready.ID}), true)
		got, err = w.SessionsWithQueued(ctx(t), "eng_two", 10, "")
		want(t, err, "")
		equal(t, "its owner sees it", slices.Contains(got, elsewhere.ID), true)
	})
}
