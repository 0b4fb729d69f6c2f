package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/workbenchdev/workbench"
)

// exitMeaning says what an exit status tells. The codes with that status are
// the error table's.
var exitMeaning = []struct {
	status  int
	meaning string
}{
	{workbench.ExitFailure, "anything without a better number"},
	{workbench.ExitUsage, "wrong flags, wrong input"},
	{workbench.ExitAuth, "no key, a wrong key, or not allowed"},
	{workbench.ExitNotFound, "no such session, run, context, file, key, receipt or the like, or not yours"},
	{workbench.ExitConflict, "it does not fit the state things are in"},
	{workbench.ExitGone, "closed, expired or deleted"},
	{workbench.ExitLimit, "a quota, size or rate limit"},
	{workbench.ExitUnavailable, "the server, the runtime or this host is not able right now; also a run that ended with `infrastructure`, and a tool call that had not ended when the wait for it was over"},
	{workbench.ExitRunFailed, "the program timed out, was cancelled, was ended by a limit or a signal, or could not begin for another reason; also a tool call that failed, was denied or has expired"},
	{workbench.ExitRunUnknown, "how the run, or the tool call, ended cannot be known; it is not started again"},
}

// exitTable is the table of exit statuses in docs/cli.md.
func exitTable() string {
	var b strings.Builder
	for _, m := range exitMeaning {
		var codes []string
		for _, c := range workbench.ErrorTable() {
			if c.Exit == m.status {
				codes = append(codes, "`"+string(c.Code)+"`")
			}
		}
		slices.Sort(codes)
		fmt.Fprintf(&b, "| %d | %s | %s |\n", m.status, m.meaning, strings.Join(codes, ", "))
	}
	return b.String()
}
