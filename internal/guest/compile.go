package guest

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// compileError is a program that cannot be translated: what its standard error
// shows of that.
type compileError struct{ text string }

func (c *compileError) Error() string { return c.text }

// syntaxError begins the line that says what is wrong; the first line says where.
const syntaxError = "SyntaxError: "

// what is the error without its place, and where the place, "" if there is none.
func (c *compileError) parts() (what, where string) {
	lines := strings.Split(c.text, "\n")
	for i, line := range lines {
		if what, ok := strings.CutPrefix(line, syntaxError); ok {
			if i > 0 {
				where = lines[0]
			}
			return what, where
		}
	}
	return strings.TrimPrefix(lines[0], "error: "), ""
}

// compileFailed ends an exec whose program was never begun. A cell shows the error
// as it shows any other.
func (e *execution) compileFailed(c *compileError) guestwire.ExecResult {
	e.x.Started()
	_, _ = e.x.Stderr.Write([]byte(c.text)) // fails only after Close
	what, where := c.parts()
	res := guestwire.ExecResult{ExitCode: 1, Reason: workbench.ReasonCompile, Message: what, Duration: time.Since(e.start)}
	if where != "" {
		res.Message = fmt.Sprintf("%s (%s)", what, where)
	}
	if e.r.Context != "" {
		e.showError(res.Message, c.text)
		res.Displays, res.DisplaysDropped = e.broker.shown.counts()
	}
	return res
}

// showError shows what a kernel would of such an error. A host that does not take
// it has ended the exec.
func (e *execution) showError(what, trace string) {
	told, err := guestwire.Marshal(map[string]any{"ename": strings.TrimSuffix(syntaxError, ": "), "evalue": what, "traceback": strings.Split(strings.TrimSuffix(trace, "\n"), "\n")})
	if err != nil {
		return
	}
	content, err := json.Marshal(map[string]string{"application/json": string(told), "text/plain": syntaxError + what})
	if err != nil || !e.broker.shown.admit(int64(len(content))) {
		return
	}
	_, _ = e.broker.pass(guestwire.OpDisplay, guestwire.DisplayArgs{Kind: guestwire.DisplayError, At: e.printed()}, int64(len(content)), strings.NewReader(string(content)))
}
