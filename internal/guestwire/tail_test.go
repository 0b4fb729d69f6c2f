package guestwire_test

import (
	"testing"

	"github.com/workbenchdev/workbench/internal/guestwire"
)

// A host may forget an exec while its acknowledgement of the last bytes is
// still under way. That is no violation, and must not cost the connection.
func TestAcknowledgementOfAForgottenExec(t *testing.T) {
	tail := guestwire.NewTail(1 << 20)
	if _, err := tail.Write([]byte("0123456789")); err != nil {
		t.Fatal(err)
	}
	if err := guestwire.Acknowledge(tail, 10, 4); err != nil {
		t.Fatalf("of what is kept: %v", err)
	}
	if err := guestwire.Acknowledge(tail, 10, 11); err == nil {
		t.Error("more than was sent was acknowledged")
	}
	tail.Drop()
	if err := guestwire.Acknowledge(tail, 10, 10); err != nil {
		t.Errorf("of what was sent, when it was forgotten: %v", err)
	}
	if err := guestwire.Acknowledge(tail, 10, 11); err == nil {
		t.Error("more than was sent was acknowledged, when it was forgotten")
	}
}
