package storetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

func testHistoryQuota(t *testing.T, open Open) {
	t.Run("a history counts each blob once, inline ones too, and gives it back", func(t *testing.T) { testHistoryBytes(t, open) })
	t.Run("a session's bound", func(t *testing.T) { testSessionHistory(t, open) })
	t.Run("every kind of commit is refused whole", func(t *testing.T) { testHistoryRefusals(t, open) })
	t.Run("what was written in vain is swept sooner", func(t *testing.T) { testReleasedBlobs(t, open) })
	t.Run("sessions of a tenant race to its bound", func(t *testing.T) { testHistoryRace(t, open) })
}

// history is a session with commits on one another.
type history struct {
	*world
	session workbench.Session
	epoch   int64
	head    string
}

func (w *world) mustHistory() *history {
	w.t.Helper()
	s := w.mustSession(w.ann)
	return &history{world: w, session: s, epoch: w.mustLease(s.ID)}
}

// mustNote announces a blob of a size.
func (w *world) mustNote(id string, size int64) {
	w.t.Helper()
	if err := w.NoteBlob(ctx(w.t), id, w.tenant.ID, size, w.now); err != nil {
		w.t.Fatal(err)
	}
}

func (h *history) next(manifest string, inline []byte) workbench.Commit {
	return workbench.Commit{ID: workbench.NewID(workbench.KindCommit), SessionID: h.session.ID, ParentID: h.head, Generation: 1, Root: "root of " + manifest,
		ManifestID: manifest, Inline: inline, CreatedAt: h.now}
}

// commit adds a commit that refers to the blobs, the first of which is its
// manifest.
func (h *history) commit(inline []byte, refs ...string) error {
	c, err := h.CreateCommit(ctx(h.t), h.next(refs[0], inline), h.epoch, refs)
	if err == nil {
		h.head = c.ID
	}
	return err
}

func (h *history) uses(what string, session, tenant int64) {
	h.t.Helper()
	use, err := h.HistoryUse(ctx(h.t), h.session.ID)
	want(h.t, err, "")
	equal(h.t, what, use, store.HistoryUse{SessionBytes: session, TenantBytes: tenant})
	equal(h.t, what+", as the session tells it", h.mustRead(h.session.ID).HistoryBytes, session)
}

func testHistoryBytes(t *testing.T, open Open) {
	w := mustWorld(t, open)
	h := w.mustHistory()
	h.uses("a session without a commit", 0, 0)
	w.mustNote("p_1", 100)
	w.mustNote("chunk", 1000)
	want(t, h.commit(nil, "p_1", "chunk", "chunk"), "")
	h.uses("a pack and a chunk", 1100, 1100)
	want(t, h.commit([]byte("twelve bytes"), "i_2", "chunk"), "")
	h.uses("an inline blob, and a chunk that the session has", 1112, 1112)
	want(t, h.commit(nil, "p_1"), "")
	h.uses("nothing new", 1112, 1112)
	want(t, h.commit(nil, "p_1", "never noted"), workbench.CodeConflict)
	h.uses("after a refusal", 1112, 1112)

	fork, revision := w.newSession(w.ann)
	first := workbench.Commit{ID: workbench.NewID(workbench.KindCommit), Root: "x", ManifestID: "p_1", CreatedAt: w.now}
	_, bytes, err := w.Fork(ctx(t), w.ann, fork, revision, first, []string{"p_1", "chunk"})
	want(t, err, "")
	equal(t, "bytes of the fork", bytes, 1100)
	h.uses("the origin of a fork", 1112, 2212)
	(&history{world: w, session: fork}).uses("a fork", 1100, 2212)

	_, err = w.EndSession(ctx(t), w.ann, h.session.ID, workbench.SessionClosed, w.now)
	want(t, err, "")
	_, err = w.PurgeReceipts(ctx(t), w.now.Add(8*24*time.Hour), 10)
	want(t, err, "")
	_, err = w.Session(ctx(t), w.ann, h.session.ID)
	want(t, err, workbench.CodeNotFound)
	(&history{world: w, session: fork}).uses("once the origin was purged", 1100, 1100)
}

