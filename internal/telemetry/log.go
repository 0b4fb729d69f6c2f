// Package telemetry is how operators see the server: structured logs that hold
// no secret, and metrics that name nobody.
//
// It decides form and redaction; what is worth a line or a count is decided
// where it happens. Traces are not built yet.
package telemetry

import (
	"io"
	"log/slog"
	"regexp"
	"strings"
)

// LogFormat is how log lines are written.
type LogFormat string

// The formats.
const (
	LogText LogFormat = "text"
	LogJSON LogFormat = "json"
)

// NewLogger writes lines of the level and above to w. As a last guard it
// redacts what must never be logged: attributes by name, and keys and passwords
// inside any text.
func NewLogger(w io.Writer, format LogFormat, level slog.Level) *slog.Logger {
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: redact}
	if format == LogJSON {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

const redacted = "[redacted]"

// secretNames are attributes that hold what users and operators entrust.
var secretNames = map[string]bool{
	"authorization": true, "secret": true, "token": true, "password": true, "bearer": true, "apikey": true,
	"stdin": true, "env": true, "body": true, "source": true, "dsn": true, "masterkey": true,
}

var (
	keyText      = regexp.MustCompile(`wbk_[a-z]_[0-9a-z]{8,}`)
	passwordText = regexp.MustCompile(`(://[^:/?#@\s]*:)[^@/\s]+@`)
)

func redact(_ []string, a slog.Attr) slog.Attr {
	if secretNames[strings.ToLower(a.Key)] {
		return slog.String(a.Key, redacted)
	}
	switch a.Value.Kind() {
	case slog.KindString:
		return slog.String(a.Key, Redact(a.Value.String()))
	case slog.KindAny:
		switch v := a.Value.Any().(type) {
		case error:
			return slog.String(a.Key, Redact(v.Error()))
		case []byte:
			return slog.String(a.Key, redacted)
		case interface{ String() string }:
			return slog.String(a.Key, Redact(v.String()))
		}
	default:
	}
	return a
}

// Redact takes API keys and the passwords of URLs out of a text.
func Redact(s string) string {
	if strings.Contains(s, "wbk_") {
		s = keyText.ReplaceAllString(s, "wbk_"+redacted)
	}
	if strings.Contains(s, "://") {
		s = passwordText.ReplaceAllString(s, "${1}"+redacted+"@")
	}
	return s
}
