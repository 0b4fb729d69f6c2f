package guestwire_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// rawFrame writes the header and payload of one frame.
func rawFrame(typ, stream byte, channel uint32, payload []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(payload)))
	b = append(b, typ, stream, 0, 0)
	b = binary.BigEndian.AppendUint32(b, channel)
	return append(b, payload...)
}

func at(offset uint64, data string) []byte {
	return append(binary.BigEndian.AppendUint64(nil, offset), data...)
}

// The types of frame, as the package comment's format has them.
const (
	fHello, fOpen, fReply, fFail, fEvent, fData, fAck, fEnd, fCancel, fPing, fPong = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
	sStdout, sStderr, sContent                                                     = 1, 2, 5
)

var noncePattern = regexp.MustCompile(`"nonce":"([0-9a-f]+)"`)

// MustHostile dials a peer that shakes hands properly and then says what the
// script returns for each request it sees.
func MustHostile(t *testing.T, script func(op string, channel uint32) []byte) *guestwire.Client {
	t.Helper()
	host, guest := net.Pipe()
	var peer sync.WaitGroup
	peer.Go(func() {
		defer guest.Close()
		buf := make([]byte, 1<<16)
		n, _ := io.ReadAtLeast(guest, buf, 16+12+20)
		m := noncePattern.FindSubmatch(buf[:n])
		for m == nil {
			k, err := guest.Read(buf[n:])
			if err != nil {
				return
			}
			n += k
			m = noncePattern.FindSubmatch(buf[:n])
		}
		hello := fmt.Sprintf(`{"version":1,"nonce":%q,"boot":"b"}`, m[1])
		_, _ = guest.Write(append([]byte("\xffWORKBENCH-WIRE\n"), rawFrame(fHello, 0, 0, []byte(hello))...))
		peer.Go(func() {
			head := make([]byte, 12)
			for {
				if _, err := io.ReadFull(guest, head); err != nil {
					return
				}
				payload := make([]byte, binary.BigEndian.Uint32(head))
				if _, err := io.ReadFull(guest, payload); err != nil {
					return
				}
				if head[4] != fOpen {
					continue
				}
				var o struct{ Op string }
				_ = json.Unmarshal(payload, &o)
				answer := script(o.Op, binary.BigEndian.Uint32(head[8:]))
				peer.Go(func() { _, _ = guest.Write(answer) })
			}
		})
		<-t.Context().Done()
	})
	c, err := guestwire.Dial(t.Context(), host, guestwire.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); guest.Close(); peer.Wait() })
	return c
}

func record(entry string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(entry))), entry...)
}

