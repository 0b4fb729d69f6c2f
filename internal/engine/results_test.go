package engine_test

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/workbenchdev/workbench/internal/engine"
)

// What code shows is hostile: each form is read for what its type says it is,
// or not at all.
func TestForms(t *testing.T) {
	for _, c := range []struct{ name, mimeType, sent, value, content string }{
		{"text", "text/plain", `"añ☕漢\n"`, `"añ☕漢\n"`, "añ☕漢\n"},
		{"markup is not escaped", "text/html", `"<b>&\u003c/b>"`, `"<b>&</b>"`, "<b>&</b>"},
		{"half a surrogate pair", "text/plain", `"\ud83d!"`, "\"\uFFFD!\"", "\uFFFD!"},
		{"SVG is text", "image/svg+xml", `"<svg/>"`, `"<svg/>"`, "<svg/>"},
		{"an image", "image/png", `"iVBORw0KGgo="`, `"iVBORw0KGgo="`, "\x89PNG\r\n\x1a\n"},
		{"base64 in lines", "image/png", `"iVBO\nRw0K\r\nGgo=\n"`, `"iVBORw0KGgo="`, "\x89PNG\r\n\x1a\n"},
		{"JSON in a string", "application/json", `"{\"a\": 1}"`, `{"a":1}`, `{"a":1}`},
		{"JSON itself", "application/vnd.vega.v5+json", `{"a": [1, 2]}`, `{"a":[1,2]}`, `{"a":[1,2]}`},
	} {
		value, content, ok := engine.FormOf(c.mimeType, json.RawMessage(c.sent))
		if !ok || value != c.value || content != c.content {
			t.Errorf("%s: %q %q %v, want %q %q", c.name, value, content, ok, c.value, c.content)
		}
	}
	for name, c := range map[string]struct{ mimeType, sent string }{
		"no MIME type":               {"plain", `"x"`},
		"a MIME type with a newline": {"text/plain\n", `"x"`},
		"a header in a MIME type":    {"text/html\r\nSet-Cookie: a=b", `"x"`},
		"parameters":                 {"text/plain; charset=utf-7", `"x"`},
		"an image that is no base64": {"image/png", `"<script>"`},
		"an image that is a list":    {"image/png", `[137, 80]`},
		"text that is an object":     {"text/plain", `{"a": 1}`},
		"text that is null":          {"text/plain", `null`},
		"JSON that is none":          {"application/json", `"{a: 1}"`},
		"nothing":                    {"text/plain", ``},
	} {
		if value, content, ok := engine.FormOf(c.mimeType, json.RawMessage(c.sent)); ok {
			t.Errorf("%s is taken as %q, %q", name, value, content)
		}
	}
}

func FuzzForms(f *testing.F) {
	f.Add("text/plain", []byte(`"x"`))
	f.Add("image/png", []byte(`"iVBORw0KGgo="`))
	f.Add("application/json", []byte(`"[1]"`))
	f.Add("application/json", []byte(`"\"text\""`))
	f.Fuzz(func(t *testing.T, mimeType string, sent []byte) {
		value, content, ok := engine.FormOf(mimeType, sent)
		if !ok {
			return
		}
		if !json.Valid([]byte(value)) || !utf8.ValidString(value) {
			t.Fatalf("%q of %q is no JSON: %q", sent, mimeType, value)
		}
		if again, err := engine.ContentOf(mimeType, value); err != nil || again != content {
			t.Fatalf("%q of %q is %q, which reads as %q (%v)", sent, mimeType, value, again, err)
		}
	})
}
