package sandboxtest

import (
	"testing"

	"github.com/workbenchdev/workbench/internal/sandbox"
)

// mustVessel makes a vessel that goes with the test.
func mustVessel(t testing.TB, d sandbox.Driver, c sandbox.Class) sandbox.Sandbox {
	t.Helper()
	v, err := d.(sandbox.Restorer).Vessel(t.Context(), c)
	if err != nil {
		t.Fatalf("vessel: %v", err)
	}
	t.Cleanup(func() {
		if err := v.Kill(background(t)); err != nil {
			t.Errorf("kill: %v", err)
		}
	})
	return v
}

// A vessel is used once, for its class; one that is of no use costs nothing but
// time.
func (s Suite) inVessel(t *testing.T, d sandbox.Driver) {
	class := Standard(s.Image)
	box := MustBind(t, d, class)
	box.MustLive(t, "ctx", "kept = 'still here'\n", 0)
	once := mustVessel(t, d, class)
	box = box.mustRestore(t, d, box.MustCheckpoint(t), once)
	other := class
	other.MemoryBytes *= 2
	dead := mustVessel(t, d, class)
	if err := dead.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		vessel sandbox.Sandbox
	}{{"used", once}, {"of another class", mustVessel(t, d, other)}, {"dead", dead}} {
		back := box.mustRestore(t, d, box.MustCheckpoint(t), c.vessel)
		if err := back.Client.ResumeAll(t.Context()); err != nil {
			t.Fatalf("%s: resume: %v", c.name, err)
		}
		if back.Sandbox.ID() == c.vessel.ID() {
			t.Errorf("%s: restored in it", c.name)
		}
		if got := back.MustAsk(t, "ctx", "kept"); got != "'still here'" {
			t.Errorf("%s: the variable is %s", c.name, got)
		}
		MustNothingLeft(t, c.vessel.ID(), 0)
		box = back
	}
	t.Run("nothing is left of one", func(t *testing.T) {
		v := mustVessel(t, d, class)
		if len(Leftovers(v.ID())) == 0 {
			t.Error("nothing carries its id: the check below would pass vacuously")
		}
		if err := v.Kill(t.Context()); err != nil {
			t.Error(err)
		}
		MustNothingLeft(t, v.ID(), 0)
	})
}
