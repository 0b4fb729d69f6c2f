package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/telemetry"
)

// serveFlags are the settings of the listener; those of the server behind it
// are in local.
type serveFlags struct {
	listen   string
	cert     string
	key      string
	keyFile  string // where the first admin key goes
	logJSON  bool
	drain    time.Duration
	logLevel string
}

func (a *app) serveCommand() *cobra.Command {
	var f serveFlags
	var l local
	var services serviceFlags
	c := &cobra.Command{
		Use: "serve", Short: "Serve the REST API", Args: exactly(0),
		Long: "Serves the REST API until it is interrupted. The first start makes an admin key and prints it once; workbench key create makes further keys.\n\n" +
			"On SIGINT or SIGTERM no further run is started, runs in flight get --drain to end, then the server ends. A second signal ends it at once.",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := services.apply(&l.options); err != nil {
				return err
			}
			return a.serve(c.Context(), &l, f)
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.listen, "listen", envOr("WORKBENCH_LISTEN", "127.0.0.1:8080"), "address to listen on [WORKBENCH_LISTEN]")
	fl.StringVar(&f.cert, "tls-cert", "", "certificate file, for https")
	fl.StringVar(&f.key, "tls-key", "", "key file of the certificate")
	fl.StringVar(&f.keyFile, "admin-key-file", "", "write the first admin key to this new file (mode 0600) instead of printing it")
	fl.DurationVar(&f.drain, "drain", 20*time.Second, "how long runs in flight may go on after a signal")
	fl.BoolVar(&f.logJSON, "log-json", false, "log JSON lines")
	fl.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	services.flags(fl)
	l.flags(fl, home())
	databaseFlag(fl, &l.options)
	fl.StringVar(&l.options.DefaultImage, "image", "", "image of sessions that name none, by name or id; default standard, else minimal")
	fl.IntVar(&l.options.MaxRunning, "max-running", 0, "runs that execute at once; default four per CPU")
	fl.IntVar(&l.options.MaxBackground, "max-background", 0, "background runs that execute at once, besides those of --max-running; default 8, and at most what --max-sandboxes leaves")
	fl.StringToIntVar(&l.options.Warm, "warm", map[string]int{workbench.DefaultSize: 2}, "sandboxes kept ready for new sessions, by size; =0 keeps none")
	fl.DurationVar(&l.options.SuspendAfter, "suspend-after", 30*time.Second, "a session without work for so long gives its sandbox up and returns with its next run; 0: only to make room")
	fl.DurationSliceVar(&l.options.WarnBefore, "warn-before", workbench.DefaultWarnings(), "times before a session's deadline at which it is warned; half its life at most")
	bytesVar(fl, &l.options.SessionHistory, "history-per-session", workbench.DefaultSessionHistoryBytes, "what the commits of a session may take; 0: no bound")
	bytesVar(fl, &l.options.TenantHistory, "history-per-tenant", workbench.DefaultTenantHistoryBytes, "what the commits of all sessions of a tenant may take; 0: no bound")
	fl.StringToIntVar(&l.options.Rates, "rate", nil, "what a second of active time costs, in millionths, by size, such as standard=25,medium=50; default nothing")
	fl.StringVar(&l.options.RateVersion, "rate-version", "", "name of that price list, which charges are told with")
	fl.IntVar(&l.options.MaxSandboxes, "max-sandboxes", 0, "live sandboxes; default by the host's memory")
	fl.BoolVar(&l.options.ToolPrograms, "tool-programs", false, "let admin keys declare tools that are programs of this host (workbench tools add --mcp-stdio): whoever has such a key then runs programs here, as this server's user and outside of any sandbox")
	return c
}

// operatorLog is the log that a person reads.
func operatorLog(w io.Writer) *slog.Logger {
	return telemetry.NewLogger(w, telemetry.LogText, slog.LevelInfo)
}

func (f serveFlags) log(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
		return nil, workbench.E(workbench.CodeInvalidRequest, "--log-level is debug, info, warn or error").WithField("log-level")
	}
	if f.logJSON {
		return telemetry.NewLogger(w, telemetry.LogJSON, level), nil
	}
	return telemetry.NewLogger(w, telemetry.LogText, level), nil
}

