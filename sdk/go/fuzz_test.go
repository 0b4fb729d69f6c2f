package sdk_test

import (
	"bytes"
	"io"
	"net/http"
	"testing"

	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// canned answers every request with one body.
type canned []byte

func (c canned) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: io.NopCloser(bytes.NewReader(c)), Request: r}, nil
}

// Whatever a server sends, events come in order and none twice, or there is an
// error.
func FuzzEvents(f *testing.F) {
	f.Add([]byte("id: 1\nevent: output\ndata: {\"seq\":1,\"kind\":\"output\",\"stream\":\"stdout\",\"text\":\"x\",\"length\":1}\n\n: heartbeat\n\nid: 2\ndata: {\"seq\":2,\"kind\":\"terminal\"}\n\n"))
	f.Add([]byte("event: problem\ndata: {\"code\":\"internal\"}\n\n"))
	f.Add([]byte("data: {\"seq\":2}\r\n\r\ndata: {\"seq\":1,\ndata: \"kind\":\"terminal\"}\n\n"))
	f.Add([]byte("data: {\"seq\":1}\n\ndata: {\"seq\":1}\n\ndata: {\"seq\":3}\n\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		c, err := sdk.New(sdk.Options{BaseURL: "http://x", Retries: -1, HTTP: &http.Client{Transport: canned(body)}})
		if err != nil {
			t.Fatal(err)
		}
		last, failed := int64(0), false
		for e, err := range c.Events(t.Context(), "run_x", 0) {
			if failed {
				t.Fatal("an event after an error")
			}
			if err != nil {
				failed = true
				continue
			}
			if e.Seq != last+1 {
				t.Fatalf("event %d follows %d", e.Seq, last)
			}
			last = e.Seq
			for _, chunk := range e.Tail {
				_, _ = chunk.Bytes()
			}
			_, _ = e.Bytes()
		}
	})
}
