package main

import (
	"context"

	"github.com/workbenchdev/workbench/internal/server"
)

// serverOptions are what `serve` and the embedded engine are started with.
type serverOptions = server.Options

// openServer opens a whole server on a data directory: see package server.
func openServer(ctx context.Context, o serverOptions) (*server.Server, error) {
	return server.Open(ctx, o)
}
