package redact_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"testing"
	"unicode/utf16"

	"go.uber.org/goleak"

	"github.com/workbenchdev/workbench/internal/redact"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// canary has what encoders treat each in their own way.
const canary = `Canary+7/"q<&>'é=\k z%41`

func escapeAll(s, format string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, format, s[i])
	}
	return b.String()
}

func escapeRunes(s, format string) string {
	var b strings.Builder
	for _, r := range s {
		fmt.Fprintf(&b, format, r)
	}
	return b.String()
}

func escapeUnits(s, format string) string {
	var b strings.Builder
	for _, u := range utf16.Encode([]rune(s)) {
		fmt.Fprintf(&b, format, u)
	}
	return b.String()
}

func mustJSON(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// forms is a secret as common encoders write it.
func forms(t testing.TB, s string) map[string]string {
	quoted := strings.Trim(mustJSON(t, s), `"`)
	return map[string]string{
		"raw":                       s,
		"base64":                    base64.StdEncoding.EncodeToString([]byte(s)),
		"base64, unpadded":          base64.RawStdEncoding.EncodeToString([]byte(s)),
		"base64, for URLs":          base64.URLEncoding.EncodeToString([]byte(s)),
		"base64, for URLs unpadded": base64.RawURLEncoding.EncodeToString([]byte(s)),
		"base64 of user:secret":     base64.StdEncoding.EncodeToString([]byte("user:" + s)),
		"base64, second place":      base64.StdEncoding.EncodeToString([]byte("a" + s + "bcd")),
		"base64, third place":       base64.RawURLEncoding.EncodeToString([]byte("ab" + s + "b")),
		"base64, fourth place":      base64.StdEncoding.EncodeToString([]byte("abc" + s + "bc")),
		"base64, in lines":          inLines(base64.StdEncoding.EncodeToString([]byte("From: "+s+" and so on")), 10),
		"base64, percent-encoded":   url.QueryEscape(base64.StdEncoding.EncodeToString([]byte("ab" + s))),
		"hex":                       hex.EncodeToString([]byte(s)),
		"hex, upper case":           strings.ToUpper(hex.EncodeToString([]byte(s))),
		"hex, within a longer one":  "f" + hex.EncodeToString([]byte("x"+s+"y")),
		"query":                     url.QueryEscape(s),
		"path":                      url.PathEscape(s),
		"percent, all":              escapeAll(s, "%%%02X"),
		"percent, all, lower case":  escapeAll(s, "%%%02x"),
		"percent, twice":            url.QueryEscape(url.QueryEscape(s)),
		"JSON":                      quoted,
		"JSON, no HTML escapes":     strings.Trim(strings.TrimSpace(plainJSON(t, s)), `"`),
		"JSON, slashes escaped":     strings.ReplaceAll(quoted, "/", `\/`),
		"JSON in JSON":              strings.Trim(mustJSON(t, quoted), `"`),
		"unicode escapes":           escapeUnits(s, `\u%04x`),
		"unicode escapes, upper":    escapeUnits(s, `\u%04X`),
		"unicode escapes, braces":   escapeRunes(s, `\u{%x}`),
		"unicode escapes, long":     escapeRunes(s, `\U%08x`),
		"byte escapes":              escapeAll(s, `\x%02x`),
		"HTML":                      html.EscapeString(s),
		"HTML, all":                 escapeRunes(s, "&#%d;"),
		"HTML, all hex":             escapeRunes(s, "&#x%X;"),
		"HTML of JSON":              html.EscapeString(quoted),
		"Go":                        strings.Trim(fmt.Sprintf("%+q", s), `"`),
	}
}

func plainJSON(t testing.TB, s string) string {
	t.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func inLines(s string, n int) string {
	var b strings.Builder
	for len(s) > n {
		b.WriteString(s[:n] + "\r\n")
		s = s[n:]
	}
	return b.String() + s
}

func TestASecretIsFoundInEveryForm(t *testing.T) {
	for _, secret := range []string{canary, "plain-token_0123456789", "12345678", "ab+d", "päss wörd😀", strings.Repeat("aaaa", 8)} {
		r := redact.New("another secret", secret)
		for name, form := range forms(t, secret) {
			for _, around := range [][2]string{{"", ""}, {"it is <", ">, so there"}, {"Authorization: Basic ", "\r\n"}, {"?a=1&token=", "&b=2"}} {
				text := around[0] + form + around[1]
				got := r.String(text)
				if want := around[0] + redact.Placeholder + around[1]; got != want && !coversMore(name, around, got) {
					t.Errorf("%s of %q in %q: got %q", name, secret, text, got)
				}
			}
		}
	}
}

// coversMore allows what stands beside the secret in the same encoded text to
// be kept, and a padding sign.
func coversMore(name string, around [2]string, got string) bool {
	if !strings.Contains(name, "base64") && !strings.Contains(name, "longer") {
		return false
	}
	return strings.HasPrefix(got, around[0]) && strings.HasSuffix(got, around[1]) && strings.Count(got, redact.Placeholder) == 1
}

func TestWhatIsLeftOfBase64HoldsNoBitOfTheSecret(t *testing.T) {
	const secret = "s3cr3t-value!"
	r := redact.New(secret)
	for _, before := range []string{"", "u", "us", "use", "user"} {
		for _, after := range []string{"", "1", "12", "123"} {
			one := r.String(base64.StdEncoding.EncodeToString([]byte(before + secret + after)))
			left := strings.Split(one, redact.Placeholder)
			if len(left) != 2 {
				t.Fatalf("%q + secret + %q: %q", before, after, one)
			}
			// The digits that are left are those of the neighbours alone.
			whole := base64.StdEncoding.EncodeToString([]byte(before + secret + after))
			bitsBefore, bitsAfter := 8*len(before), 8*len(after)
			if 6*len(left[0]) > bitsBefore || 6*len(strings.TrimRight(left[1], "=")) > bitsAfter+5 {
				t.Errorf("%q + secret + %q: of %q is left %q", before, after, whole, left)
			}
		}
	}
}

func TestWhatHoldsNoSecretIsKeptToTheByte(t *testing.T) {
	r := redact.New(canary, "tokentokentoken")
	for _, text := range []string{
		"", "tokentokentoke", "tokentokentok entoken", "Canary", "%", "%4", "\\", "\\u", "\\u12", "&", "&#", "&amp", "&unknown;", "=====", "\xff\xfe",
		base64.StdEncoding.EncodeToString([]byte("tokentokentoke")), strings.Repeat("token", 2), "\\ud83d", "\\ud83d\\u0041", "\\u{", "\\u{1234567}", "a\n\n\n\nb",
	} {
		if got := r.String(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestSecretsThatOverlapOrTouch(t *testing.T) {
	for _, c := range []struct {
		secrets    []string
		text, want string
	}{
		{[]string{"abcdef", "defghi"}, "-abcdefghi-", "-[redacted]-"},
		{[]string{"abcd", "abcdefgh"}, "-abcdefgh-abcdefg-", "-[redacted]-[redacted]efg-"},
		{[]string{"cdef", "abcdefgh"}, "-abcdefgh-bcdefg-", "-[redacted]-b[redacted]g-"},
		{[]string{"abcd"}, "abcdabcd", "[redacted]"},
		{[]string{"aaaa"}, "aaaaaaaaa b", "[redacted] b"},
		{[]string{"abcd"}, "abcd abcd", "[redacted] [redacted]"},
		{[]string{"  abcd\n"}, "abcd", "[redacted]"},
		{[]string{"abc", "", "   "}, "abc   ", "abc   "},
		{[]string{"abab", "babc"}, "ababc", "[redacted]"},
	} {
		if got := redact.New(c.secrets...).String(c.text); got != c.want {
			t.Errorf("%q in %q: got %q, want %q", c.secrets, c.text, got, c.want)
		}
	}
}

func TestASecretSplitOverWrites(t *testing.T) {
	r := redact.New(canary, "aaaaaaaa")
	for name, form := range forms(t, canary) {
		text := "before " + form + " after " + strings.Repeat("a", 20)
		want := r.String(text)
		for cut := range len(text) + 1 {
			if got := throughWriter(t, r, text[:cut], text[cut:]); got != want {
				t.Fatalf("%s, cut at %d: got %q, want %q", name, cut, got, want)
			}
		}
		if got := throughWriter(t, r, strings.Split(text, "")...); got != want {
			t.Errorf("%s, byte by byte: got %q, want %q", name, got, want)
		}
	}
}

func throughWriter(t testing.TB, r *redact.Redactor, parts ...string) string {
	t.Helper()
	var b strings.Builder
	w := r.Writer(&b)
	for _, p := range parts {
		if n, err := io.WriteString(w, p); n != len(p) || err != nil {
			t.Fatalf("writing: %d, %v", n, err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestAWriterHoldsBackNoMoreThanMayBeASecret(t *testing.T) {
	var b strings.Builder
	w := redact.New("secret-secret").Writer(&b)
	for _, c := range []struct{ write, seen string }{
		{"all is well.\n", "all is well.\n"},
		{"secret-", "all is well.\n"},
		{"no. ", "all is well.\nsecret-no. "},
		{"secret-secret;", "all is well.\nsecret-no. [redacted];"},
	} {
		if _, err := io.WriteString(w, c.write); err != nil {
			t.Fatal(err)
		}
		if b.String() != c.seen {
			t.Errorf("after %q: %q, want %q", c.write, b.String(), c.seen)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, "more"); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("writing after Close: %v", err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrNoProgress }

func TestAWriterReportsWhatItsTargetSays(t *testing.T) {
	w := redact.New("secret").Writer(failing{})
	if _, err := io.WriteString(w, "well. then. "); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("got %v", err)
	}
}

func TestJSON(t *testing.T) {
	r := redact.New(canary, "31415926", `a\nb`)
	for _, c := range []struct{ in, want string }{
		{` { "n" : 1.50e+3 , "big":12345678901234567890123, "s":"a\/b\u00e9" } `, ` { "n" : 1.50e+3 , "big":12345678901234567890123, "s":"a\/b\u00e9" } `},
		{`{"a":` + mustJSON(t, canary) + `,"b":1.0}`, `{"a":"[redacted]","b":1.0}`},
		{`{` + mustJSON(t, "x "+canary) + `:[null,true]}`, `{"x [redacted]":[null,true]}`},
		{`[` + mustJSON(t, "<"+base64.StdEncoding.EncodeToString([]byte(canary))+">") + `]`, `["<[redacted]>"]`},
		{`"` + escapeUnits(canary, `\u%04x`) + `"`, `"[redacted]"`},
		{`[31415926, -31415926.5, 3141592]`, `["[redacted]", "[redacted]", 3141592]`},
		{`"x a\nb x"`, `"[redacted]"`},
		{`""`, `""`},
		{`0`, `0`},
	} {
		got, err := r.JSON(json.RawMessage(c.in))
		if err != nil {
			t.Fatalf("%s: %v", c.in, err)
		}
		if !json.Valid(got) {
			t.Errorf("%s became %s, which is not JSON", c.in, got)
		}
		if strings.Contains(c.want, "<") { // padding is left
			got = bytes.ReplaceAll(got, []byte("="), nil)
		}
		if string(got) != c.want {
			t.Errorf("%s became %s, want %s", c.in, got, c.want)
		}
	}
	for _, in := range []string{"", "{", "nope", `"a`, "1 2"} {
		if _, err := r.JSON(json.RawMessage(in)); err == nil {
			t.Errorf("%q was taken for JSON", in)
		}
	}
}

func TestNothingToLookFor(t *testing.T) {
	var none *redact.Redactor
	for _, r := range []*redact.Redactor{none, redact.New(), redact.New("abc")} {
		if r.String("abc") != "abc" || string(r.Bytes([]byte("abc"))) != "abc" || r.Error(nil) != nil || throughWriter(t, r, "a", "bc") != "abc" {
			t.Error("something was changed")
		}
		if got, err := r.JSON(json.RawMessage(`{"a":1}`)); err != nil || string(got) != `{"a":1}` {
			t.Errorf("JSON: %s, %v", got, err)
		}
	}
}

func TestAnErrorKeepsNothingInside(t *testing.T) {
	inner := errors.New("it said token12345")
	got := redact.New("token12345").Error(fmt.Errorf("asking: %w", inner))
	if got.Error() != "asking: it said [redacted]" || errors.Is(got, inner) {
		t.Errorf("got %v", got)
	}
}

func TestALongTextIsScannedInTime(t *testing.T) {
	secret := "tok_" + strings.Repeat("abcdefghij", 150)
	r := redact.New(secret)
	text := bytes.Repeat([]byte(secret[:len(secret)-1]+"%20\\u0041&amp;"), 1500)
	text = append(text, secret...)
	if got := r.Bytes(text); !bytes.HasSuffix(got, []byte("[redacted]")) || bytes.Count(got, []byte("[redacted]")) != 1 {
		t.Error("the one secret was not found")
	}
}

func TestConcurrentUse(t *testing.T) {
	r := redact.New(canary)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if r.String("x "+canary+" y") != "x [redacted] y" {
					t.Error("not redacted")
				}
			}
		})
	}
	wg.Wait()
}

// FuzzNoFormIsLeft tries secrets, in every form, within and beside other text,
// cut anywhere.
func FuzzNoFormIsLeft(f *testing.F) {
	f.Add("hunter22", "some text", "more", uint64(3))
	f.Add("a%2Fb\\u0041", "%2", "\\", uint64(9))
	f.Add("aaaa", "aa", "a", uint64(1))
	f.Add("  x&amp;y", "&am", "p;", uint64(77))
	f.Add("é\xff\x00\n", "\xc3", "==", uint64(5))
	f.Fuzz(func(t *testing.T, secret, before, after string, seed uint64) {
		// The ends keep a secret from being made of the placeholder.
		secret = "K" + secret + "Z"
		if len(secret) < redact.MinLength || len(secret) > 200 || strings.Contains(secret, "redact") || len(before)+len(after) > 1000 {
			return
		}
		r := redact.New(secret)
		for name, form := range forms(t, strings.ToValidUTF8(secret, "?")) {
			if strings.ToValidUTF8(secret, "?") != secret && name != "raw" {
				continue
			}
			text := before + form + after
			if name == "raw" {
				text = before + secret + after
			}
			got := r.String(text)
			if strings.Contains(got, secret) || name != "raw" && strings.Contains(got, form) {
				t.Errorf("%s of %q is left of %q: %q", name, secret, text, got)
			}
			rnd := rand.New(rand.NewPCG(seed, 1))
			var parts []string
			for rest := text; rest != ""; {
				n := 1 + rnd.IntN(len(rest))
				parts, rest = append(parts, rest[:n]), rest[n:]
			}
			if streamed := throughWriter(t, r, parts...); streamed != got {
				t.Errorf("%s of %q: in parts %q, whole %q", name, secret, streamed, got)
			}
			quoted, err := json.Marshal(map[string]any{text: []string{text}})
			if err != nil {
				t.Fatal(err)
			}
			clean, err := r.JSON(quoted)
			if err != nil || !json.Valid(clean) {
				t.Fatalf("JSON: %s, %v", clean, err)
			}
		}
		if plain := strings.NewReplacer("K", "", "k", "").Replace(before); !strings.ContainsAny(plain, `%\&`) && len(plain) < 4 {
			if got := r.String(plain); got != plain {
				t.Errorf("%q became %q", plain, got)
			}
		}
	})
}
