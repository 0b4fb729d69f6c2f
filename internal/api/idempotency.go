package api

import (
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/workbenchdev/workbench"
)

const idempotencyHeader = "Idempotency-Key"

// idempotencyKey is the key of a submission: from the body, the header, or
// both if they are the same; empty for none. Codes: invalid_request,
// idempotency_key_mismatch.
func idempotencyKey(h http.Header, inBody string) (string, error) {
	if inBody != "" {
		if why := badKey(inBody); why != "" {
			return "", invalid("idempotencyKey", "idempotencyKey %s", why).WithHint("send 1 to 255 printable characters, such as a UUID")
		}
	}
	sent := h.Values(idempotencyHeader)
	if len(sent) == 0 {
		return inBody, nil
	}
	if len(sent) > 1 {
		return "", invalid(idempotencyHeader, "the header %s is sent more than once", idempotencyHeader).WithHint("send it once")
	}
	key, err := ParseIdempotencyKey(sent[0])
	if err != nil {
		return "", err
	}
	if inBody != "" && inBody != key {
		return "", workbench.E(workbench.CodeIdempotencyHeader, "idempotencyKey and the header %s differ", idempotencyHeader).
			WithField("idempotencyKey").WithHint("send the key in one of the two places, or the same in both")
	}
	return key, nil
}

// ParseIdempotencyKey reads the value of an Idempotency-Key header: a quoted
// string as structured fields write it (RFC 8941: backslash escapes " and \),
// or the bare key. The key is 1 to 255 bytes of printable ASCII.
func ParseIdempotencyKey(value string) (string, error) {
	bad := func(why string) error {
		return invalid(idempotencyHeader, "the header %s %s", idempotencyHeader, why).
			WithHint(`send the key bare, or quoted as in "my-key"`)
	}
	value = strings.Trim(value, " \t")
	key := value
	if strings.HasPrefix(value, `"`) {
		var ok bool
		if key, ok = unquote(value); !ok {
			return "", bad("is not a well-formed quoted string")
		}
	}
	if why := badKey(key); why != "" {
		return "", bad(why)
	}
	if strings.ContainsFunc(key, func(r rune) bool { return r > 0x7e }) {
		return "", bad("holds characters outside ASCII; send such a key in the body")
	}
	return key, nil
}

// unquote reads one structured-field string that fills value.
func unquote(value string) (string, bool) {
	var key strings.Builder
	rest := value[1:]
	for i := 0; i < len(rest); i++ {
		switch c := rest[i]; c {
		case '"':
			return key.String(), i == len(rest)-1
		case '\\':
			i++
			if i == len(rest) || rest[i] != '"' && rest[i] != '\\' {
				return "", false
			}
			key.WriteByte(rest[i])
		default:
			key.WriteByte(c)
		}
	}
	return "", false
}

// badKey says what is wrong with a key, "" if nothing is.
func badKey(key string) string {
	switch {
	case key == "":
		return "is empty"
	case len(key) > workbench.MaxIdempotencyKeyBytes:
		return "is longer than 255 bytes"
	case !utf8.ValidString(key):
		return "is not valid UTF-8"
	case strings.ContainsFunc(key, func(r rune) bool { return r < 0x20 || r >= 0x7f && r < 0xa0 }):
		return "has a control character"
	}
	return ""
}
