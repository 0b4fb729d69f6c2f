// Package sandboxtest is the suite that every sandbox driver must pass, and
// what tests need to start real sandboxes: runtimes, an image, the guest.
//
// The suite starts sandboxes, speaks the guest protocol to them, and looks at
// both sides: what code inside sees, and what of it shows on the host. It
// knows no driver.
package sandboxtest

import (
	"testing"
	"time"

	"github.com/workbenchdev/workbench/internal/sandbox"
)

// Suite is one driver's answers to what the suite needs.
type Suite struct {
	// Open opens the driver for an instance. The suite closes it.
	Open func(instance string) (sandbox.Driver, error)
	// Image has Python 3.
	Image sandbox.Image
	// Crash starts a sandbox of the instance in another process, kills that
	// process and returns the sandbox's id.
	Crash func(t testing.TB, instance string) string
}

// Run runs the suite.
func Run(t *testing.T, s Suite) {
	t.Run("life", s.life)
	t.Run("limits", s.limits)
	t.Run("memory that the kernel holds for code", s.kernelMemory)
	t.Run("isolation", s.isolation)
	t.Run("checkpoint", s.checkpoint)
}

// MustOpen opens a driver that is closed, and has left nothing on the host,
// when the test ends.
func (s Suite) MustOpen(t testing.TB) (sandbox.Driver, string) {
	t.Helper()
	instance := NewInstance()
	return s.MustReopen(t, instance), instance
}

// MustReopen opens the driver for an instance that exists.
func (s Suite) MustReopen(t testing.TB, instance string) sandbox.Driver {
	t.Helper()
	d, err := s.Open(instance)
	if err != nil {
		t.Fatalf("open the driver: %v", err)
	}
	t.Cleanup(func() {
		if err := d.Close(background(t)); err != nil {
			t.Errorf("close the driver: %v", err)
		}
		MustNothingLeft(t, instance, time.Second)
	})
	return d
}
