package sdk

import (
	"context"
	"errors"
	"time"

	"github.com/workbenchdev/workbench"
)

// DefaultPatience is how long a server may be away while a run is followed: a
// restart with its recovery fits in.
const DefaultPatience = time.Minute

// outage is the patience of one call that follows a run: it goes on asking
// while the server is away, for a bounded time, and tells when that begins and
// ends.
type outage struct {
	c     *Client
	since time.Time // of the first failure in a row; zero: all is well
	n     int
	told  bool
}

// again waits before the next attempt. It returns the error to give up with:
// err itself where asking again cannot help, or unavailable once the client's
// patience is over.
func (o *outage) again(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return o.c.unreachable(ctx, ctx.Err())
	}
	if o.c.o.Retries < 0 || !worthRepeating(err) {
		return err
	}
	now := time.Now()
	switch {
	case o.since.IsZero(): // a connection that broke may be all there is to it
		o.since = now
	case !o.told:
		o.tell(err)
	}
	if away := now.Sub(o.since); away >= o.c.o.Patience {
		return workbench.E(workbench.CodeUnavailable, "the server at %s was away for %s and has not come back", o.c.base.Host, away.Round(100*time.Millisecond)).
			WithHint("the run is not lost: read its receipt when the server is back").Caused(err)
	}
	var answer *Error
	var asked time.Duration
	if errors.As(err, &answer) {
		asked = min(answer.RetryAfter, o.c.o.Patience)
	}
	o.n = min(o.n+1, maxFollowPause)
	if o.c.pause(ctx, o.n, asked) != nil {
		return o.c.unreachable(ctx, ctx.Err())
	}
	return nil
}

// maxFollowPause bounds the exponent of the wait between attempts: a server
// that comes back is noticed within about 1.6 s at the default backoff.
const maxFollowPause = 5

// answered says that the server is there. It may yet say nothing of use:
// patience goes on to run out.
func (o *outage) answered() {
	if o.told {
		o.tell(nil)
	}
}

// over says that the server gave what it was asked for.
func (o *outage) over() {
	o.answered()
	o.since, o.n = time.Time{}, 0
}

func (o *outage) tell(err error) {
	o.told = err != nil
	if o.c.o.OnOutage != nil {
		o.c.o.OnOutage(err)
	}
}
