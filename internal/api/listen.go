package api

import (
	"log/slog"
	"net/http"
	"time"
)

// Bounds of a connection, so that a slow or silent client holds little.
const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 32 << 10
)

// HTTPServer wraps a handler in a server with bounds on headers and idle
// connections. Bodies and answers have deadlines of their own (Options.ReadTimeout and
// WriteTimeout).
func HTTPServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}
