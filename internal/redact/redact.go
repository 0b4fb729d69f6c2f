// Package redact takes secrets out of text. Its one job is that no secret it
// was given leaves in what it has seen: raw, in base64 (either alphabet, with
// or without padding, at any place of a longer text), in hexadecimal,
// percent-encoded, escaped as in JSON, HTML or source code, and in two layers
// of such escapes.
//
// It knows nothing of where secrets come from and guesses none: what was not
// given to New is not looked for. It does not find a secret that was encrypted,
// compressed, or cut into parts with something between them.
package redact

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"unicode/utf8"
)

// Placeholder stands where a secret was.
const Placeholder = "[redacted]"

// MinLength is the length, in bytes, below which a secret is not looked for:
// the text of the world is full of three letters in a row.
const MinLength = 4

// Redactor takes a fixed set of secrets out of text. It never changes and is
// safe for concurrent use. A nil Redactor changes nothing.
type Redactor struct{ words *automaton }

// New makes a redactor of the secrets. Those shorter than MinLength, not
// counting space around them, are left out. Where two secrets overlap, what
// both cover is taken out.
func New(secrets ...string) *Redactor {
	var words []string
	for _, s := range secrets {
		trimmed := strings.TrimSpace(s)
		if len(trimmed) < MinLength {
			continue
		}
		words = append(words, trimmed) // also finds s: what is around it is space
	}
	if len(words) == 0 {
		return &Redactor{}
	}
	return &Redactor{words: newAutomaton(words)}
}

func (r *Redactor) none() bool { return r == nil || r.words == nil }

// Bytes returns b without the secrets; b itself if there are none in it.
func (r *Redactor) Bytes(b []byte) []byte {
	if r.none() {
		return b
	}
	s := scanners.Get().(*scanner)
	s.words = r.words
	out, changed := s.all(b)
	if changed {
		b = bytes.Clone(out)
	}
	if cap(out) <= maxPooled {
		s.reset()
		scanners.Put(s)
	}
	return b
}

// String is Bytes of a string.
func (r *Redactor) String(s string) string {
	if r.none() || s == "" {
		return s
	}
	b := []byte(s)
	if clean := r.Bytes(b); &clean[0] != &b[0] {
		return string(clean)
	}
	return s
}

// scanners are kept for the many short texts of a JSON value.
var scanners = sync.Pool{New: func() any { return newScanner(nil) }}

// maxPooled bounds, in bytes, what a kept scanner holds.
const maxPooled = 64 * 1024

// Error returns an error with err's text without the secrets. It wraps nothing,
// so that nothing can be taken out of it. nil stays nil.
func (r *Redactor) Error(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(r.String(err.Error()))
}

// errNotJSON does not repeat what was not JSON.
var errNotJSON = errors.New("redact: not valid JSON")

// JSON returns a JSON value without the secrets: they are looked for in its
// strings and keys, as they read when decoded, and in the digits of its
// numbers. The result is valid JSON; what holds no secret is kept to the byte.
// A number that holds one becomes the placeholder as a string.
func (r *Redactor) JSON(raw json.RawMessage) (json.RawMessage, error) {
	if !json.Valid(raw) {
		return nil, errNotJSON
	}
	if r.none() {
		return raw, nil
	}
	var out []byte // nil while nothing was changed
	kept := 0      // raw up to here is in out
	replace := func(from, to int, with []byte) {
		out = append(append(out, raw[kept:from]...), with...)
		kept = to
	}
	for i := 0; i < len(raw); {
		end := tokenEnd(raw, i)
		switch c := raw[i]; {
		case c == '"':
			if with, changed := r.jsonString(raw[i:end]); changed {
				replace(i, end, with)
			}
		case c == '-' || c >= '0' && c <= '9':
			if with := r.Bytes(raw[i:end]); !bytes.Equal(with, raw[i:end]) {
				replace(i, end, []byte(`"`+Placeholder+`"`))
			}
		}
		i = end
	}
	if kept == 0 {
		return raw, nil
	}
	return append(out, raw[kept:]...), nil
}

// tokenEnd is the end of the string or number of valid JSON that begins at i,
// else of the one byte there.
func tokenEnd(raw []byte, i int) int {
	switch c := raw[i]; {
	case c == '"':
		for j := i + 1; ; j++ {
			switch raw[j] {
			case '\\':
				j++
			case '"':
				return j + 1
			}
		}
	case c == '-' || c >= '0' && c <= '9':
		j := i + 1
		for j < len(raw) && strings.IndexByte("0123456789+-.eE", raw[j]) >= 0 {
			j++
		}
		return j
	}
	return i + 1
}

// jsonString redacts one string of valid JSON, quotes included.
func (r *Redactor) jsonString(quoted []byte) ([]byte, bool) {
	var text string
	if json.Unmarshal(quoted, &text) != nil {
		return []byte(`"` + Placeholder + `"`), true
	}
	if clean := r.String(text); clean != text {
		return encodeString(clean), true
	}
	// What decoding took away: bytes that are not UTF-8, and a secret that looks
	// like an escape.
	inner := quoted[1 : len(quoted)-1]
	if (!utf8.Valid(inner) || bytes.IndexByte(inner, '\\') >= 0) && !bytes.Equal(r.Bytes(inner), inner) {
		return []byte(`"` + Placeholder + `"`), true
	}
	return quoted, false
}

func encodeString(s string) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(s) != nil {
		return []byte(`"` + Placeholder + `"`)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// Writer returns a writer that passes on to w what is written to it, without
// the secrets, however they are split over writes. It holds back only what may
// be the beginning of a secret, which Close writes. Close does not close w. It
// is not safe for concurrent use.
func (r *Redactor) Writer(w io.Writer) io.WriteCloser {
	if r.none() {
		return &writer{to: w}
	}
	return &writer{to: w, scan: newScanner(r.words)}
}

type writer struct {
	to     io.Writer
	scan   *scanner // nil: there is nothing to look for
	closed bool
}

func (w *writer) Write(p []byte) (int, error) {
	if w.closed {
		return 0, io.ErrClosedPipe
	}
	if w.scan == nil {
		return w.to.Write(p)
	}
	written := 0
	for len(p) > 0 {
		n := min(len(p), chunk)
		w.scan.feed(p[:n], false)
		if err := w.flush(); err != nil {
			return written, err
		}
		written, p = written+n, p[n:]
	}
	return written, nil
}

func (w *writer) Close() error {
	if w.closed {
		return nil
	}
	w.closed = true
	if w.scan == nil {
		return nil
	}
	w.scan.feed(nil, true)
	return w.flush()
}

func (w *writer) flush() error {
	out := w.scan.out
	w.scan.out = out[:0]
	if len(out) == 0 {
		return nil
	}
	n, err := w.to.Write(out)
	if err == nil && n < len(out) {
		err = io.ErrShortWrite
	}
	return err
}
