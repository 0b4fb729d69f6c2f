// Command workbench is Workbench's server and its command line: one file per
// subcommand, and the wiring. The command line speaks to a server only through
// sdk/go; without a server it embeds one.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() { os.Exit(Main()) }

// Main runs the command line on this process's arguments and streams and
// returns the exit status.
func Main() int {
	// A reader of our output that went away is an error of the write, not a
	// signal that ends the process before its sandboxes are ended.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	a := newApp(os.Stdin, os.Stdout, os.Stderr)
	return a.run(ctx, os.Args[1:])
}
