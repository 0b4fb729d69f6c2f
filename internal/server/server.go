// Package server puts a whole Workbench together: data directory, store, keys,
// driver, engine and the REST face. Its one job is wiring; the command line and
// the end-to-end tests start the same thing through it.
package server

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/api"
	"github.com/workbenchdev/workbench/internal/artifact"
	"github.com/workbenchdev/workbench/internal/blob"
	"github.com/workbenchdev/workbench/internal/broker"
	"github.com/workbenchdev/workbench/internal/checkpoint"
	"github.com/workbenchdev/workbench/internal/engine"
	"github.com/workbenchdev/workbench/internal/govern"
	"github.com/workbenchdev/workbench/internal/identity"
	"github.com/workbenchdev/workbench/internal/image"
	"github.com/workbenchdev/workbench/internal/packages"
	"github.com/workbenchdev/workbench/internal/payload"
	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
	"github.com/workbenchdev/workbench/internal/seal"
	"github.com/workbenchdev/workbench/internal/store"
	"github.com/workbenchdev/workbench/internal/telemetry"
	"github.com/workbenchdev/workbench/internal/upstream"
	"github.com/workbenchdev/workbench/internal/workspace"
)

// Options are the operator's settings. The zero value of every field but
// DataDir has a usable meaning.
type Options struct {
	DataDir       string // everything the server keeps
	Database      string // postgres://… ; empty: SQLite in the data directory
	Images        string // folder of images; empty: images/ in the data directory
	DefaultImage  string // name or id; empty: standard, or the only one there is
	Driver        string // runsc (default) or runc
	Runsc, Runc   string // runtimes to use instead of the embedded ones
	Guest         string // guest binary to use instead of the embedded one
	MasterKey     string // file with the master key; empty: made in the data directory
	MaxRunning    int    // runs that execute at once; 0: four per CPU
	MaxBackground int    // background runs that execute at once, besides those; 0: 8
	MaxSandboxes  int    // live sandboxes; 0: by the host's memory
	// Rates are what a second of active time costs, in millionths, by size, and
	// RateVersion names the list; nil: nothing.
	Rates        map[string]int
	RateVersion  string
	Warm         map[string]int // sandboxes kept ready for new sessions, by size; nil: none
	SuspendAfter time.Duration  // without work, a session's sandbox goes; 0: 30 s, below 0: never
	// SessionHistory and TenantHistory bound what the commits of a session, and
	// those of all sessions of a tenant, may take, in bytes; 0: 10 GiB and 100
	// GiB, below 0: no bound.
	SessionHistory, TenantHistory int64
	Log                           *slog.Logger
	// ToolPrograms lets admin keys declare apps that are programs on this host
	// (MCP servers over stdio): whoever has such a key runs programs here then.
	ToolPrograms bool
	// ApprovalWebhook is told of tool calls that wait for a decision; nil: none.
	ApprovalWebhook *govern.Webhook
	// FetchPrivate names hosts of private networks that code may reach, where the
	// rules let it.
	FetchPrivate []string
	// PythonIndex and NPMRegistry are the registries that packages come from; "": the
	// usual one of the package manager in the session's image. They may hold a user and a password. PackagesCache bounds the bytes of packages that no
	// session has; 0: 10 GiB.
	PythonIndex, NPMRegistry string
	PackagesCache            int64
	// Services are what code may use besides tools.
	Services broker.Options
	// WarnBefore are the times before a session's deadline at which it is warned;
	// nil: 10 min and 1 min.
	WarnBefore []time.Duration

	// WrapDriver, in tests, puts something between the engine and the driver.
	WrapDriver func(sandbox.Driver) sandbox.Driver
	// Weaken, in tests, changes how sandboxes are made.
	Weaken *oci.Weakening
	// Blobs and Store, in tests, look at what is synced, or break it.
	Blobs []blob.Option
	Store store.Options // its Logger is Log
}

// Server is a whole, running Workbench without a listener.
type Server struct {
	o        Options
	data     *dataDir
	store    *store.DB
	identity *identity.Service
	images   *image.Store
	engine   *engine.Engine
	tools    *govern.Governor
	upstream *upstream.Clients
	handler  http.Handler
	adminKey string
	closers  []func() error
}

