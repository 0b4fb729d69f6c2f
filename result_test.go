package workbench_test

import (
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
)

// TestHeadline: an error in a line, whatever its interpreter says.
func TestHeadline(t *testing.T) {
	for _, tc := range []struct{ name, value, want string }{
		{"ValueError", "bad", "ValueError: bad"},
		{"ValueError", "bad\nand more", "ValueError: bad"},
		{"KeyboardInterrupt", "", "KeyboardInterrupt"},
		{"AssertionError", "\nx", "AssertionError"},
		{"E", strings.Repeat("é", 200), "E: " + strings.Repeat("é", 98) + "…"},
		{strings.Repeat("N", 300), "x", strings.Repeat("N", 200) + "…"},
	} {
		if got := (workbench.CellError{Name: tc.name, Value: tc.value}).Headline(); got != tc.want {
			t.Errorf("%s, %q: %q, want %q", tc.name, tc.value, got, tc.want)
		}
	}
}
