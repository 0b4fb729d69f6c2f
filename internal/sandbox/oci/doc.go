// Package oci is the driver for OCI runtimes on this host: gVisor's runsc and
// runc.
//
// It turns a class into a bundle, starts it with the runtime's command, and
// then watches, measures, stops and ends the result through the sandbox's
// control group, which it makes before the runtime runs. It never asks the
// runtime to delete anything: a sandbox is ended by killing every process of
// its control group and removing what the driver itself had made, so that a
// runtime that hangs cannot hold anything back.
//
// What of one sandbox is on the host: a control group
// workbench-<instance>/<sandbox id>, and a directory <state>/<sandbox id> with
// its record, bundle and runtime state. Nothing else, and no mounts.
package oci