// Open opens the data directory, recovers what a crash left and starts to
// work. The caller serves Handler and must Close. Codes: unavailable,
// runtime_unavailable, encryption_key_unavailable.
func Open(ctx context.Context, o Options) (_ *Server, err error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{o: o}
	defer func() {
		if err != nil {
			_ = s.release()
		}
	}()
	if err = checkOpenFiles(); err != nil {
		return nil, err
	}
	if err = checkDatabase(o.Database); err != nil {
		return nil, err
	}
	if err = checkWarnings(o.WarnBefore); err != nil {
		return nil, err
	}
	if s.data, err = openDataDir(o.DataDir); err != nil {
		return nil, err
	}
	s.closers = append(s.closers, s.data.close)
	dsn := o.Database
	if dsn == "" {
		dsn = "sqlite:" + s.data.join("workbench.db")
	}
	o.Store.Logger = o.Log
	if s.store, err = store.Open(ctx, dsn, o.Store); err != nil {
		return nil, err
	}
	s.closers = append(s.closers, s.store.Close)
	s.store.LimitHistory(store.HistoryQuota{SessionBytes: bound(o.SessionHistory, workbench.DefaultSessionHistoryBytes),
		TenantBytes: bound(o.TenantHistory, workbench.DefaultTenantHistoryBytes)})
	if o.Images == "" {
		o.Images = s.data.join("images")
	}
	if s.images, err = image.Open(o.Images); err != nil {
		return nil, err
	}
	driver, err := s.driver()
	if err != nil {
		return nil, err
	}
	if err := s.assemble(ctx, driver); err != nil {
		return nil, errors.Join(err, driver.Close(ctx))
	}
	return s, nil
}

// checkOpenFiles refuses a process that may open fewer files than user code may
// in a sandbox: sandboxes inherit the bound, and every program would fail.
func checkOpenFiles() error {
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		return workbench.E(workbench.CodeRuntimeUnavailable, "the limit on open files cannot be read").Caused(err)
	}
	if need := workbench.DefaultLimits().OpenFiles; own.Max < uint64(need) {
		return workbench.E(workbench.CodeRuntimeUnavailable, "this process may open %d files, sandboxes need %d", own.Max, need).
			WithHint("raise the limit: ulimit -n 65536, or LimitNOFILE=65536 in a systemd unit")
	}
	return nil
}

// checkDatabase refuses what names no PostgreSQL: a file of SQLite is always in
// the data directory, whose lock guards it. The value may hold a password, so
// it is not repeated.
func checkDatabase(dsn string) error {
	if dsn == "" || strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://") {
		return nil
	}
	return workbench.E(workbench.CodeInvalidRequest, "database must be a URL of PostgreSQL").WithField("database").
		WithHint("write postgres://user:password@host:5432/name?sslmode=…, also for what libpq takes as host=… dbname=…; leave it out for the SQLite file in the data directory")
}

// bound is an option as the store takes it: 0 for none.
func bound(option, usual int64) int64 {
	if option == 0 {
		return usual
	}
	return max(option, 0)
}

// checkWarnings refuses a warning that no session would get in its life.
func checkWarnings(before []time.Duration) error {
	for _, d := range before {
		if d <= 0 || d > workbench.MaxSessionTTL {
			return workbench.E(workbench.CodeInvalidRequest, "a warning comes between a moment and %s before a session's deadline, not %s", workbench.MaxSessionTTL, d).
				WithField("warn-before").WithHint("such as 10m,1m")
		}
	}
	return nil
}

// driver opens the configured runtime, extracting the embedded one.
func (s *Server) driver() (sandbox.Driver, error) {
	kind := oci.Runsc
	switch s.o.Driver {
	case "", string(oci.Runsc):
	case string(oci.Runc):
		kind = oci.Runc
	default:
		return nil, workbench.E(workbench.CodeInvalidRequest, "driver must be runsc or runc").WithField("driver").
			WithHint("docker and kubernetes are not built yet")
	}
	binary, err := s.program(map[oci.Kind]string{oci.Runsc: s.o.Runsc, oci.Runc: s.o.Runc}[kind], payload.Name(kind))
	if err != nil {
		return nil, err
	}
	guest, err := s.program(s.o.Guest, payload.Guest)
	if err != nil {
		return nil, err
	}
	d, err := oci.Open(oci.Options{Packages: packages.SetsDir(s.packagesDir()), Kind: kind, Instance: s.data.instance, Binary: binary, Guest: guest, Weaken: s.o.Weaken, Log: s.o.Log})
	if err != nil {
		return nil, err
	}
	if s.o.WrapDriver != nil {
		return s.o.WrapDriver(d), nil
	}
	return d, nil
}

