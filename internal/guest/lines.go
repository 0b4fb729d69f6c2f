package guest

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
)

// onTheirLines puts the lines of a translation where those are that they come from,
// by empty lines before them, so that a trace of the translation names the lines of
// the program. Where the translation is longer, what follows shares lines until it
// is where it belongs again; columns are the translation's. A line is moved only if
// a token of the program begins it: text in a template may go on there.
func onTheirLines(code, sourceMap []byte) ([]byte, error) {
	var m struct {
		Mappings string `json:"mappings"`
	}
	if err := json.Unmarshal(sourceMap, &m); err != nil {
		return nil, err
	}
	origins, err := parseMappings(m.Mappings)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	at, before := 0, []byte(nil) // where the last line was put, and that line
	for i, line := range bytes.Split(bytes.TrimSuffix(code, []byte("\n")), []byte("\n")) {
		from := -1
		if i < len(origins) {
			indent := len(line) - len(bytes.TrimLeft(line, " "))
			for _, o := range origins[i] {
				if o.column == indent {
					from = o.line
				}
			}
		}
		switch {
		case i == 0:
			out.Write(bytes.Repeat([]byte("\n"), max(0, from)))
			at = max(0, from)
		case from > at:
			out.Write(bytes.Repeat([]byte("\n"), from-at))
			at = from
		case from >= 0 && from <= at && endsStatement(before):
			out.WriteByte(' ')
		default:
			out.WriteByte('\n')
			at++
		}
		out.Write(line)
		before = line
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// endsStatement reports whether the next line may as well follow on the same.
func endsStatement(line []byte) bool {
	line = bytes.TrimRight(line, " ")
	return len(line) > 0 && strings.IndexByte(";{}", line[len(line)-1]) >= 0 && !bytes.Contains(line, []byte("//"))
}

// origin is where a token of the program came to be, and on which line it was; both
// from 0.
type origin struct{ column, line int }

// parseMappings reads the mappings of a source map (ECMA-426): lines are separated
// by semicolons, tokens by commas; a token is the difference to the one before it
// of its column in the line, its source, its line and its column there, each as
// base 64 digits of five bits, the lowest first, with the sign in the first.
func parseMappings(s string) ([][]origin, error) {
	var lines [][]origin
	from := 0
	for text := range strings.SplitSeq(s, ";") {
		var line []origin
		column := 0
		for token := range strings.SplitSeq(text, ",") {
			if token == "" {
				continue
			}
			fields, err := vlq(token)
			if err != nil {
				return nil, err
			}
			column += fields[0]
			if len(fields) < 4 {
				continue
			}
			from += fields[2]
			// A line without a token at its beginning repeats the last one there.
			if column > 0 || fields[2] != 0 || fields[3] != 0 || len(lines) == 0 {
				line = append(line, origin{column, from})
			}
		}
		lines = append(lines, line)
	}
	return lines, nil
}

const base64Digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

func vlq(s string) ([]int, error) {
	var out []int
	value, shift := 0, 0
	for i := range len(s) {
		d := strings.IndexByte(base64Digits, s[i])
		if d < 0 || shift > 30 {
			return nil, errors.New("the source map is malformed")
		}
		value |= d & 31 << shift
		if shift += 5; d&32 != 0 {
			continue
		}
		if value&1 != 0 {
			value = -(value >> 1)
		} else {
			value >>= 1
		}
		out = append(out, value)
		value, shift = 0, 0
	}
	if len(out) == 0 || shift > 0 {
		return nil, errors.New("the source map is malformed")
	}
	return out, nil
}
