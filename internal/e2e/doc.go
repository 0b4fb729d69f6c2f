// Package e2e holds the end-to-end tests: a whole server with real sandboxes,
// driven over HTTP through the Go SDK.
package e2e
