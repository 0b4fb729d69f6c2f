// Package guest is everything that runs inside a sandbox: the supervisor that
// speaks guestwire with the host, the first process of each group, the stage
// that becomes user code, the interpreters' drivers and the helper libraries,
// the workspace's scanner, and the shell command that code calls.
//
// It is uid 0 of the sandbox's user namespace with few capabilities; user code
// is uid 1000 with none, in a PID, mount and IPC namespace per group, under a
// system call filter. Code is hostile to the guest as the guest is hostile to
// the host: nothing that code writes is obeyed, followed or waited for without
// a bound.
package guest
