package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/server"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// connection says which server a command speaks to and as whom.
// A flag wins over the environment, the environment over the default.
type connection struct {
	server  string
	keyFile string
	tenant  string
	endUser string
	group   string
	set     *pflag.FlagSet
}

func (c *connection) flags(f *pflag.FlagSet) {
	c.set = f
	f.StringVar(&c.server, "server", os.Getenv("WORKBENCH_SERVER"), "address of a server; none: an engine in this process [WORKBENCH_SERVER]")
	f.StringVar(&c.keyFile, "key-file", os.Getenv("WORKBENCH_KEY_FILE"), "file with the API key; or set WORKBENCH_KEY [WORKBENCH_KEY_FILE]")
	f.StringVar(&c.tenant, "tenant", os.Getenv("WORKBENCH_TENANT"), "for an embedded key: the tenant to act for [WORKBENCH_TENANT]")
	f.StringVar(&c.endUser, "end-user", os.Getenv("WORKBENCH_END_USER"), "for an embedded key: the end user to act for [WORKBENCH_END_USER]")
	f.StringVar(&c.group, "group", os.Getenv("WORKBENCH_GROUP"), "for an embedded key: the end user's group [WORKBENCH_GROUP]")
}

// remote reports whether a server is named.
func (c *connection) remote() bool { return c.server != "" }

// forNobody refuses to act for somebody where no server is named.
func (c *connection) forNobody() error {
	if c.tenant != "" || c.endUser != "" || c.group != "" {
		return workbench.E(workbench.CodeInvalidRequest, "--tenant, --end-user and --group are for a named server").WithHint("name it with --server")
	}
	return nil
}

// key is the API key for a named server: from the file that a flag or the
// environment names, else from the environment.
func (c *connection) key() (string, error) {
	if c.keyFile == "" {
		if k := strings.TrimSpace(os.Getenv("WORKBENCH_KEY")); k != "" {
			return k, nil
		}
		return "", workbench.E(workbench.CodeUnauthenticated, "no API key for the server").
			WithHint("put it into a file and name that with --key-file, or set WORKBENCH_KEY")
	}
	f, err := os.Open(c.keyFile)
	if err != nil {
		return "", workbench.E(workbench.CodeUnauthenticated, "the key file cannot be read").Caused(err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return "", workbench.E(workbench.CodeUnauthenticated, "the key file cannot be read").Caused(err)
	}
	k := strings.TrimSpace(string(raw))
	if k == "" || strings.ContainsAny(k, " \t\r\n") {
		return "", workbench.E(workbench.CodeUnauthenticated, "the key file does not hold one key").WithHint("it holds the key and nothing else")
	}
	return k, nil
}

// client is an open way to a server. Close it.
type client struct {
	*sdk.Client
	close func(context.Context) error
	// image says why an engine of this process has no image; nil for a server,
	// whose operator alone can do something about it.
	image func(context.Context) error
	again string // flags by which a later command finds the same server, each behind a space
}

// Close ends the embedded engine, if there is one. It gets its own time: the
// command's context may have ended, and sandboxes must not stay.
func (c *client) Close() error {
	if c.close == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return c.close(ctx)
}

// closing closes c. What goes wrong with that is the command's error if it has
// no other, and is told either way.
func (a *app) closing(c *client, err *error) { a.also(c.Close(), err) }

// also takes an error that came after the command's own.
func (a *app) also(later error, err *error) {
	switch {
	case later == nil:
	case *err == nil:
		*err = later
	default:
		a.note("afterwards: %v", later)
	}
}

// connect opens the named server or, where none is named, an engine of this
// process.
func (a *app) connect(ctx context.Context, l *local) (*client, error) {
	if a.connection.remote() {
		if err := l.unused(); err != nil {
			return nil, err
		}
		client, err := a.connectRemote()
		if err == nil {
			client.again = flagsAgain(a.connection.set, "server", "key-file", "tenant", "end-user", "group")
		}
		return client, err
	}
	if err := a.connection.forNobody(); err != nil {
		return nil, err
	}
	s, err := l.open(ctx)
	if err != nil {
		return nil, err
	}
	key, err := s.LocalKey(ctx)
	if err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	client, err := embed(s, key)
	if err == nil {
		client.image = func(ctx context.Context) error { _, err := s.Images().Default(ctx); return err }
		if client.again = flagsAgain(l.set, "data"); l.sibling != "" {
			client.again = " --data " + shellWord(l.sibling)
		}
		client.again += flagsAgain(l.set, "master-key-file")
	}
	return client, err
}

// flagsAgain writes those of the named flags that were given, for a command
// that somebody may type next. The environment stays as it is.
func flagsAgain(set *pflag.FlagSet, names ...string) string {
	var b strings.Builder
	for _, name := range names {
		if f := set.Lookup(name); f != nil && f.Changed {
			b.WriteString(" --" + name + " " + shellWord(f.Value.String()))
		}
	}
	return b.String()
}

// shellWord quotes s if a shell would not take it as one plain word.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r < 128 && (unicode.IsLetter(r) || unicode.IsDigit(r)) || strings.ContainsRune("/._-:@%+=,", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func (a *app) connectRemote() (*client, error) {
	key, err := a.connection.key()
	if err != nil {
		return nil, err
	}
	c, err := sdk.New(sdk.Options{
		BaseURL: a.connection.server, Key: key, UserAgent: "workbench-cli",
		Tenant: a.connection.tenant, EndUser: a.connection.endUser, Group: a.connection.group,
		OnOutage: a.outage,
	})
	if err != nil {
		return nil, err
	}
	return &client{Client: c}, nil
}

