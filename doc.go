// Package workbench is the domain of Workbench: the nouns (session, revision,
// run, step, artifact, commit, principal, key …), their states and the pure
// functions that move them, the limits, the error vocabulary and the typed ids.
//
// It does no I/O and knows no HTTP, SQL or runtime. Everything else in the
// module may import it; it imports the standard library and google/uuid only.
package workbench
