package guest

import (
	"encoding/json"
	"io"
	"sync"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// displays counts what one exec shows. Beyond the bounds it is only counted.
type displays struct {
	mu      sync.Mutex
	count   int64
	dropped int64
	bytes   int64
}

// admit reports whether a display of so many bytes is still within the bounds.
func (d *displays) admit(size int64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count++
	if d.count-d.dropped > guestwire.MaxDisplays || d.bytes+size > guestwire.MaxDisplayBytes {
		d.dropped++
		return false
	}
	d.bytes += size
	return true
}

func (d *displays) counts() (all, dropped int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.count, d.dropped
}

// display passes a display on, after the output that was printed before it.
func (b *broker) display(call brokerCall, p *caller) (json.RawMessage, error) {
	switch call.Kind {
	case guestwire.DisplayResult, guestwire.DisplayShow, guestwire.DisplayUpdate, guestwire.DisplayError, guestwire.DisplayClear:
	default:
		return nil, workbench.E(workbench.CodeInvalidRequest, "there is no such kind of display").WithField("kind")
	}
	size := int64(-1)
	if call.Size != nil {
		size = *call.Size
	}
	switch {
	case size < 0:
		return nil, workbench.E(workbench.CodeInvalidRequest, "a display has a size").WithField("size")
	case size > guestwire.MaxDisplay:
		return nil, workbench.E(workbench.CodeBodyTooLarge, "the display has %d bytes, %d are allowed", size, guestwire.MaxDisplay).
			WithHint("save it as a file instead")
	case len(call.ID) > 128:
		return nil, workbench.E(workbench.CodeInvalidRequest, "the display's id is longer than 128 bytes").WithField("id")
	case len(call.Metadata) > guestwire.MaxCallArgs/2:
		return nil, workbench.E(workbench.CodeInvalidRequest, "the display's metadata is too long").WithField("metadata")
	}
	if !b.shown.admit(size) {
		if _, err := io.CopyN(io.Discard, p.r, size); err != nil {
			return nil, workbench.E(workbench.CodeInvalidRequest, "the display ends early")
		}
		return json.RawMessage(`{"shown":false}`), nil
	}
	args := guestwire.DisplayArgs{Kind: call.Kind, ID: call.ID, Metadata: call.Metadata, At: b.e.printed()}
	if _, err := b.pass(guestwire.OpDisplay, args, size, p.r); err != nil {
		return nil, err
	}
	return json.RawMessage(`{"shown":true}`), nil
}

// printed is how much of the output the host gets that the program has printed
// by now.
func (e *execution) printed() guestwire.Offsets {
	e.mu.Lock()
	p := e.proc
	e.mu.Unlock()
	if p != nil {
		p.drain()
	}
	var at guestwire.Offsets
	_, at.Stdout = e.x.Stdout.Total()
	_, at.Stderr = e.x.Stderr.Total()
	return at
}