// outage says that the server of a run that is followed is away, or back.
func (a *app) outage(err error) {
	if err != nil {
		a.note("the connection to the server was lost; reconnecting for up to %s", short(sdk.DefaultPatience))
		return
	}
	a.note("the server is back")
}

// embeddedPatience is how long an engine of this process may be unable to
// answer: there is no restart to wait for.
const embeddedPatience = 10 * time.Second

// embed speaks to a server of this process, through the same handler.
func embed(s embedded, key string) (*client, error) {
	transport := sdk.NewInProcess(s.Handler())
	c, err := sdk.New(sdk.Options{BaseURL: "http://in-process", Key: key, UserAgent: "workbench-cli", HTTP: &http.Client{Transport: transport}, Patience: embeddedPatience})
	if err != nil {
		return nil, err
	}
	return &client{Client: c, close: func(ctx context.Context) error {
		err := s.Close(ctx)
		transport.Wait()
		return err
	}}, nil
}

// embedded is a server of this process.
type embedded interface {
	Handler() http.Handler
	Close(ctx context.Context) error
}

// local are the settings of an engine in this process.
type local struct {
	options serverOptions
	// shared means that --data was not given: if another command uses the
	// usual directory, a sibling of it will do.
	shared  bool
	sibling string // the directory that was used instead, "" for none
	verbose bool
	set     *pflag.FlagSet
}

// maxSiblings bounds the directories that commands make when they run side by
// side without --data.
const maxSiblings = 64

// flags adds the settings that commands with an embedded engine share.
func (l *local) flags(f *pflag.FlagSet, data string) {
	l.set = f
	o := &l.options
	f.StringVar(&o.DataDir, "data", envOr("WORKBENCH_DATA", data), "data directory of the engine in this process [WORKBENCH_DATA]")
	f.StringVar(&o.Images, "images", envOr("WORKBENCH_IMAGES", filepath.Join(home(), "images")), "folder of sandbox images [WORKBENCH_IMAGES]")
	f.StringVar(&o.Driver, "driver", envOr("WORKBENCH_DRIVER", "runsc"), "runtime: runsc (gVisor, for hostile code) or runc [WORKBENCH_DRIVER]")
	f.StringVar(&o.Runsc, "runsc", "", "runsc to use instead of the embedded one")
	f.StringVar(&o.Runc, "runc", "", "runc to use instead of the embedded one")
	f.StringVar(&o.MasterKey, "master-key-file", "", "file with the master key; default: made in the data directory")
	f.BoolVar(&l.verbose, "verbose", false, "log what the engine does to stderr")
}