func TestViolationsOfAGuest(t *testing.T) {
	started := func(ch uint32) []byte { return rawFrame(fEvent, 0, ch, []byte(`"started"`)) }
	end := func(ch uint32, out, err uint64) []byte {
		return append(rawFrame(fEnd, sStdout, ch, at(out, "")), rawFrame(fEnd, sStderr, ch, at(err, ""))...)
	}
	result := func(ch uint32, json string) []byte { return rawFrame(fReply, 0, ch, []byte(json)) }
	good := `{"exitCode":0,"limitsHit":[],"total":{"stdout":0,"stderr":0},"forwarded":{"stdout":0,"stderr":0}}`
	for name, say := range map[string]func(ch uint32) []byte{
		"unknown frame type":            func(ch uint32) []byte { return rawFrame(99, 0, ch, nil) },
		"length beyond the bound":       func(ch uint32) []byte { return []byte{0x7f, 0xff, 0xff, 0xff, fReply, 0, 0, 0, 0, 0, 0, byte(ch)} },
		"reserved bytes":                func(ch uint32) []byte { return []byte{0, 0, 0, 0, fEvent, 0, 1, 0, 0, 0, 0, byte(ch)} },
		"stream out of range":           func(ch uint32) []byte { return rawFrame(fData, 200, ch, at(0, "x")) },
		"data at a wrong offset":        func(ch uint32) []byte { return rawFrame(fData, sStdout, ch, at(5, "x")) },
		"a huge offset":                 func(ch uint32) []byte { return rawFrame(fData, sStdout, ch, at(1<<63, "x")) },
		"data without bytes":            func(ch uint32) []byte { return rawFrame(fData, sStdout, ch, at(0, "")) },
		"data of a stream not asked":    func(ch uint32) []byte { return rawFrame(fData, sContent, ch, at(0, "x")) },
		"data after the end":            func(ch uint32) []byte { return append(end(ch, 0, 0), rawFrame(fData, sStdout, ch, at(0, "x"))...) },
		"end elsewhere":                 func(ch uint32) []byte { return end(ch, 7, 0) },
		"channel that was never opened": func(ch uint32) []byte { return rawFrame(fEvent, 0, ch+2, []byte(`1`)) },
		"channel 0":                     func(uint32) []byte { return rawFrame(fEvent, 0, 0, []byte(`1`)) },
		"cancel of the host's channel":  func(ch uint32) []byte { return rawFrame(fCancel, 0, ch, nil) },
		"ack of what was never sent":    func(ch uint32) []byte { return rawFrame(fAck, sStdout, ch, at(1, "")) },
		"ping":                          func(uint32) []byte { return rawFrame(fPing, 0, 0, at(1, "")) },
		"pong without a ping":           func(uint32) []byte { return rawFrame(fPong, 0, 0, at(1, "")) },
		"second hello":                  func(uint32) []byte { return rawFrame(fHello, 0, 0, []byte(`{}`)) },
		"event that is twice":           func(ch uint32) []byte { return append(started(ch), started(ch)...) },
		"end without a start":           func(ch uint32) []byte { return append(end(ch, 0, 0), result(ch, good)...) },
		"result that is no JSON":        func(ch uint32) []byte { return append(append(started(ch), end(ch, 0, 0)...), result(ch, "{")...) },
		"result with trailing bytes":    func(ch uint32) []byte { return append(append(started(ch), end(ch, 0, 0)...), result(ch, good+"{}")...) },
		"forwarded more than arrived": func(ch uint32) []byte {
			return append(append(started(ch), end(ch, 0, 0)...), result(ch, `{"total":{"stdout":9},"forwarded":{"stdout":9}}`)...)
		},
		"impossible exit code": func(ch uint32) []byte {
			return append(append(started(ch), end(ch, 0, 0)...), result(ch, `{"exitCode":-5}`)...)
		},
		"invented limit": func(ch uint32) []byte {
			return append(append(started(ch), end(ch, 0, 0)...), result(ch, `{"limitsHit":["budget"]}`)...)
		},
		"invented reason": func(ch uint32) []byte {
			return append(append(started(ch), end(ch, 0, 0)...), result(ch, `{"reason":"budget_exceeded"}`)...)
		},
		"negative duration": func(ch uint32) []byte {
			return append(append(started(ch), end(ch, 0, 0)...), result(ch, `{"durationNs":-1}`)...)
		},
		"fail that is no JSON":          func(ch uint32) []byte { return rawFrame(fFail, 0, ch, []byte(`[`)) },
		"operation that the host lacks": func(uint32) []byte { return rawFrame(fOpen, 0, 2, []byte(`{"op":"bind","body":{}}`)) },
		"call on the host's channels":   func(uint32) []byte { return rawFrame(fOpen, 0, 77, []byte(`{"op":"call","body":{}}`)) },
		"call that is out of bounds": func(ch uint32) []byte {
			return append(started(ch), rawFrame(fOpen, 0, 2, []byte(`{"op":"call","body":{"exec":"e1","op":"SAVE!","size":-1}}`))...)
		},
		"too many calls": func(ch uint32) []byte {
			b := started(ch)
			for i := range uint32(40) {
				b = append(b, rawFrame(fOpen, 0, 2+2*i, []byte(`{"op":"call","body":{"exec":"e1","op":"save","size":5}}`))...)
			}
			return b
		},
		"too many calls that were given up": func(ch uint32) []byte {
			b := started(ch)
			for i := range uint32(160) {
				b = append(b, rawFrame(fOpen, 0, 2+2*i, []byte(`{"op":"call","body":{"exec":"e1","op":"save","size":5}}`))...)
				b = append(b, rawFrame(fCancel, 0, 2+2*i, nil)...)
			}
			return b
		},
		"a window and more": func(ch uint32) []byte {
			b := started(ch)
			for i := range 40 {
				b = append(b, rawFrame(fData, sStdout, ch, at(uint64(i)*32768, string(make([]byte, 32768))))...)
			}
			return b
		},
		"a flood for an ended channel": func(ch uint32) []byte {
			b := rawFrame(fFail, 0, ch, []byte(`{"code":"not_found"}`))
			return append(b, bytes.Repeat(rawFrame(fData, sStdout, ch, at(0, string(make([]byte, 32768)))), 200)...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := MustHostile(t, func(_ string, ch uint32) []byte { return say(ch) })
			h := newRecorder()
			h.hold = make(chan struct{})
			defer close(h.hold)
			h.onCall = func(ctx ctxt, _ guestwire.BrokerCall) (json.RawMessage, error) {
				<-ctx.Done()
				<-h.hold
				return nil, nil
			}
			if e, err := c.Exec(t.Context(), request("e1"), h); err == nil {
				go func() { _, _ = e.Wait(t.Context()) }()
			}
			select {
			case <-c.Done():
				if err := c.Err(); !workbench.HasCode(err, workbench.CodeGuestProtocol) {
					t.Errorf("ended with %v, want guest_protocol", err)
				}
			case <-time.After(5 * time.Second):
				t.Error("the connection lives on")
			}
			if _, err := c.Exec(t.Context(), request("e2"), newRecorder()); !workbench.HasCode(err, workbench.CodeGuestProtocol) {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// A call whose content stops coming ends with its exec, also where its handler
// looks at nothing but the content.
func TestACallCutShortEndsWithItsExec(t *testing.T) {
	h := newRecorder()
	began, read := make(chan struct{}), make(chan error, 1)
	h.onCall = func(_ context.Context, c guestwire.BrokerCall) (json.RawMessage, error) {
		close(began)
		_, err := io.ReadAll(c.Content)
		read <- err
		return nil, err
	}
	var run uint32
	c := MustHostile(t, func(op string, ch uint32) []byte {
		if op == "exec" {
			run = ch
			return slices.Concat(rawFrame(fEvent, 0, ch, []byte(`{}`)),
				rawFrame(fOpen, 0, 2, []byte(`{"op":"call","body":{"exec":"e1","op":"save","args":{},"size":100}}`)),
				rawFrame(fData, sContent, 2, at(0, "half")))
		}
		return slices.Concat(rawFrame(fEnd, sStdout, run, at(0, "")), rawFrame(fEnd, sStderr, run, at(0, "")),
			rawFrame(fReply, 0, run, []byte(`{"exitCode":0,"limitsHit":[],"total":{},"forwarded":{}}`)),
			rawFrame(fReply, 0, ch, []byte(`null`)))
	})
	exec, err := c.Exec(t.Context(), request("e1"), h)
	if err != nil {
		t.Fatal(err)
	}
	<-began
	if err := c.EndGroup(t.Context(), "g"); err != nil {
		t.Fatal(err)
	}
	if _, err := exec.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-read:
		if !workbench.HasCode(err, workbench.CodeGuestProtocol) {
			t.Errorf("the content ended with %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the call outlasts its exec")
	}
}

func TestHostileTrees(t *testing.T) {
	sum := encode32()
	file := func(path, more string) []byte {
		p, _ := json.Marshal([]byte(path))
		return record(fmt.Sprintf(`{"path":%s,"type":"file","sha256":%q%s}`, p, sum, more))
	}
	for name, tree := range map[string][]byte{
		"parent of the workspace":   file("../x", ""),
		"absolute path":             file("/etc/passwd", ""),
		"NUL in a path":             file("a\x00b", ""),
		"empty element":             file("a//b", ""),
		"long element":              file(string(bytes.Repeat([]byte("x"), 300)), ""),
		"unknown type":              record(`{"path":"YQ==","type":"device"}`),
		"negative size":             file("a", `,"size":-1`),
		"file without digest":       record(`{"path":"YQ==","type":"file"}`),
		"directory with content":    record(`{"path":"YQ==","type":"dir","content":true}`),
		"link without target":       record(`{"path":"YQ==","type":"symlink"}`),
		"impossible mode":           file("a", `,"mode":4294967295`),
		"entry of no bytes":         {0, 0, 0, 0},
		"entry beyond the bound":    {0xff, 0xff, 0xff, 0xff},
		"entry cut short":           record(`{"path":"YQ=="`)[:8],
		"content cut short":         append(file("a", `,"size":100,"content":true`), "short"...),
		"content beyond the bound":  file("a", `,"size":2000000,"content":true`),
		"more entries than allowed": bytes.Repeat(file("a", ""), 11),
	} {
		t.Run(name, func(t *testing.T) {
			c := MustHostile(t, func(_ string, ch uint32) []byte {
				b := rawFrame(fData, sContent, ch, at(0, string(tree)))
				b = append(b, rawFrame(fEnd, sContent, ch, at(uint64(len(tree)), ""))...)
				return append(b, rawFrame(fReply, 0, ch, []byte(`{"token":"t"}`))...)
			})
			_, err := c.Scan(t.Context(), guestwire.ScanRequest{MaxEntries: 10, MaxBytes: 1 << 20}, discard{})
			if !workbench.HasCode(err, workbench.CodeGuestProtocol) {
				t.Errorf("%v, want guest_protocol", err)
			}
		})
	}
}

func encode32() string { return "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=" }

type discard struct{}

func (discard) Entry(guestwire.Entry, io.Reader) error { return nil }

func TestErrorsOfAGuestAreCleaned(t *testing.T) {
	c := MustHostile(t, func(_ string, ch uint32) []byte {
		return rawFrame(fFail, 0, ch, []byte(`{"code":"made_up","detail":"a\u001b[31mred\u0007","hint":"`+string(bytes.Repeat([]byte("h"), 100_000))+`"}`))
	})
	_, err := c.Stats(t.Context())
	e := workbench.AsError(err)
	if e.Code != workbench.CodeGuestProtocol || e.Detail != "a�[31mred�" || len(e.Hint) > 2000 {
		t.Errorf("%q %q %d", e.Code, e.Detail, len(e.Hint))
	}
}

// FuzzHost feeds a client what a hostile guest says after a proper handshake.
func FuzzHost(f *testing.F) {
	f.Add(rawFrame(fEvent, 0, 1, []byte(`"started"`)))
	f.Add(append(rawFrame(fEvent, 0, 1, []byte(`"started"`)), rawFrame(fData, sStdout, 1, at(0, "hello"))...))
	f.Add(rawFrame(fReply, 0, 1, []byte(`{"token":"t","skipped":[{"path":"YQ==","why":"x"}]}`)))
	f.Add(rawFrame(fOpen, 0, 2, []byte(`{"op":"call","body":{"exec":"e1","op":"save","args":{},"size":5}}`)))
	f.Add(append(rawFrame(fData, sContent, 3, at(0, string(record(`{"path":"YQ==","type":"dir"}`)))), rawFrame(fEnd, sContent, 3, at(34, ""))...))
	f.Fuzz(func(t *testing.T, said []byte) {
		host, guest := net.Pipe()
		var peer sync.WaitGroup
		peer.Go(func() {
			buf := make([]byte, 1<<16)
			n := 0
			var m [][]byte
			for m == nil {
				k, err := guest.Read(buf[n:])
				if err != nil {
					return
				}
				n += k
				m = noncePattern.FindSubmatch(buf[:n])
			}
			peer.Go(func() { _, _ = io.Copy(io.Discard, guest) })
			_, _ = guest.Write(append([]byte("\xffWORKBENCH-WIRE\n"), rawFrame(fHello, 0, 0, fmt.Appendf(nil, `{"version":1,"nonce":%q}`, m[1]))...))
			_, _ = guest.Write(said)
			guest.Close()
		})
		c, err := guestwire.Dial(t.Context(), host, guestwire.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		h := newRecorder()
		h.onCall = func(_ ctxt, c guestwire.BrokerCall) (json.RawMessage, error) {
			if c.Content != nil {
				_, _ = io.Copy(io.Discard, c.Content)
			}
			return nil, nil
		}
		if e, err := c.Exec(t.Context(), request("e1"), h); err == nil {
			_, _ = e.Wait(t.Context())
		}
		_, _ = c.Scan(t.Context(), guestwire.ScanRequest{}, discard{})
		runtime.ReadMemStats(&after)
		if grown := after.TotalAlloc - before.TotalAlloc; grown > 16<<20+64*uint64(len(said)) {
			t.Errorf("%d bytes allocated for %d", grown, len(said))
		}
		c.Close()
		guest.Close()
		peer.Wait()
	})
}

// FuzzGuest feeds a server what a host says.
func FuzzGuest(f *testing.F) {
	hello := append([]byte("\xffWORKBENCH-WIRE\n"), rawFrame(fHello, 0, 0, []byte(`{"version":1,"nonce":"`+hex.EncodeToString(make([]byte, 4))+`"}`))...)
	bind := rawFrame(fOpen, 0, 1, []byte(`{"op":"bind","body":{"sessionNonce":"n","seed":"AAAAAAAAAAAAAAAAAAAAAA==","limits":{"memoryBytes":1,"workspaceBytes":1,"workspaceInodes":1,"scratchBytes":1,"tasks":1,"openFiles":1,"cpus":1}}}`))
	f.Add(append(bytes.Clone(bind), rawFrame(fOpen, 0, 3, []byte(`{"op":"exec","body":{"id":"e","group":"g","language":"python","source":"eA==","outputBytes":5}}`))...))
	f.Add(append(rawFrame(fOpen, 0, 1, []byte(`{"op":"write","body":{}}`)), rawFrame(fData, sContent, 1, at(0, string(record(`{"path":"YQ==","type":"dir"}`))))...))
	f.Add(append([]byte("garbage"), hello...))
	f.Fuzz(func(t *testing.T, said []byte) {
		host, guest := net.Pipe()
		s := guestwire.NewServer(&scriptedGuest{cancels: make(chan string, 64), program: func(_ ctxt, r guestwire.ExecRequest, x *guestwire.Running) guestwire.ExecResult {
			_, _ = x.Stdout.Write(r.Source)
			return guestwire.ExecResult{}
		}}, "boot", "test", nil)
		var serving sync.WaitGroup
		serving.Go(func() { _ = s.Serve(guest); guest.Close() })
		serving.Go(func() { _, _ = io.Copy(io.Discard, host) })
		_, _ = host.Write(hello)
		_, _ = host.Write(said)
		host.Close()
		serving.Wait()
		s.Close()
	})
}