func testSessionHistory(t *testing.T, open Open) {
	w := mustWorld(t, open)
	h := w.mustHistory()
	room := func() int64 {
		t.Helper()
		n, err := w.HistoryRoom(ctx(t), h.session.ID)
		want(t, err, "")
		return n.Bytes
	}
	equal(t, "room without a bound", room() > 1<<60, true)
	hints := func(q store.HistoryQuota, raise string) {
		t.Helper()
		w.LimitHistory(q)
		room, err := w.HistoryRoom(ctx(t), h.session.ID)
		want(t, err, "")
		want(t, room.Full, workbench.CodeQuotaExceeded)
		e := workbench.AsError(room.Full)
		equal(t, "field", e.Field, "historyBytes")
		equal(t, "the hint says whose bound it is", strings.Contains(e.Hint, raise), true)
		equal(t, "a fork is no way out of a tenant's bound", strings.Contains(e.Hint, "fork"), raise == "--history-per-session")
	}
	hints(store.HistoryQuota{SessionBytes: 100}, "--history-per-session")
	hints(store.HistoryQuota{TenantBytes: 100}, "--history-per-tenant")
	hints(store.HistoryQuota{SessionBytes: 100, TenantBytes: 90}, "--history-per-tenant")
	hints(store.HistoryQuota{SessionBytes: 90, TenantBytes: 100}, "--history-per-session")
	w.LimitHistory(store.HistoryQuota{SessionBytes: 100, TenantBytes: 150})
	w.mustNote("sixty", 60)
	w.mustNote("forty", 40)
	w.mustNote("one", 1)
	want(t, h.commit(nil, "sixty"), "")
	equal(t, "room", room(), 40)
	want(t, h.commit(nil, "one", "forty"), workbench.CodeQuotaExceeded)
	h.uses("after the refusal", 60, 60)
	want(t, h.commit(nil, "forty"), "")
	equal(t, "room", room(), 0)
	want(t, h.commit(nil, "one"), workbench.CodeQuotaExceeded)
	want(t, h.commit([]byte("x"), "i_x"), workbench.CodeQuotaExceeded)
	want(t, h.commit(nil, "sixty", "forty"), "") // what adds nothing fits always
	w.LimitHistory(store.HistoryQuota{SessionBytes: 50})
	equal(t, "room under a lower bound", room(), -50)
	want(t, h.commit(nil, "forty"), "")
	w.LimitHistory(store.HistoryQuota{SessionBytes: 101})
	want(t, h.commit(nil, "one"), "")
	h.uses("under a higher bound", 101, 101)
	w.LimitHistory(store.HistoryQuota{TenantBytes: 100})
	w.mustNote("two", 2)
	want(t, h.commit(nil, "two"), workbench.CodeQuotaExceeded)
	w.LimitHistory(store.HistoryQuota{})
	want(t, h.commit(nil, "two"), "")
	h.uses("without a bound", 103, 103)
}