// program is the operator's choice, or the embedded executable.
func (s *Server) program(chosen string, name payload.Name) (string, error) {
	if chosen != "" {
		return filepath.Abs(chosen)
	}
	path, _, err := payload.Extract(s.data.join("bin"), name)
	return path, err
}

// assemble makes the services above the driver and starts the engine.
func (s *Server) assemble(ctx context.Context, driver sandbox.Driver) error {
	masters, err := seal.LoadMasters(s.data.path, s.o.MasterKey)
	if err != nil {
		return err
	}
	if made := masters.Notice(); made != "" {
		s.o.Log.Warn(made)
	}
	sealer := seal.New(masters, s.store)
	blobs, err := blob.OpenDisk(s.data.join("blobs"), s.o.Blobs...)
	if err != nil {
		return err
	}
	metrics := telemetry.NewMetrics()
	memory, err := s.memory()
	if err != nil {
		return err
	}
	trees := workspace.New(blobs, sealer, s.store)
	files := artifact.New(blobs, sealer, s.store, artifact.WithLog(s.o.Log), artifact.WithAccess(func(ctx context.Context, p workbench.Principal, a workbench.Artifact) error {
		return s.tools.MayRead(ctx, p, a.SessionID, a.Dependencies)
	}))
	if err := s.packages(sealer); err != nil {
		return err
	}
	engineID := workbench.NewID(workbench.KindEngine)
	s.tools, s.upstream = s.governor(engineID, sealer, files)
	sizes, err := rated(workbench.StandardSizes(), s.o.Rates, s.o.RateVersion)
	if err != nil {
		return err
	}
	s.engine = engine.New(engine.Options{
		ID: engineID, Tools: s.tools, Broker: broker.New(s.tools, s.o.Services),
		Store: s.store, Seal: sealer, Workspace: trees, Artifacts: files, Images: s.images, Driver: driver,
		Checkpoints: checkpoint.New(blobs, sealer, s.store), Memory: memory,
		Instance: s.data.instance, DefaultImage: s.o.DefaultImage, MaxRunning: s.maxRunning(), MaxBackground: s.o.MaxBackground, MaxSandboxes: s.maxSandboxes(), Warm: s.o.Warm,
		SuspendAfter: s.o.SuspendAfter, WarnBefore: s.o.WarnBefore, Log: s.o.Log, Metrics: metrics, Sizes: sizes,
	})
	if err := s.engine.Start(ctx); err != nil {
		return err
	}
	s.identity = identity.New(s.store, nil)
	if s.adminKey, _, err = s.identity.Bootstrap(ctx); err != nil {
		return errors.Join(err, s.engine.Stop(ctx))
	}
	s.handler = api.New(api.Options{Engine: s.engine, Artifacts: files, Tools: s.tools, Identity: s.identity, Audit: s.store, Metrics: metrics, Log: s.o.Log})
	return nil
}

// governor makes the governed path; the engine's id says who executes its calls.
func (s *Server) governor(engineID string, sealer *seal.Sealer, files *artifact.Service) (*govern.Governor, *upstream.Clients) {
	var g *govern.Governor
	clients := upstream.New(upstream.Options{Log: s.o.Log, StdioAllowed: s.o.ToolPrograms, FetchPrivate: s.o.FetchPrivate,
		Rotated: func(ctx context.Context, id string, version int64, c workbench.Credentials) error {
			return g.Refreshed(ctx, id, version, c)
		}})
	g = govern.New(govern.Options{Store: s.store, Seal: sealer, Upstream: clients, Artifacts: files, EngineID: engineID, Webhook: s.o.ApprovalWebhook, Log: s.o.Log})
	s.closers = append(s.closers, clients.Close)
	return g, clients
}