func (a *app) serve(ctx context.Context, l *local, f serveFlags) error {
	if err := needRoot(); err != nil {
		return err
	}
	if (f.cert == "") != (f.key == "") {
		return workbench.E(workbench.CodeInvalidRequest, "--tls-cert and --tls-key go together")
	}
	// Whoever reads the log slowly, or not at all, does not hold up the server.
	plain, sink := a.err, telemetry.NewSink(a.err)
	a.err = sink
	defer func() { sink.Close(); a.err = plain }()
	log, err := f.log(a.err)
	if err != nil {
		return err
	}
	l.options.Log = log
	if l.options.SuspendAfter == 0 {
		l.options.SuspendAfter = -1
	}
	l.options.SessionHistory, l.options.TenantHistory = unbounded(l.options.SessionHistory), unbounded(l.options.TenantHistory)
	// The port first: a taken one must not cost a recovery, and nobody is
	// answered before the server can.
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", f.listen)
	if err != nil {
		return workbench.E(workbench.CodeUnavailable, "cannot listen on %s", f.listen).WithHint("name another address with --listen").Caused(err)
	}
	defer listener.Close()
	s, err := openServer(ctx, l.options)
	if err != nil {
		return inUse(err, l.options.DataDir)
	}
	if err := a.showAdminKey(s.AdminKey(), f.keyFile); err != nil {
		return errors.Join(err, s.Close(ctx))
	}
	scheme := "http"
	if f.cert != "" {
		scheme = "https"
	} else if tcp, ok := listener.Addr().(*net.TCPAddr); ok && !tcp.IP.IsLoopback() {
		a.note("keys and files cross the network in the clear: use --tls-cert, or a proxy that does")
	}
	if l.options.ToolPrograms {
		a.note("admin keys run programs on this host, outside of any sandbox: --tool-programs")
	}
	a.note("listening on %s://%s", scheme, listener.Addr())
	h := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 1)
	go func() {
		if f.cert != "" {
			failed <- h.ServeTLS(listener, f.cert, f.key)
			return
		}
		failed <- h.Serve(listener)
	}()
	var serveErr error
	select {
	case <-ctx.Done():
		a.note("shutting down; runs in flight have %s", f.drain)
	case serveErr = <-failed:
		failed <- serveErr
	}
	return errors.Join(endHTTP(serveErr), shutDown(s, h, f.drain, failed))
}

// closeGrace is what releasing everything may take.
const closeGrace = 5 * time.Second

// stopping is what shutDown needs of a server.
type stopping interface {
	Stop(context.Context) error  // drains; reading goes on until it returns
	Close(context.Context) error // releases everything
}

// shutDown lets runs in flight end while their clients can still read, then
// ends the listener and the answers that are open, then the server. It returns
// when the serving goroutine has ended.
func shutDown(s stopping, h *http.Server, drain time.Duration, failed <-chan error) error {
	draining, stop := context.WithTimeout(context.Background(), drain)
	err := s.Stop(draining)
	stop()
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil // runs that were cut off are unknown now, which is what they are
	}
	// Long polls and streams end with the engine; what is open a moment later
	// is cut.
	answers, cancel := context.WithTimeout(context.Background(), time.Second)
	if h.Shutdown(answers) != nil {
		_ = h.Close()
	}
	cancel()
	closing, done := context.WithTimeout(context.Background(), closeGrace)
	defer done()
	return errors.Join(err, s.Close(closing), endHTTP(<-failed))
}

func endHTTP(err error) error {
	if err == nil || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return workbench.E(workbench.CodeUnavailable, "the listener failed").Caused(err)
}

// showAdminKey hands out the first admin key, the only time there is.
func (a *app) showAdminKey(secret, file string) error {
	if secret == "" {
		return nil
	}
	if file == "" {
		_, err := fmt.Fprintf(a.out, "first start: this admin key is shown once\n%s\n", secret)
		return err
	}
	f, err := newSecretFile(file)
	if err == nil {
		err = keepSecret(f, secret)
	}
	if err != nil {
		fmt.Fprintf(a.out, "first start: this admin key is shown once\n%s\n", secret)
		return workbench.AsError(err).WithHint("the key was printed instead; start the server again without --admin-key-file")
	}
	a.note("first start: the admin key is in %s", file)
	return nil
}