func testHistoryRefusals(t *testing.T, open Open) {
	w := mustWorld(t, open)
	s, r, epoch := w.mustOut(w.ann)
	h := &history{world: w, session: s, epoch: epoch}
	w.mustNote("first", 10)
	w.mustNote("more", 10)
	want(t, h.commit(nil, "first"), "")
	w.LimitHistory(store.HistoryQuota{SessionBytes: 15, TenantBytes: 15})

	end := w.settlement(r, epoch, workbench.StatusSucceeded)
	c := h.next("more", nil)
	end.Commit, end.ManifestRefs = &c, []string{"more"}
	err := w.Settle(ctx(t), end)
	want(t, err, workbench.CodeQuotaExceeded)
	e := workbench.AsError(err)
	equal(t, "field and hint", e.Field == "historyBytes" && e.Hint != "", true)
	equal(t, "a run whose settlement was refused", w.mustRun(r.ID).Status, workbench.StatusDispatching)
	end.Commit, end.ManifestRefs = nil, nil
	want(t, w.Settle(ctx(t), end), "") // without its commit it settles
	equal(t, "head", w.mustRead(s.ID).HeadCommit, h.head)

	over := workbench.Commit{ID: workbench.NewID(workbench.KindCommit), Root: "r", ManifestID: "more", CreatedAt: w.now}
	_, _, err = w.StartOver(ctx(t), w.ann, s.ID, epoch, over, []string{"more"}, "")
	want(t, err, workbench.CodeQuotaExceeded)
	equal(t, "generation", w.mustRead(s.ID).Generation, 1)

	fork, revision := w.newSession(w.ann)
	_, _, err = w.Fork(ctx(t), w.ann, fork, revision, over, []string{"first"})
	want(t, err, workbench.CodeQuotaExceeded)
	equal(t, "a fork that the tenant has no room for", strings.Contains(workbench.AsError(err).Hint, "--history-per-tenant"), true)
	_, err = w.Session(ctx(t), w.ann, fork.ID)
	want(t, err, workbench.CodeNotFound) // nothing of it is left
	w.LimitHistory(store.HistoryQuota{SessionBytes: 5})
	_, _, err = w.Fork(ctx(t), w.ann, fork, revision, over, []string{"first"})
	want(t, err, workbench.CodeQuotaExceeded)
	equal(t, "a fork that is more than a session may have", workbench.AsError(err).Hint, "fork a commit that holds less, or have the operator raise --history-per-session")
	h.uses("after all refusals", 10, 10)
}

func testHistoryRace(t *testing.T, open Open) {
	w := mustWorld(t, open)
	w.LimitHistory(store.HistoryQuota{TenantBytes: 370})
	const each, writers = 25, 4
	var all []*history
	for i := range writers {
		h := w.mustHistory()
		all = append(all, h)
		for j := range each {
			w.mustNote(fmt.Sprintf("b%d-%d", i, j), 10)
		}
	}
	fits := make([]int64, writers)
	errs := together(writers, func(i int) error {
		for j := range each {
			err := all[i].commit(nil, fmt.Sprintf("b%d-%d", i, j))
			if err == nil {
				fits[i]++
			} else if !workbench.HasCode(err, workbench.CodeQuotaExceeded) {
				return err
			}
		}
		return nil
	})
	equal(t, "sessions that met no other error", count(errs, ""), writers)
	total := int64(0)
	for i, h := range all {
		total += fits[i]
		h.uses("a session", 10*fits[i], 370)
	}
	equal(t, "commits that fit", total, 37)
}

func testReleasedBlobs(t *testing.T, open Open) {
	w := mustWorld(t, open)
	h := w.mustHistory()
	for _, id := range []string{"vain", "needed", "again"} {
		w.mustNote(id, 1)
	}
	want(t, h.commit(nil, "needed"), "")
	before := w.now.Add(-time.Hour)
	other := w.mustDirect("globex", "bob").TenantID
	want(t, w.ReleaseBlobs(ctx(t), other, []string{"vain"}, before), "")
	free, err := w.UnreferencedBlobs(ctx(t), w.now, 10)
	want(t, err, "")
	equal(t, "free while they are another tenant's", len(free), 0)
	release := []string{"vain", "needed", "again", "vain"}
	for i := range 1000 { // more than one statement takes
		release = append(release, fmt.Sprintf("unknown%d", i))
	}
	want(t, w.ReleaseBlobs(ctx(t), w.tenant.ID, release, before), "")
	w.mustNote("again", 1)
	free, err = w.UnreferencedBlobs(ctx(t), w.now, 10)
	want(t, err, "")
	equal(t, "free", fmt.Sprint(free), "[vain]")
}
