package redact

import (
	"html"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// introducers begin the escapes of URLs, of JSON and source code, and of HTML.
var introducers = []byte{'%', '\\', '&'}

// longestEntity bounds an HTML entity, & and ; included.
const longestEntity = 34

// unescape decodes what t, which begins with an introducer, begins with: an
// escape as in URLs (%41, %u0041), JSON and source code (\u0041, \u{41},
// \U00000041, \x41, \n, \/) or HTML (&amp;, &#65;, &#x41;), or else one byte. It
// returns what that stands for, appended to out, and how many bytes of t it
// takes; 0 if more text than t is needed to tell, which is never so if t is
// final.
func unescape(out, t []byte, final bool) ([]byte, int) {
	switch t[0] {
	case '%':
		return unescapePercent(out, t, final)
	case '\\':
		return unescapeBackslash(out, t, final)
	default:
		return unescapeEntity(out, t, final)
	}
}

func unescapePercent(out, t []byte, final bool) ([]byte, int) {
	if len(t) > 1 && t[1] == 'u' {
		return unescapeUnit(out, t, final)
	}
	switch v, ok := hexAt(t, 1, 2); {
	case ok:
		return append(out, byte(v)), 3
	case !final && mayBeHex(t, 1, 2):
		return out, 0
	}
	return append(out, '%'), 1
}

// unescapeUnit decodes \uXXXX or %uXXXX, or two of them that are one character.
func unescapeUnit(out, t []byte, final bool) ([]byte, int) {
	v, ok := hexAt(t, 2, 4)
	if !ok {
		if !final && mayBeHex(t, 2, 4) {
			return out, 0
		}
		return append(out, t[0]), 1
	}
	r := rune(v)
	if utf16.IsSurrogate(r) {
		if low, ok := hexAt(t, 8, 4); ok && t[6] == t[0] && t[7] == 'u' {
			if pair := utf16.DecodeRune(r, rune(low)); pair != utf8.RuneError {
				return utf8.AppendRune(out, pair), 12
			}
		} else if !final && len(t) < 12 && (len(t) < 7 || t[6] == t[0]) && (len(t) < 8 || t[7] == 'u') {
			return out, 0
		}
	}
	return utf8.AppendRune(out, r), 6
}

var controls = map[byte]byte{'n': '\n', 't': '\t', 'r': '\r', 'b': '\b', 'f': '\f', 'v': '\v', 'a': '\a', '0': 0}

func unescapeBackslash(out, t []byte, final bool) ([]byte, int) {
	if len(t) == 1 {
		if !final {
			return out, 0
		}
		return append(out, '\\'), 1
	}
	switch c := t[1]; {
	case c == 'u' && len(t) > 2 && t[2] == '{':
		return unescapeBraces(out, t, final)
	case c == 'u':
		return unescapeUnit(out, t, final)
	case c == 'U' || c == 'x':
		digits := 8
		if c == 'x' {
			digits = 2
		}
		v, ok := hexAt(t, 2, digits)
		switch {
		case ok && c == 'x':
			return append(out, byte(v)), 4
		case ok:
			return utf8.AppendRune(out, rune(v)), 10
		case !final && mayBeHex(t, 2, digits):
			return out, 0
		}
		return append(out, '\\'), 1
	case c < 0x80 && !alnum(c):
		return append(out, c), 2
	default:
		if v, ok := controls[c]; ok {
			return append(out, v), 2
		}
		return append(out, '\\'), 1
	}
}

// unescapeBraces decodes \u{X} of one to six digits.
func unescapeBraces(out, t []byte, final bool) ([]byte, int) {
	digits := 0
	for digits < 6 && 3+digits < len(t) && hexDigit(t[3+digits]) >= 0 {
		digits++
	}
	if 3+digits == len(t) && !final {
		return out, 0
	}
	if v, ok := hexAt(t, 3, digits); ok && digits > 0 && 3+digits < len(t) && t[3+digits] == '}' {
		return utf8.AppendRune(out, rune(v)), 4 + digits
	}
	return append(out, '\\'), 1
}

func unescapeEntity(out, t []byte, final bool) ([]byte, int) {
	for i := 1; i < min(len(t), longestEntity); i++ {
		if c := t[i]; c == ';' && i > 1 {
			entity := string(t[:i+1])
			if r, ok := numbered(entity[1:i]); ok {
				return utf8.AppendRune(out, r), i + 1
			}
			if text := html.UnescapeString(entity); text != entity {
				return append(out, text...), i + 1
			}
			return append(out, '&'), 1
		} else if !alnum(c) && (c != '#' || i > 1) {
			return append(out, '&'), 1
		}
	}
	if !final && len(t) < longestEntity {
		return out, 0
	}
	return append(out, '&'), 1
}

// numbered is the character of an entity by number: #65 or #x41.
func numbered(s string) (rune, bool) {
	digits, ok := strings.CutPrefix(s, "#")
	base := 10
	if hex := strings.TrimLeft(digits, "xX"); len(hex) == len(digits)-1 {
		digits, base = hex, 16
	}
	v, err := strconv.ParseUint(digits, base, 32)
	return rune(v), ok && err == nil && v <= utf8.MaxRune
}

func alnum(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// hexAt reads n hexadecimal digits of t from i on.
func hexAt(t []byte, i, n int) (uint32, bool) {
	if len(t) < i+n {
		return 0, false
	}
	v := uint32(0)
	for _, c := range t[i : i+n] {
		d := hexDigit(c)
		if d < 0 {
			return 0, false
		}
		v = v<<4 | uint32(d)
	}
	return v, true
}

// mayBeHex reports whether t ends within n hexadecimal digits that begin at i.
func mayBeHex(t []byte, i, n int) bool {
	if len(t) >= i+n {
		return false
	}
	for j := i; j < len(t); j++ {
		if hexDigit(t[j]) < 0 {
			return false
		}
	}
	return true
}

func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// base64Digit is the value of a digit in either alphabet of base64.
func base64Digit(c byte) int {
	switch {
	case c >= 'A' && c <= 'Z':
		return int(c - 'A')
	case c >= 'a' && c <= 'z':
		return int(c-'a') + 26
	case c >= '0' && c <= '9':
		return int(c-'0') + 52
	case c == '+' || c == '-':
		return 62
	case c == '/' || c == '_':
		return 63
	}
	return -1
}
