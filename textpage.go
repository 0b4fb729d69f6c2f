package workbench

import (
	"strings"
	"unicode/utf8"
)

// Text of program output is UTF-8 by the rule of package unicode/utf8: a valid
// sequence is one character, and each byte that belongs to none is a character
// of its own and shows as one U+FFFD. Offsets count raw bytes.

// TextOf is b as text.
func TextOf(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var s strings.Builder
	s.Grow(len(b) + 16)
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		s.WriteRune(r)
		b = b[size:]
	}
	return s.String()
}

// InsideCharacter reports whether the boundary between before and after lies
// inside a character. Three bytes on either side are enough to tell. A
// character that could still be completed counts as one unless final says that
// nothing follows after.
func InsideCharacter(before, after []byte, final bool) bool {
	for back := 1; back <= 3 && back <= len(before); back++ {
		tail := before[len(before)-back:]
		if !utf8.RuneStart(tail[0]) {
			continue
		}
		window := append(append(make([]byte, 0, 8), tail...), after[:min(len(after), 4)]...)
		if !utf8.FullRune(window) {
			return !final
		}
		_, size := utf8.DecodeRune(window)
		return size > back
	}
	return false
}

// CutText returns how many of the first bytes of b, at most limit, make a page
// that ends between characters. It is never 0 for a non-empty b with a whole
// character in it: one that is longer than limit is taken whole. final says
// that nothing will follow b; otherwise an incomplete character at the end of
// b is left for later.
func CutText(b []byte, limit int, final bool) int {
	n := min(limit, len(b))
	if n == len(b) {
		if final {
			return n
		}
		return n - incompleteTail(b)
	}
	// A cut inside b: move back to the start of the character that straddles n.
	for back := 1; back <= 3 && back <= n; back++ {
		start := n - back
		if !utf8.RuneStart(b[start]) {
			continue
		}
		if _, size := utf8.DecodeRune(b[start:]); size > back {
			if start > 0 {
				return start
			}
			return size
		}
		return n
	}
	return n
}

// incompleteTail counts the last bytes of b that begin a character and need
// more bytes to be one.
func incompleteTail(b []byte) int {
	for back := 1; back <= 3 && back <= len(b); back++ {
		tail := b[len(b)-back:]
		if utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return back
		}
	}
	return 0
}
