package redact

import (
	"bytes"
	"cmp"
	"math"
	"slices"
)

// maxDepth is how many layers of escapes are taken off, as with JSON inside JSON
// or a URL inside HTML.
const maxDepth = 2

// chunk bounds what is looked at at once, and with it the memory of a scan.
const chunk = 8 * 1024

// span is a part of the source: [start, end), counted from its beginning.
type span struct{ start, end int }

// scanner finds secrets in a source that comes in pieces and writes to out what
// can no longer be part of one.
//
// It looks at views of the source: the text itself, and what it stands for if it
// is escaped, in each syntax and each sequence of two. Syntaxes are not mixed in
// one view: a secret may look like an escape of another.
type scanner struct {
	words *automaton
	root  view
	found []span // secrets, where the source has them; not yet written in full
	done  int    // the source up to here is written
	open  bool   // what was written last is a placeholder, for a secret that ends at done
	any   bool   // a placeholder was written
	out   []byte
}

func newScanner(words *automaton) *scanner { return &scanner{words: words} }

// reset makes the scanner ready for another source.
func (s *scanner) reset() {
	*s = scanner{root: view{text: s.root.text[:0]}, found: s.found[:0], out: s.out[:0]}
}

// all scans one whole source. changed says whether it held a secret.
func (s *scanner) all(b []byte) (out []byte, changed bool) {
	for len(b) > chunk {
		s.feed(b[:chunk], false)
		b = b[chunk:]
	}
	s.feed(b, true)
	return s.out, s.any
}

// feed takes a piece of the source. After the final one everything is in out.
func (s *scanner) feed(p []byte, final bool) {
	s.root.text = append(s.root.text, p...)
	s.look(&s.root, final)
	safe := s.root.end()
	if !final {
		safe = min(safe, s.held(&s.root))
	}
	s.write(safe)
	s.drop(&s.root)
}

// look goes on through what is new in a view and those made of it.
func (s *scanner) look(v *view, final bool) {
	s.match(v)
	for syntax, c := range v.inner {
		if c != nil {
			decode(v, c, introducers[syntax], final)
			s.look(c, final)
		}
	}
}

// decode goes on with the view c of what v stands for.
func decode(v, c *view, introducer byte, final bool) {
	var buf [longestEntity]byte
	text, at := c.text, c.at
	defer func() { c.text, c.at = text, at }()
	for c.taken < v.end() {
		rest := v.text[c.taken-v.base:]
		plain := bytes.IndexByte(rest, introducer)
		if plain < 0 {
			plain = len(rest)
		}
		text = append(text, rest[:plain]...)
		if v.depth == 0 {
			for i := range plain {
				at = append(at, c.taken+i)
			}
		} else {
			at = append(at, v.at[c.taken-v.base:c.taken-v.base+plain]...)
		}
		if c.taken += plain; plain == len(rest) {
			return
		}
		out, n := unescape(buf[:0], rest[plain:], final)
		if n == 0 {
			return
		}
		where := v.start(c.taken)
		text = append(text, out...)
		for range out {
			at = append(at, where)
		}
		c.taken += n
	}
}

// match goes on through what is new in a view, as text and, but for the
// innermost ones, as hex and base64.
func (s *scanner) match(v *view) {
	for end := v.end(); v.matched < end; v.matched++ {
		b := v.text[v.matched-v.base]
		if v.depth < maxDepth {
			if b == '%' || b == '\\' || b == '&' {
				if syntax := bytes.IndexByte(introducers, b); v.inner[syntax] == nil {
					v.inner[syntax] = v.fork()
				}
			}
		}
		v.plain = s.words.step(v.plain, b)
		if n := s.words.ends(v.plain); n > 0 {
			s.find(v, v.matched-n+1)
		}
		if v.depth == maxDepth {
			continue
		}
		if d := hexDigit(b); d >= 0 {
			s.matchHex(v, d)
		} else if v.hexRun > 0 {
			v.hexRun, v.hex = 0, [2]int32{}
		}
		if d := base64Digit(b); d >= 0 {
			s.matchBase64(v, d)
		} else if v.runDigits > 0 && (b != '\r' && b != '\n' || v.matched-v.lastIndex > 2) {
			v.runDigits, v.base64 = 0, [4]phase{}
		}
	}
}

func (s *scanner) matchHex(v *view, digit int) {
	if v.hexRun > 0 {
		state := &v.hex[v.hexRun&1]
		*state = s.words.step(*state, byte(v.hexLast<<4|digit))
		if n := s.words.ends(*state); n > 0 {
			s.find(v, v.matched-2*n+1)
		}
	}
	v.hexLast = digit
	v.hexRun++
}

func (s *scanner) matchBase64(v *view, digit int) {
	if v.runDigits > 0 {
		for i := range v.base64 {
			p := &v.base64[i]
			var b byte
			place := (v.runDigits - i) & 3 // of the digit in its group of four
			switch place {
			case 0:
				continue // no byte ends with it
			case 1:
				b = byte(v.lastDigit<<2 | digit>>4)
			case 2:
				b = byte(v.lastDigit<<4 | digit>>2)
			case 3:
				b = byte(v.lastDigit<<6 | digit)
			}
			p.state, p.last, p.place = s.words.step(p.state, b), v.matched, place
			if n := s.words.ends(p.state); n > 0 {
				s.find(v, v.backDigits(p.last, digitsOf(n, place)))
			}
		}
	}
	v.lastDigit, v.lastIndex = digit, v.matched
	v.runDigits++
}

// find notes a secret in a view's text, from first to where it is matched.
func (s *scanner) find(v *view, first int) {
	s.found = append(s.found, span{v.start(first), v.stop(v.matched)})
}

