// Package terminal makes text that came out of a sandbox (output, file names,
// messages) fit to be shown on a person's terminal: nothing in it can move the
// cursor, set a title, write to the clipboard, hide or reorder other text.
// Nothing is removed: what is not shown as itself is shown as an escape.
package terminal

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line makes s fit for one field of a table: one line, no tabs.
func Line(s string) string {
	if plain(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		appendRune(&b, r, s[i:i+size])
		i += size
	}
	return b.String()
}

// plain reports whether s is printable ASCII.
func plain(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// appendRune writes a character, or its escape if a terminal would act on it.
func appendRune(b *strings.Builder, r rune, raw string) {
	switch {
	case r == utf8.RuneError && len(raw) == 1:
		fmt.Fprintf(b, `\x%02x`, raw[0])
	case r == '\n':
		b.WriteString(`\n`)
	case r == '\t':
		b.WriteString(`\t`)
	case r == '\r':
		b.WriteString(`\r`)
	case r < 0x20 || r == 0x7f:
		fmt.Fprintf(b, `\x%02x`, r)
	case hostile(r):
		if r > 0xffff {
			fmt.Fprintf(b, `\U%08x`, r)
		} else {
			fmt.Fprintf(b, `\u%04x`, r)
		}
	default:
		b.WriteString(raw)
	}
}

// hostile reports whether r, above ASCII, is a control character or changes
// how the text around it shows: C1 controls, the marks that reorder or hide
// (bidirectional overrides, tags, zero-width space, byte order mark), and the
// separators that break a line.
func hostile(r rune) bool {
	switch {
	case r >= 0x80 && r < 0xa0: // C1: U+009B is a CSI of one character
		return true
	case r == 0x2028 || r == 0x2029:
		return true
	case r == 0x200d || r == 0x200c: // joiners are part of emoji and of Persian and Indic words
		return false
	}
	return unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Co, r)
}

// Text is Line for several lines: line ends and tabs stay.
func Text(s string) string {
	var b strings.Builder
	w := NewWriter(&b)
	_, _ = io.WriteString(w, s) // a strings.Builder takes everything
	_ = w.Close()
	return b.String()
}

// JSON makes marshalled JSON fit to be shown without changing its meaning:
// what a terminal would act on can only be inside strings, where \u writes it.
func JSON(raw []byte) []byte {
	if plain(string(raw)) {
		return raw
	}
	var b strings.Builder
	for i := 0; i < len(raw); {
		r, size := utf8.DecodeRune(raw[i:])
		switch {
		case r == 0x7f || hostile(r) && r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		case hostile(r):
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			b.Write(raw[i : i+size])
		}
		i += size
	}
	return []byte(b.String())
}

// Writer makes a stream fit to be shown. Characters may be split between
// writes. A carriage return begins a new line instead of overwriting the one
// before it. Close writes what an incomplete last character holds; it does not
// close the destination.
type Writer struct {
	to   io.Writer
	held []byte // an incomplete character, at most 3 bytes
	cr   bool   // the last character was a carriage return, already written as a line end
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{to: w} }

// Write takes all of p or fails as the destination does.
func (w *Writer) Write(p []byte) (int, error) {
	all := append(w.held, p...)
	w.held = nil
	var b strings.Builder
	for len(all) > 0 {
		if !utf8.FullRune(all) {
			w.held = append([]byte(nil), all...)
			break
		}
		r, size := utf8.DecodeRune(all)
		w.put(&b, r, string(all[:size]))
		all = all[size:]
	}
	if _, err := io.WriteString(w.to, b.String()); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (w *Writer) put(b *strings.Builder, r rune, raw string) {
	after := w.cr
	w.cr = r == '\r'
	switch {
	case r == '\n' && after: // the second half of CR LF
	case r == '\n' || r == '\r':
		b.WriteByte('\n')
	case r == '\t':
		b.WriteByte('\t')
	default:
		appendRune(b, r, raw)
	}
}

// Close writes what is held back.
func (w *Writer) Close() error {
	var b strings.Builder
	for _, c := range w.held {
		fmt.Fprintf(&b, `\x%02x`, c)
	}
	w.held = nil
	_, err := io.WriteString(w.to, b.String())
	return err
}
