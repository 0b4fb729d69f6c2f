package guest_test

import (
	"fmt"
	"io"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
	"github.com/workbenchdev/workbench/internal/sandbox/sandboxtest"
)

// thrown is a scan's sink that keeps nothing.
type thrown struct{ entries, bytes int64 }

func (s *thrown) Entry(_ guestwire.Entry, content io.Reader) error {
	s.entries++
	if content == nil {
		return nil
	}
	n, err := io.Copy(io.Discard, content)
	s.bytes += n
	return err
}

// BenchmarkScan is what a scan costs after a run that left the workspace as it
// was, or changed one file of it. What the run itself costs is not counted.
func BenchmarkScan(b *testing.B) {
	const fill = `
import os
for i in range(1000):
    os.makedirs(f"d{i % 10}", exist_ok=True)
    open(f"d{i % 10}/f{i}", "wb").write(os.urandom(65536))
`
	for _, kind := range []oci.Kind{oci.Runsc, oci.Runc} {
		for _, c := range []struct {
			name, before, run string
			bytes             int64
		}{
			{"nearly-empty", `open("a", "w").write("hello")`, "true", 0},
			{"64MiB-unchanged", fill, "true", 0},
			{"64MiB-one-1MiB-changed", fill + `open("big", "wb").write(os.urandom(1 << 20))`, "printf %s $RANDOM$RANDOM | dd of=big conv=notrunc 2>/dev/null", 1 << 20},
		} {
			b.Run(fmt.Sprintf("%s/%s", kind, c.name), func(b *testing.B) {
				d, env := MustDriver(b, kind)
				class := sandboxtest.Standard(env.Image)
				class.WorkspaceBytes = 128 << 20
				s := &session{t: b, kind: kind, d: d, env: env, Session: sandboxtest.MustBind(b, d, class)}
				s.code(b, workbench.Python, c.before).want(b, 0, "")
				base, err := s.Client.Scan(b.Context(), guestwire.ScanRequest{}, &thrown{})
				if err != nil {
					b.Fatal(err)
				}
				b.ResetTimer()
				for range b.N {
					b.StopTimer()
					s.code(b, workbench.Bash, c.run).want(b, 0, "")
					var sink thrown
					b.StartTimer()
					base, err = s.Client.Scan(b.Context(), guestwire.ScanRequest{Base: base.Token}, &sink)
					if err != nil || sink.bytes != c.bytes {
						b.Fatalf("%d entries with %d bytes: %v", sink.entries, sink.bytes, err)
					}
				}
			})
		}
	}
}
