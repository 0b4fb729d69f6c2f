package identity

import (
	"strings"
	"unicode/utf8"

	"github.com/workbenchdev/workbench"
)

// The headers by which an embedded key's client names for whom it acts.
const (
	TenantHeader  = "Workbench-Tenant"
	EndUserHeader = "Workbench-End-User"
	GroupHeader   = "Workbench-Group"
)

// header is one identity header; an empty value means it was not sent.
type header struct{ name, value string }

func (h header) check() error {
	if err := checkName(h.value); err != "" && h.value != "" {
		return workbench.E(workbench.CodeInvalidRequest, "the header %s %s", h.name, err).WithField(h.name).
			WithHint("names are opaque text of 1 to %d bytes, UTF-8, without control characters", workbench.MaxIdentityBytes)
	}
	return nil
}

// checkName says what is wrong with an opaque name, "" if nothing is.
func checkName(name string) string {
	switch {
	case name == "":
		return "is empty"
	case len(name) > workbench.MaxIdentityBytes:
		return "is longer than 128 bytes"
	case !utf8.ValidString(name):
		return "is not valid UTF-8"
	case strings.ContainsFunc(name, func(r rune) bool { return r < 0x20 || r >= 0x7f && r < 0xa0 }):
		return "has a control character"
	}
	return ""
}