// held is where, in the source, begins what a view and those made of it cannot
// let go yet; math.MaxInt if they can let go all.
func (s *scanner) held(v *view) int {
	at := math.MaxInt
	if index := s.needed(v); index < v.end() {
		at = v.start(index)
	}
	for _, c := range v.inner {
		if c != nil {
			at = min(at, s.held(c))
		}
	}
	return at
}

// needed is the first byte of a view's text that is still looked at: where the
// longest beginning of a secret begins that the text may end with, and what the
// views made of it have not decoded.
func (s *scanner) needed(v *view) int {
	index := s.partial(v)
	for _, c := range v.inner {
		if c != nil {
			index = min(index, c.taken)
		}
	}
	return index
}

func (s *scanner) partial(v *view) int {
	depth := func(state int32) int { return int(s.words.nodes[state].depth) }
	index := v.matched - depth(v.plain)
	if v.hexRun > 0 {
		index = min(index, v.matched-1) // the last digit may begin a byte
		for i, state := range v.hex {
			if d := depth(state); d > 0 {
				end := v.matched // of the phase's last pair
				if v.hexRun&1 == i {
					end-- // its next pair has one digit so far
				}
				index = min(index, end-2*d)
			}
		}
	}
	if v.runDigits > 0 {
		index = min(index, v.lastIndex)
		for i := range v.base64 {
			if p := &v.base64[i]; depth(p.state) > 0 {
				index = min(index, v.backDigits(p.last, digitsOf(depth(p.state), p.place)))
			}
		}
	}
	return index
}

// drop forgets what is not looked at any more.
func (s *scanner) drop(v *view) {
	index := s.needed(v)
	if v.depth == 0 {
		index = min(index, s.done)
	}
	v.drop(index)
	for _, c := range v.inner {
		if c != nil {
			s.drop(c)
		}
	}
}

// write writes the source up to safe; no secret that is found later begins
// before that.
func (s *scanner) write(safe int) {
	slices.SortFunc(s.found, func(a, b span) int { return cmp.Or(a.start-b.start, a.end-b.end) })
	v := &s.root
	rest := s.found[:0]
	for _, f := range s.found {
		switch {
		case f.start >= safe:
			rest = append(rest, f)
			continue
		case f.end <= s.done:
			continue
		case f.start > s.done:
			s.out = append(s.out, v.text[s.done-v.base:f.start-v.base]...)
			s.out = append(s.out, Placeholder...)
		case !s.open:
			s.out = append(s.out, Placeholder...)
		}
		s.any, s.open = true, true
		s.done = min(f.end, safe)
		if f.end > safe {
			rest = append(rest, span{safe, f.end})
		}
	}
	s.found = rest
	if s.done < safe {
		s.out = append(s.out, v.text[s.done-v.base:safe-v.base]...)
		s.done, s.open = safe, false
	}
}

// view is one way to read the source, from base on, and how far it was looked at.
type view struct {
	depth   int // layers of escapes that were taken off
	base    int // index of text[0]
	text    []byte
	at      []int    // where, in the source, begins what each byte came from; at depth 0 that is its index
	matched int      // secrets were looked for up to here
	outer   *view    // that this one is made of
	taken   int      // index, in outer, of what was not decoded yet
	inner   [3]*view // what it stands for, by the syntaxes of introducers; nil as long as there is no escape in it

	plain int32 // of the text as it is

	hex     [2]int32 // of the bytes that pairs of digits are: pairs from odd and from even places of the run
	hexRun  int      // digits in a row so far
	hexLast int

	base64    [4]phase // of the bytes that groups of four digits are, one for each way to group them
	runDigits int      // digits so far, lines broken or not
	lastDigit int
	lastIndex int
}

func (v *view) end() int { return v.base + len(v.text) }

// start is where, in the source, begins what a byte of the text came from.
func (v *view) start(index int) int {
	switch {
	case v.depth == 0:
		return index
	case index == v.end():
		return v.outer.start(v.taken)
	}
	return v.at[index-v.base]
}

// stop is where that ends.
func (v *view) stop(index int) int {
	if v.depth == 0 {
		return index + 1
	}
	begin := v.start(index)
	for index++; index < v.end() && v.start(index) == begin; {
		index++ // of the same escape
	}
	return v.start(index)
}

// fork makes a view of what the text stands for from where it is matched on.
// Before that there was no escape: the two are the same.
func (v *view) fork() *view {
	c := *v
	c.depth, c.outer, c.taken, c.inner = v.depth+1, v, v.matched, [3]*view{}
	c.text = slices.Clone(v.text[:v.matched-v.base])
	c.at = make([]int, len(c.text))
	for i := range c.at {
		c.at[i] = v.start(v.base + i)
	}
	return &c
}

// phase is one way to group base64 digits.
type phase struct {
	state int32
	last  int // index of the digit that the last byte ended with
	place int // of that digit in its group
}

// digitsOf is how many base64 digits have a bit of the n bytes that end with
// the digit at a place, 1 to 3, of its group.
func digitsOf(n, place int) int {
	first := place - n // of the first byte, counted in bytes of the last group
	group := first / 3
	if first%3 < 0 {
		group--
	}
	return place - (4*group + first - 3*group) + 1
}

// backDigits is the index of the n-th base64 digit back from the one at index.
func (v *view) backDigits(index, n int) int {
	for i := index - v.base; ; i-- {
		if base64Digit(v.text[i]) >= 0 {
			if n--; n == 0 {
				return i + v.base
			}
		}
	}
}

// drop forgets the text before index.
func (v *view) drop(index int) {
	n := index - v.base
	if n <= 0 {
		return
	}
	v.text = v.text[:copy(v.text, v.text[n:])]
	if v.at != nil {
		v.at = v.at[:copy(v.at, v.at[n:])]
	}
	v.base = index
}
