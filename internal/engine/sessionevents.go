package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
	"github.com/workbenchdev/workbench/internal/workspace"
)

// SessionEvents yields a session's events from after on, follows them while the
// session lives, and returns nil once the terminal one was yielded.
func (e *Engine) SessionEvents(ctx context.Context, p workbench.Principal, id string, after int64, yield func(workbench.SessionEvent) error) error {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return err
	}
	return e.follow(ctx, store.SessionTopic(id), func() (int, bool, error) {
		events, err := e.o.Store.SessionEvents(ctx, p, id, after, logPage)
		for _, event := range events {
			if err := yield(event); err != nil {
				return 0, false, err
			}
			after = event.Seq
			if event.Kind.Terminal() {
				return 0, true, nil
			}
		}
		return len(events), false, err
	}, func() (bool, error) { return e.o.Store.SessionConcluded(ctx, p, id) })
}

// follow reads a log to its end, however long that takes. next yields up to
// logPage entries and says how many there were, and whether the last one of the
// log was among them. complete says whether the log has its last one.
func (e *Engine) follow(ctx context.Context, topic string, next func() (n int, last bool, err error), complete func() (bool, error)) error {
	sub := e.o.Store.Subscribe(topic)
	defer sub.Close()
	for stopping := false; ; {
		n, last, err := next()
		if err != nil || last {
			return err
		}
		if n == logPage {
			continue
		}
		if n == 0 {
			// A reader who asks for what is behind the end would wait for ever.
			done, err := complete()
			if err != nil {
				return err
			}
			if done {
				if n, last, err := next(); err != nil || last || n == 0 {
					return err
				}
				continue
			}
		}
		select {
		case <-sub.C:
		case <-e.ctx.Done():
			if stopping {
				return workbench.E(workbench.CodeUnavailable, "the server is shutting down").WithHint("reconnect with the last event id").
					Caused(workbench.ErrStopping)
			}
			stopping = true // one more look: the end may just have come
		case <-ctx.Done():
			return workbench.E(workbench.CodeCancelled, "the request was given up").Caused(ctx.Err())
		}
	}
}

// warnings are the times in use: the longest first, each once.
func warnings(asked []time.Duration) []time.Duration {
	if asked == nil {
		asked = workbench.DefaultWarnings()
	}
	all := slices.DeleteFunc(slices.Clone(asked), func(d time.Duration) bool { return d <= 0 })
	slices.Sort(all)
	slices.Reverse(all)
	return slices.Compact(all)
}

// ahead is how long before the session's deadline a warning is due: half its
// life at most.
func ahead(s workbench.Session, before time.Duration) time.Duration {
	half := time.Duration((s.ExpiresAt.UnixMicro()-s.CreatedAt.UnixMicro())/2) * time.Microsecond // as the store has it
	return min(before, half)
}

// warnExpiring tells the sessions whose deadline is near. A server that was away
// tells once, and how long is really left.
func (e *Engine) warnExpiring(ctx context.Context) {
	for _, before := range e.o.WarnBefore {
		for after := ""; ; {
			due, err := e.o.Store.SessionsToWarn(ctx, e.now(), before, sweepBatch, after)
			if err != nil {
				e.sweepFailed(ctx, "warnings", err)
				return
			}
			for _, s := range due {
				if err := e.warn(ctx, s, before); err != nil {
					e.sweepFailed(ctx, "warning of session "+s.ID, err)
				}
				after = s.ID
			}
			if len(due) < sweepBatch {
				break
			}
		}
	}
}

func (e *Engine) warn(ctx context.Context, s workbench.Session, before time.Duration) error {
	event := workbench.ExpiringEvent{Deadline: s.ExpiresAt, Keep: nonNil(s.KeepAtExpiry)}
	if len(s.KeepAtExpiry) > 0 {
		matching, err := e.matching(ctx, s)
		if err != nil {
			e.sweepFailed(ctx, "what session "+s.ID+" would keep", err)
		} else {
			event.Matching = &matching
		}
	}
	now := e.now()
	event.MsLeft = max(0, s.ExpiresAt.Sub(now).Milliseconds())
	_, err := e.o.Store.WarnSession(ctx, s.ID, s.ExpiresAt.Add(-ahead(s, before)), now, event)
	return err
}

// matching counts what the session would keep if it ended now.
func (e *Engine) matching(ctx context.Context, s workbench.Session) (workbench.MatchingFiles, error) {
	found := workbench.MatchingFiles{First: []string{}}
	tree, head, err := e.headTree(ctx, s.ID)
	if err != nil {
		return found, err
	}
	found.CommitID = head
	wanted := newGlobs(s.KeepAtExpiry)
	tree.Files(func(entry workspace.Entry) bool {
		if wanted.match(entry.Path) {
			found.Files++
			found.Bytes += entry.Size
			if len(found.First) < workbench.MaxEventItems {
				found.First = append(found.First, entry.Path)
			}
		}
		return true
	})
	return found, nil
}

// headTree is the session's last commit, with an empty id before the first.
func (e *Engine) headTree(ctx context.Context, id string) (workspace.Tree, string, error) {
	head, ok, err := e.o.Store.HeadCommit(ctx, id)
	if err != nil || !ok {
		return workspace.Empty(), "", err
	}
	tree, err := e.loadTree(ctx, head)
	return tree, head.ID, err
}

// warnOfDeadline tells whoever reads the receipt of a run that ends shortly
// before its session does.
func (x *execution) warnOfDeadline(at time.Time) {
	left := x.s.ExpiresAt.Sub(at)
	if n := len(x.e.o.WarnBefore); n == 0 || left <= 0 || left > ahead(x.s, x.e.o.WarnBefore[n-1]) {
		return
	}
	kept := "keepAtExpiry is not set, so nothing of its workspace is kept then: save what is needed, or set it with configure"
	if len(x.s.KeepAtExpiry) > 0 {
		kept = "files that match its keepAtExpiry are kept then, and nothing else of its workspace"
	}
	x.notice(workbench.NoticeSessionExpiring, fmt.Sprintf("the session ends at %s, in %s; %s",
		x.s.ExpiresAt.UTC().Format(time.RFC3339), left.Round(time.Second), kept))
}