// memory is where live memory lies between a sandbox and its seal; nil where
// there is no room in memory for it: then sessions keep their files alone.
func (s *Server) memory() (*checkpoint.Memory, error) {
	var host unix.Sysinfo_t
	if err := unix.Sysinfo(&host); err != nil {
		return nil, workbench.E(workbench.CodeRuntimeUnavailable, "the host's memory is not known").Caused(err)
	}
	m, err := checkpoint.OpenMemory(s.data.join("memory"), int64(host.Totalram)*int64(host.Unit)/4)
	if err != nil {
		s.o.Log.Warn("sessions cannot keep their memory", "err", err)
		return nil, nil //nolint:nilnil // nil is documented
	}
	if m.MaySwap() {
		s.o.Log.Warn("memory that sessions keep may reach the host's swap for a moment", "remedy", "turn swap off, or use Linux 6.4 or newer")
	}
	s.closers = append(s.closers, m.Close)
	return m, nil
}

func (s *Server) maxRunning() int {
	if s.o.MaxRunning > 0 {
		return s.o.MaxRunning
	}
	return 4 * runtime.NumCPU()
}

// maxSandboxes is how many sandboxes of the standard size fit into four fifths
// of the host's memory, if all of them used what they may.
func (s *Server) maxSandboxes() int {
	if s.o.MaxSandboxes > 0 {
		return s.o.MaxSandboxes
	}
	var host unix.Sysinfo_t
	if err := unix.Sysinfo(&host); err != nil {
		return 0
	}
	l := workbench.DefaultLimits()
	const runtimeItself = 256 * workbench.MiB
	each := l.MemoryBytes + l.WorkspaceBytes + l.ScratchBytes + runtimeItself
	return max(4, int(int64(host.Totalram)*int64(host.Unit)*4/5/each))
}

// Handler is the REST face.
func (s *Server) Handler() http.Handler { return s.handler }

// AdminKey is the secret of the first admin key if this start made it, else "".
func (s *Server) AdminKey() string { return s.adminKey }

// Images is the image store.
func (s *Server) Images() *image.Store { return s.images }

// ImageInUse reports whether a session that has not ended has the image.
func (s *Server) ImageInUse(ctx context.Context, id string) (bool, error) {
	return s.store.ImageInUse(ctx, id)
}

// LocalKey makes a key for the user "local" of the tenant "local", for the
// process that embeds the server. It ends with the process.
func (s *Server) LocalKey(ctx context.Context) (string, error) {
	return s.identity.LocalKey(ctx)
}

// Stop drains: runs in flight get until ctx ends. Until it returns everything
// can still be read; submissions are refused.
func (s *Server) Stop(ctx context.Context) error {
	err := s.engine.Stop(ctx)
	s.tools.Stop(ctx)
	return err
}

// Close drains and stops. Runs in flight get until ctx ends.
func (s *Server) Close(ctx context.Context) error {
	return errors.Join(s.Stop(ctx), s.release())
}

func (s *Server) release() error {
	var errs []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i]())
	}
	s.closers = nil
	return errors.Join(errs...)
}

// rated puts the operator's prices on the sizes. A price list has a name, so that what
// was charged under it can be told later.
func rated(sizes []workbench.Size, rates map[string]int, version string) ([]workbench.Size, error) {
	if len(rates) == 0 && version == "" {
		return sizes, nil
	}
	bad := func(format string, args ...any) ([]workbench.Size, error) {
		return nil, workbench.E(workbench.CodeInvalidRequest, format, args...).WithField("rate").
			WithHint("for example --rate standard=25,medium=50 --rate-version 2026-12: millionths a second")
	}
	if version == "" {
		return bad("a price list needs a name")
	}
	known := map[string]bool{}
	for i := range sizes {
		rate := rates[sizes[i].Name]
		if rate < 0 || rate > maxRate {
			return bad("the rate of %s must be between 0 and %d", sizes[i].Name, maxRate)
		}
		known[sizes[i].Name] = true
		sizes[i].RateMicros, sizes[i].RateVersion = int64(rate), version
	}
	for name := range rates {
		if !known[name] {
			return bad("there is no size %q to have a rate", name)
		}
	}
	return sizes, nil
}

// maxRate bounds a rate, so that no sum of a ledger overflows: a thousand units a
// second.
const maxRate = 1_000_000_000
