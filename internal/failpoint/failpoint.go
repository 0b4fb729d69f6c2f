// Package failpoint lets a test end, stall or fail the process at a named
// place. Its one job is that; it must never hold behaviour of the product.
//
// In ordinary builds Hit is an empty function. Built with the tag "failpoint",
// Hit obeys the environment variable WORKBENCH_FAILPOINTS:
//
//	name=action[@n][,name=action[@n]…]
//
// where action is exit (SIGKILL to itself: no deferred code runs), panic,
// error, or sleep:DURATION, and n is the hit it acts on: 1 is the first and the
// default, * is every hit. WORKBENCH_FAILPOINT_LOG names a file to which every
// hit appends "name\n", and an exit "exit name\n", so that a driver can enumerate
// the places a scenario passes and the process died at.
package failpoint
