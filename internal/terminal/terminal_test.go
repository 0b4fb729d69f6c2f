package terminal_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/workbenchdev/workbench/internal/terminal"
)

func TestLine(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"plain text stays", "report.csv", "report.csv"},
		{"other scripts stay", "résumé 報告 añ☕", "résumé 報告 añ☕"},
		{"joined emoji stays", "👩‍💻", "👩‍💻"},
		{"colour is shown", "\x1b[31mred\x1b[0m", `\x1b[31mred\x1b[0m`},
		{"window title is shown", "\x1b]0;owned\x07", `\x1b]0;owned\x07`},
		{"one-character CSI is shown", "\u009b2J", `\u009b2J`},
		{"right-to-left override is shown", "gpj.\u202eexe", `gpj.\u202eexe`},
		{"tag characters are shown", "a\U000e0041", `a\U000e0041`},
		{"a table field has one line", "a\tb\nc\r", `a\tb\nc\r`},
		{"backspace and delete are shown", "abc\b\x7f", `abc\x08\x7f`},
		{"bytes that are no text are shown", "ok\xff\x9b", `ok\xff\x9b`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := terminal.Line(tc.in); got != tc.want {
				t.Errorf("Line(%q) = %q, want %q", tc.in, got, tc.want)
			}
		})
	}
}

func TestTextKeepsLinesAndNeverOverwrites(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"lines and tabs stay", "a\n\n\tb\n", "a\n\n\tb\n"},
		{"CR LF is one line end", "a\r\nb", "a\nb"},
		{"a lone CR begins a new line", "secret\rpublic", "secret\npublic"},
		{"CR CR LF", "a\r\r\nb", "a\n\nb"},
		{"an incomplete last character", "a\xe6\xbc", `a\xe6\xbc`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := terminal.Text(tc.in); got != tc.want {
				t.Errorf("Text(%q) = %q, want %q", tc.in, got, tc.want)
			}
		})
	}
}

func TestJSONMeansTheSame(t *testing.T) {
	in := map[string]string{"name": "a\u202eb\u009bc\x7fd\U000e0041\x1b]0;x\x07 報告"}
	raw, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	shown := terminal.JSON(raw)
	if want := `{"name":"a\u202eb\u009bc\u007fd\udb40\udc41\u001b]0;x\u0007 報告"}`; string(shown) != want {
		t.Errorf("JSON = %s, want %s", shown, want)
	}
	var back map[string]string
	if err := json.Unmarshal(shown, &back); err != nil || back["name"] != in["name"] {
		t.Errorf("read back %q (%v), want %q", back["name"], err, in["name"])
	}
}

func FuzzWriter(f *testing.F) {
	f.Add([]byte("\x1b]52;c;aGk=\x07\u009b31m\r\n漢\xff\u202e"), uint8(3))
	f.Add([]byte("a\r"), uint8(1))
	f.Fuzz(func(t *testing.T, in []byte, cut uint8) {
		var whole, pieces bytes.Buffer
		w := terminal.NewWriter(&whole)
		if n, err := w.Write(in); n != len(in) || err != nil {
			t.Fatalf("Write = %d, %v", n, err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		p := terminal.NewWriter(&pieces)
		for rest := in; len(rest) > 0; {
			n := min(len(rest), int(cut%7)+1)
			if _, err := p.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(whole.Bytes(), pieces.Bytes()) {
			t.Fatalf("split differently it shows differently: %q, %q", whole.Bytes(), pieces.Bytes())
		}
		mustBeHarmless(t, whole.String(), "\n\t")
		mustBeHarmless(t, terminal.Line(string(in)), "")
	})
}

func mustBeHarmless(t *testing.T, s, allowed string) {
	t.Helper()
	if !utf8.ValidString(s) {
		t.Fatalf("not UTF-8: %q", s)
	}
	for _, r := range s {
		control := r < 0x20 || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0xfeff || r == 0x2028 || r == 0x2029
		if control && !strings.ContainsRune(allowed, r) {
			t.Fatalf("a terminal would act on U+%04X in %q", r, s)
		}
	}
}
