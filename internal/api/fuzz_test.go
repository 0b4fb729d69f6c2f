package api_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/api"
)

// FuzzIdempotencyKey: whatever comes, a key is a bounded printable text, and
// quoting it as the standard says gives the same key again.
func FuzzIdempotencyKey(f *testing.F) {
	for _, seed := range []string{`abc`, `"abc"`, `"a\"b\\c"`, `"`, `""`, `"a"b`, ` x `, "\x7f", `"é"`, strings.Repeat("k", 256)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		key, err := api.ParseIdempotencyKey(value)
		if err != nil {
			if e := workbench.AsError(err); e.Code != workbench.CodeInvalidRequest || e.Field != "Idempotency-Key" {
				t.Fatalf("%q: %v", value, err)
			}
			return
		}
		if key == "" || len(key) > 255 || strings.ContainsFunc(key, func(r rune) bool { return r < 0x20 || r > 0x7e }) {
			t.Fatalf("%q is taken as %q", value, key)
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		if again, err := api.ParseIdempotencyKey(quoted); err != nil || again != key {
			t.Fatalf("%q is taken as %q, quoted as %q (err %v)", value, key, again, err)
		}
	})
}

func TestIdempotencyKeyForms(t *testing.T) {
	for value, want := range map[string]string{
		`abc`: `abc`, `"abc"`: `abc`, `  abc `: `abc`, `"a b"`: `a b`, `"a\"b"`: `a"b`, `"a\\b"`: `a\b`, `a"b`: `a"b`,
		strings.Repeat("k", 255): strings.Repeat("k", 255), `8e03978e-40d5-43e8-bc93-6894a57f9324`: `8e03978e-40d5-43e8-bc93-6894a57f9324`,
	} {
		if got, err := api.ParseIdempotencyKey(value); err != nil || got != want {
			t.Errorf("%q is taken as %q (err %v), want %q", value, got, err, want)
		}
	}
	for _, value := range []string{``, ` `, `""`, `"`, `"a`, `"a"b"`, `"a\n"`, `"a\`, `"a";x=1`, "a\tb", "é", strings.Repeat("k", 256)} {
		if got, err := api.ParseIdempotencyKey(value); err == nil {
			t.Errorf("%q is taken as %q", value, got)
		}
	}
}

// FuzzStreamText: however a stream is cut into entries, the chunks join to its
// bytes, no chunk of valid text is cut inside a character, and a stream taken
// up in the middle gives the same chunks.
func FuzzStreamText(f *testing.F) {
	f.Add([]byte("añ☕漢🙂"), uint64(0x5555))
	f.Add([]byte("ok\xff\xfeend\xe2\x98"), uint64(0xffff))
	f.Add([]byte("\xf0\x9f\x99\xed\xa0\x80\xc0\x80"), uint64(0xaaaa))
	f.Fuzz(func(t *testing.T, data []byte, cuts uint64) {
		if len(data) > 64 {
			data = data[:64]
		}
		var entries [][]byte
		from := 0
		for i := range data {
			if cuts&(1<<i) != 0 {
				entries = append(entries, data[from:i+1])
				from = i + 1
			}
		}
		entries = append(entries, data[from:])
		whole := api.ChunksOf(entries, 0)
		var joined []byte
		text := ""
		for i, c := range whole {
			if c.Offset != int64(len(joined)) || c.Length != int64(len(api.RawOf(c))) {
				t.Fatalf("chunk %d says offset %d length %d at %d: %+v", i, c.Offset, c.Length, len(joined), c)
			}
			joined = append(joined, api.RawOf(c)...)
			text += c.Text
			if utf8.Valid(data) && c.Base64 != "" {
				t.Fatalf("valid text has a chunk that is not: %+v", c)
			}
		}
		if string(joined) != string(data) || text != workbench.TextOf(data) {
			t.Fatalf("%q comes out as %q, text %q", data, joined, text)
		}
		for skip := 1; skip < len(entries); skip++ {
			resumed := api.ChunksOf(entries, skip)
			if len(resumed) != len(whole)-skip {
				t.Fatalf("resumed behind %d: %d chunks, want %d", skip, len(resumed), len(whole)-skip)
			}
			for i := range resumed {
				if resumed[i] != whole[skip+i] {
					t.Fatalf("resumed behind %d: chunk %d is %+v, want %+v", skip, i, resumed[i], whole[skip+i])
				}
			}
		}
	})
}

// FuzzBody: what the strict parser takes is one object that encoding/json reads
// the same way, and what it refuses has a code and repeats nothing.
func FuzzBody(f *testing.F) {
	for _, seed := range []string{`{}`, `{"a":[1,{"b":null}],"c":"\u00e9"}`, `{"a":1,"a":2}`, `[1]`, `{"a":1} x`, `{"a":`, `{"a":"\ud800"}`, strings.Repeat(`{"a":`, 40), "{\"a\":\"\xff\"}", `{"":0}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := api.ParseStrict(raw)
		if err != nil {
			if e := workbench.AsError(err); e.Code != workbench.CodeInvalidRequest || !utf8.ValidString(e.Detail+e.Field) {
				t.Fatalf("%q: %v", raw, err)
			}
			return
		}
		var want any
		if err := json.Unmarshal(raw, &want); err != nil {
			t.Fatalf("%q is taken, and is not JSON: %v", raw, err)
		}
		if _, ok := got.(map[string]any); !ok || !reflect.DeepEqual(got, want) {
			t.Fatalf("%q is read as %v, want %v", raw, got, want)
		}
	})
}

// FuzzViolation: whatever is sent, the answer names a field that can be shown,
// says what is wrong and what to do, and repeats no text that was sent.
func FuzzViolation(f *testing.F) {
	for _, seed := range []string{
		`{"language":"ruby","code":7}`, `{"artifactIds":[{"id":1,"a.b[0]":2}]}`, `{"env":{"a.b[":1,"":2,".":3}}`, `{"":1,".":2,"[":3,"[0]":4,"a]":5}`,
		`{"language":null,"args":[[]],"keep":{"0":1},"timeoutMs":1e300,"afterExecution":[1.5]}`, `{"code":"CANARY","language":"CANARY","stdin":["CANARY"]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		tree, err := api.ParseStrict(raw)
		if err != nil {
			return
		}
		err = api.Violation(tree)
		if err == nil {
			return
		}
		e := workbench.AsError(err)
		if e.Detail == "" || e.Hint == "" || !utf8.ValidString(e.Detail+e.Field+e.Hint) || e.Code == workbench.CodeInternal {
			t.Fatalf("%s: %+v", raw, e)
		}
		if strings.Contains(e.Detail+e.Hint, "CANARY") && !strings.Contains(e.Field, "CANARY") {
			t.Fatalf("%s: a value is repeated: %+v", raw, e)
		}
	})
}
