// Package govern lets code call tools without holding a key. Its one job is the
// governed path: from a call that a program asks for, over the session's
// allowlist, the arguments' schema, the current rules, the recorded intent and
// the credentials of a connection, to a receipt; and what people do about it:
// apps, connections, rules, approvals.
//
// It knows no sandbox and no HTTP face. Nothing leaves before its intent is
// recorded, nothing is sent twice, and nothing it returns holds a credential.
package govern

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/artifact"
	"github.com/workbenchdev/workbench/internal/policy"
	"github.com/workbenchdev/workbench/internal/seal"
	"github.com/workbenchdev/workbench/internal/store"
	"github.com/workbenchdev/workbench/internal/upstream"
)

// Options wire a Governor.
type Options struct {
	Store     *store.DB
	Seal      *seal.Sealer
	Upstream  *upstream.Clients
	Artifacts *artifact.Service
	EngineID  string // who executes: receipts that it leaves behind become unknown
	Log       *slog.Logger
	Clock     func() time.Time // nil: time.Now
	Webhook   *Webhook         // nil: nobody is told of calls that wait
}

// Governor is the governed path of one server. It is safe for concurrent use.
type Governor struct {
	o   Options
	now func() time.Time
	log *slog.Logger

	mu    sync.Mutex
	rules map[string]compiled // by project
	tools map[toolKey]workbench.Tool
	apps  map[appKey]workbench.App
	names map[string]string // of tenants, users and groups, by id: they never change

	ctx    context.Context // of calls that were approved: they belong to no request
	cancel context.CancelFunc
	work   sync.WaitGroup
}

type compiled struct {
	version int64
	set     *policy.Set
}

type toolKey struct {
	project string
	ref     workbench.ToolRef
}

type appKey struct{ project, name string }

// New makes a Governor; Close ends it.
func New(o Options) *Governor {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	g := &Governor{o: o, now: o.Clock, log: o.Log, rules: map[string]compiled{}, tools: map[toolKey]workbench.Tool{},
		apps: map[appKey]workbench.App{}, names: map[string]string{}}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// Stop waits, until ctx ends, for approved calls under way; then it cuts them
// short, and they end as unknown.
func (g *Governor) Stop(ctx context.Context) {
	done := make(chan struct{})
	go func() { g.work.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
	}
	g.cancel()
	<-done
}

// known bounds what is remembered of each kind; beyond it everything of the kind
// is read again.
const known = 4096

// remember keeps a value under a bounded number of others.
func remember[K comparable, V any](mu *sync.Mutex, m map[K]V, k K, v V) {
	mu.Lock()
	defer mu.Unlock()
	if len(m) >= known {
		clear(m)
	}
	m[k] = v
}

func recall[K comparable, V any](mu *sync.Mutex, m map[K]V, k K) (V, bool) {
	mu.Lock()
	defer mu.Unlock()
	v, ok := m[k]
	return v, ok
}

// tool is one version of a tool. Its state may be an older one: whoever acts on
// it has the store look again.
func (g *Governor) tool(ctx context.Context, project string, ref workbench.ToolRef) (workbench.Tool, error) {
	k := toolKey{project, ref}
	if t, ok := recall(&g.mu, g.tools, k); ok {
		return t, nil
	}
	t, err := g.o.Store.Tool(ctx, project, ref)
	if err == nil {
		remember(&g.mu, g.tools, k, t)
	}
	return t, err
}

// forgetTool has a version of a tool read anew.
func (g *Governor) forgetTool(project string, ref workbench.ToolRef) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.tools, toolKey{project, ref})
}

// app is an app as it is now.
func (g *Governor) app(ctx context.Context, project, name string) (workbench.App, error) {
	version, err := g.o.Store.AppVersion(ctx, project, name)
	if err != nil {
		return workbench.App{}, err
	}
	k := appKey{project, name}
	if a, ok := recall(&g.mu, g.apps, k); ok && a.Version == version {
		return a, nil
	}
	a, err := g.o.Store.App(ctx, project, name)
	if err == nil {
		remember(&g.mu, g.apps, k, a)
	}
	return a, err
}

// seenApp is an app as it is now, or, unless fresh, as it was last seen here.
func (g *Governor) seenApp(ctx context.Context, project, name string, fresh bool) (workbench.App, error) {
	if a, ok := recall(&g.mu, g.apps, appKey{project, name}); ok && !fresh {
		return a, nil
	}
	return g.app(ctx, project, name)
}

// name is what the operator or client calls a tenant, user or group.
func (g *Governor) name(ctx context.Context, id string, find func(context.Context, string) (workbench.Named, error)) (string, error) {
	if id == "" {
		return "", nil
	}
	if n, ok := recall(&g.mu, g.names, id); ok {
		return n, nil
	}
	named, err := find(ctx, id)
	if err == nil {
		remember(&g.mu, g.names, id, named.Name)
	}
	return named.Name, err
}

// identity is who somebody is, in the words of the rules.
func (g *Governor) identity(ctx context.Context, project, tenant, user, group string) (policy.Identity, error) {
	id := policy.Identity{ProjectID: project, TenantID: tenant, UserID: user, GroupID: group}
	var err error
	if id.TenantName, err = g.name(ctx, tenant, g.o.Store.Tenant); err != nil {
		return id, err
	}
	if id.UserName, err = g.name(ctx, user, g.o.Store.User); err != nil {
		return id, err
	}
	id.GroupName, err = g.name(ctx, group, g.o.Store.Group)
	return id, err
}

func (g *Governor) identityOf(ctx context.Context, s workbench.Session) (policy.Identity, error) {
	return g.identity(ctx, s.ProjectID, s.TenantID, s.UserID, s.GroupID)
}

// seenRules are the project's rules as they are now, or, unless fresh, as they were
// last seen here.
func (g *Governor) seenRules(ctx context.Context, project string, fresh bool) (*policy.Set, int64, error) {
	if c, ok := recall(&g.mu, g.rules, project); ok && !fresh {
		return c.set, c.version, nil
	}
	return g.current(ctx, project)
}

// current is the project's rules as they are, compiled, and their number.
func (g *Governor) current(ctx context.Context, project string) (*policy.Set, int64, error) {
	version, err := g.o.Store.RulesVersion(ctx, project)
	if err != nil {
		return nil, 0, err
	}
	if c, ok := recall(&g.mu, g.rules, project); ok && c.version == version {
		return c.set, c.version, nil
	}
	all, err := g.o.Store.Rules(ctx, project)
	if err != nil {
		return nil, 0, err
	}
	set, problems := policy.Compile(all.Rules)
	if set == nil { // they were checked before they were kept
		return nil, 0, workbench.E(workbench.CodeInternal, "the project's rules cannot be read by this version of the server").
			WithHint("workbench policy check tells what is wrong").Caused(ruleError(problems))
	}
	remember(&g.mu, g.rules, project, compiled{all.Version, set})
	return set, all.Version, nil
}
