package sdk

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
)

// Options say which server a Client speaks to and as whom.
type Options struct {
	// BaseURL is the server's address, such as https://workbench.example.com.
	// Default: http://127.0.0.1:8080.
	BaseURL string
	// Key is the API key. It may only be left out where HTTP adds the
	// Authorization header by itself.
	Key string
	// Tenant, EndUser and Group say for whom an embedded key acts; other keys
	// leave them empty.
	Tenant, EndUser, Group string
	// HTTP makes the requests. Default: a client with the timeouts of
	// DefaultHTTP. Its Timeout must be 0, or long polls and streams are cut.
	HTTP *http.Client
	// Retries is how often a request that may be repeated is repeated.
	// Default: 5. Negative: never.
	Retries int
	// Backoff is the wait before the first repetition; it doubles up to
	// MaxBackoff and is spread at random. Default: 100 ms.
	Backoff time.Duration
	// Patience is how long Events and WaitForSessionRun go on asking while the
	// server is away. Default: a minute. With negative Retries: not at all.
	Patience time.Duration
	// OnOutage, if set, is told when a run that is followed loses the server
	// (with the error) and when it is back (with nil). It is called by the
	// goroutine that follows.
	OnOutage func(err error)
	// UserAgent is sent along. Default: workbench-go.
	UserAgent string
}

// Bounds of waiting between repetitions.
const (
	DefaultRetries = 5
	DefaultBackoff = 100 * time.Millisecond
	MaxBackoff     = 5 * time.Second
	// MaxRetryAfter is the longest Retry-After that is waited out; a longer
	// one is returned to the caller at once.
	MaxRetryAfter = time.Minute
)

// DefaultBaseURL is where `workbench serve` listens by default.
const DefaultBaseURL = "http://127.0.0.1:8080"

const apiPrefix = "/v1/workbench"

// Client speaks to one server as one caller. It may be used by many goroutines
// at once.
type Client struct {
	o    Options
	base *url.URL
}

// New returns a client. It makes no request. Codes: invalid_request if the
// address is none, unauthenticated if there is no key.
func New(o Options) (*Client, error) {
	if o.BaseURL == "" {
		o.BaseURL = DefaultBaseURL
	}
	base, err := url.Parse(strings.TrimRight(o.BaseURL, "/"))
	if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") || base.User != nil {
		return nil, workbench.E(workbench.CodeInvalidRequest, "the server's address is not an http or https URL").
			WithField("server").WithHint("write it as https://host or http://127.0.0.1:8080, without a user or a key in it")
	}
	if o.HTTP == nil {
		if o.Key == "" {
			return nil, workbench.E(workbench.CodeUnauthenticated, "the client has no API key: Options.Key is empty").
				WithHint("give it the secret that workbench key create or POST /v1/workbench/keys printed")
		}
		o.HTTP = DefaultHTTP()
	}
	if o.Retries == 0 {
		o.Retries = DefaultRetries
	}
	if o.Backoff <= 0 {
		o.Backoff = DefaultBackoff
	}
	if o.Patience <= 0 {
		o.Patience = DefaultPatience
	}
	if o.UserAgent == "" {
		o.UserAgent = "workbench-go"
	}
	return &Client{o: o, base: base}, nil
}

// DefaultHTTP is the HTTP client used when Options name none. It bounds every
// phase except the answer's body, which may be a stream. It does not follow
// redirects: a key is sent to the server it was given for and no other.
func DefaultHTTP() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 16
	t.ResponseHeaderTimeout = 90 * time.Second // long polls answer within 60 s
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// For returns a client like this one that acts for somebody else. Only an
// embedded key may.
func (c *Client) For(tenant, endUser, group string) *Client {
	d := *c
	d.o.Tenant, d.o.EndUser, d.o.Group = tenant, endUser, group
	return &d
}

// pause waits before repetition n (from 1), at least as long as the server
// asked. It returns the context's error if that ends first.
func (c *Client) pause(ctx context.Context, n int, asked time.Duration) error {
	d := min(c.o.Backoff<<min(n-1, 16), MaxBackoff)
	d = d/2 + rand.N(d/2+1)
	timer := time.NewTimer(max(d, asked))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// unreachable is the error for a request that got no answer.
func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return workbench.E(workbench.CodeCancelled, "the request was given up: %v", context.Cause(ctx)).Caused(err)
	}
	if errors.Is(err, http.ErrSchemeMismatch) {
		return workbench.E(workbench.CodeInvalidRequest, "the server at %s speaks http, not https", c.base.Host).WithField("server").
			WithHint("write its address with http://, or start it with a certificate").Caused(err)
	}
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return workbench.E(workbench.CodeUnavailable, "the server at %s did not answer in time", c.base.Host).
			WithHint("check that the server is running and reachable").Caused(err)
	}
	return workbench.E(workbench.CodeUnavailable, "no answer from the server at %s", c.base.Host).
		WithHint("check that the server is running and reachable: workbench serve").Caused(err)
}
