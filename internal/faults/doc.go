// Package faults holds the crash tests: a server is killed at every failpoint
// and at random moments while clients work, and a checker holds the history of
// what the clients were told against what is there in the end.
package faults