// localFlags are the settings that mean nothing to a named server.
var localFlags = []string{"data", "images", "driver", "runsc", "runc", "master-key-file", "verbose", "database"}

// unused refuses settings of an engine in this process that were given beside
// the name of a server: they would be ignored.
func (l *local) unused() error {
	for _, name := range localFlags {
		if l.set.Changed(name) {
			return workbench.E(workbench.CodeInvalidRequest, "--%s is for an engine in this process, and a server is named", name).WithField(name).
				WithHint("leave --%s out to use the server, or unset WORKBENCH_SERVER (and leave --server out) to use an engine here", name)
		}
	}
	return nil
}

// open starts the engine. Whoever has the directory already is most likely a
// server, which can be spoken to.
func (l *local) open(ctx context.Context) (*server.Server, error) {
	s, err := l.start(ctx)
	if err = inUse(err, l.options.DataDir); errors.Is(err, unix.EWOULDBLOCK) && workbench.HasCode(err, workbench.CodeUnavailable) {
		return nil, workbench.AsError(err).WithHint("if a server runs on it, name that: --server http://127.0.0.1:8080, or WORKBENCH_SERVER; if a command does, wait for it; or name another directory with --data")
	}
	return s, err
}

// inUse tells a directory that is in use from a copy of one: the sandboxes of
// both have the same names, and only one process can look after them.
func inUse(err error, dataDir string) error {
	if !errors.Is(err, unix.EWOULDBLOCK) || !workbench.HasCode(err, workbench.CodeRuntimeUnavailable) {
		return err
	}
	return workbench.E(workbench.CodeRuntimeUnavailable, "%s is a copy of a data directory that a running server or command uses", dataDir).
		WithHint("stop that one first; or, to use both side by side, remove the file instance from the copy, which makes it a data directory of its own").Caused(errors.Unwrap(workbench.AsError(err)))
}

// needRoot says at once what a driver would say after the data directory was
// made.
func needRoot() error {
	if uid := os.Geteuid(); uid != 0 {
		return workbench.E(workbench.CodeRuntimeUnavailable, "starting sandboxes needs root, and this process runs as user %d", uid).WithHint(rootless)
	}
	return nil
}

func (l *local) start(ctx context.Context) (*server.Server, error) {
	o := l.options
	if err := needRoot(); err != nil {
		return nil, err
	}
	if l.verbose {
		o.Log = operatorLog(os.Stderr)
	}
	given := l.set != nil && l.set.Changed("data") || os.Getenv("WORKBENCH_DATA") != ""
	if given || !l.shared {
		return openServer(ctx, o)
	}
	for n := 1; ; n++ {
		if n > 1 {
			o.DataDir = fmt.Sprintf("%s-%d", l.options.DataDir, n)
		}
		s, err := openServer(ctx, o)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) || n == maxSiblings {
			if n > 1 {
				l.sibling = o.DataDir
			}
			return s, err
		}
	}
}

func envOr(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

// home is where Workbench keeps things unless told otherwise.
func home() string {
	if os.Geteuid() == 0 {
		return "/var/lib/workbench"
	}
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "workbench")
	}
	if dir, err := os.UserHomeDir(); err == nil {
		return filepath.Join(dir, ".local", "share", "workbench")
	}
	return "workbench-data"
}

// localData is the data directory of commands that embed an engine; the
// server's own is the folder above it.
func localData() string { return filepath.Join(home(), "local") }
