// Package verify proves on the operator's own host that sandboxes hold what
// the threat model promises.
//
// A row is one thing that hostile code tries. It has a probe, a program that
// runs inside a real sandbox and says what it reached; often an observer, which
// looks at the host for the half that cannot be seen from inside; and profiles,
// sandboxes broken on purpose, in which the row must fail. The profiles run in
// the package's tests, within an outer bound, and show that no row passes
// because its check is blind.
//
// The package knows sandboxes and the guest protocol; it must not know
// sessions, stores or the API. What a probe says is as untrusted as any other
// output of a sandbox.
package verify
