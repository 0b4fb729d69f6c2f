package upstream

import (
	"bytes"
	"io"
	"log"
	"sync"
)

// unasked begins what net/http writes to the standard logger, and nowhere else,
// about an answer to no request. The answer follows, and may hold a secret.
const unasked = "Unsolicited response received on idle HTTP channel"

var silencing sync.Mutex

// silence keeps answers that nobody asked for out of the standard logger's output.
func silence() {
	silencing.Lock()
	defer silencing.Unlock()
	if _, done := log.Writer().(withoutAnswers); !done {
		log.SetOutput(withoutAnswers{log.Writer()})
	}
}

type withoutAnswers struct{ next io.Writer }

// Write implements io.Writer; a message comes in one piece.
func (w withoutAnswers) Write(p []byte) (int, error) {
	if i := bytes.Index(p, []byte(unasked)); i >= 0 {
		line := append(bytes.Clone(p[:i+len(unasked)]), '\n')
		if _, err := w.next.Write(line); err != nil {
			return 0, err
		}
		return len(p), nil
	}
	return w.next.Write(p)
}
