// Package packages installs what code asks for from registries of Python and npm
// packages. A sandbox that runs nothing else installs a set, once for a tenant, an
// image and a lock; every sandbox then has the set under a name that only who may
// use it is told. Its one job is to turn names of packages into such a set.
//
// It asks the rules nothing and knows no session: package broker does.
package packages

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/fair"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// Keys names contents so that only their tenant can know the name; *seal.Sealer does.
type Keys interface {
	ContentID(ctx context.Context, tenantID string, sum [sha256.Size]byte) (string, error)
}

// Store remembers which sessions have which sets; *store.DB does.
type Store interface {
	AddPackages(ctx context.Context, runID string, epoch int64, set workbench.PackageSet) error
	PackagesInUse(ctx context.Context) (map[string]bool, error)
}

// Workshop starts a sandbox of an image for work of the server's own; release ends
// it.
type Workshop func(ctx context.Context, imageID string) (wire *guestwire.Client, release func(), err error)

// Options wires a Service.
type Options struct {
	Dir      string // of this service alone; what is in Dir/sets is mounted into sandboxes
	Keys     Keys
	Store    Store
	Workshop Workshop
	// Python and NPM are the registries; nil: the package manager's own.
	Python, NPM *url.URL
	CacheBytes  int64            // of sets that no session has; default 10 GiB
	Log         *slog.Logger     // default: discards
	Clock       func() time.Time // default time.Now
}

// Service installs packages. It is safe for concurrent use. Close it in the end.
type Service struct {
	o      Options
	web    *http.Transport
	shelf  shelf
	places *fair.Places // for builders

	ctx    context.Context // ends with the service
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu      sync.Mutex
	under   map[string]*building // by request
	keeping sync.RWMutex         // held for writing while sets are removed
}

// building is one set that is being made, for all who ask for it meanwhile.
type building struct {
	done chan struct{}
	err  error
}

// Bounds of installing.
const (
	buildWithin    = 5 * time.Minute
	buildersAtOnce = 2
	fresh          = 24 * time.Hour // for which a request that names no exact versions means the same lock
	usualCache     = 10 << 30
	settling       = time.Minute // in which who asked for a set comes to have it
)

// SetsDir is the directory that sandboxes have as /opt/workbench/packages.
func SetsDir(dir string) string { return dir + "/sets" }

// Open makes a Service. What an earlier one left half done is removed.
func Open(o Options) (*Service, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = usualCache
	}
	s := &Service{o: o, web: &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: 8, IdleConnTimeout: 30 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second, ForceAttemptHTTP2: true},
		shelf: shelf{dir: o.Dir}, places: fair.New(buildersAtOnce), under: map[string]*building{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if err := s.shelf.open(); err != nil {
		return nil, workbench.E(workbench.CodeUnavailable, "the directory for packages cannot be used").Caused(err)
	}
	return s, nil
}

// Close gives up what is being installed.
func (s *Service) Close() error {
	s.cancel()
	s.work.Wait()
	s.web.CloseIdleConnections()
	return nil
}

// Request is for packages of one manager, which Check has accepted.
type Request struct {
	TenantID, ImageID string
	RunID             string
	Epoch             int64
	Manager           workbench.PackageManager
	Packages          []string
}

// Install gives the set that a request means, and notes it with the run and its
// session. A set that is there is not installed again; one that is being installed
// goes on when the caller leaves, for whoever asks next.
//
// Codes: packages_refused (with the reason), unavailable (the registry), and those of
// Workshop and Store.AddPackages.
func (s *Service) Install(ctx context.Context, r Request) (workbench.PackageSet, error) {
	key, err := s.key(ctx, r.TenantID, "request", r.ImageID, string(r.Manager), r.Packages)
	if err != nil {
		return workbench.PackageSet{}, err
	}
	for again := true; ; again = false {
		set, ok, err := s.take(ctx, key, r)
		if ok || err != nil {
			return set, err
		}
		if !again {
			return workbench.PackageSet{}, workbench.E(workbench.CodeUnavailable, "the set was removed as soon as it was installed").WithHint("try again")
		}
		if err := s.wait(ctx, key, r); err != nil {
			return workbench.PackageSet{}, err
		}
	}
}

// take gives a set that is there, and notes who has it before it could be removed.
func (s *Service) take(ctx context.Context, key string, r Request) (workbench.PackageSet, bool, error) {
	s.keeping.RLock()
	defer s.keeping.RUnlock()
	now := s.o.Clock()
	set, at, ok := s.shelf.find(key)
	if !ok || !exact(r.Manager, r.Packages) && now.Sub(at) > fresh {
		return workbench.PackageSet{}, false, nil
	}
	s.shelf.touch(set.Name, now)
	set.Requested = r.Packages
	return set, true, s.o.Store.AddPackages(ctx, r.RunID, r.Epoch, set)
}

// Recall notes a set with a run, as another one had it for the same request: one of
// those that it had. ok is false where it had none for that, or it is not there any more.
// Codes: those of Store.AddPackages.
func (s *Service) Recall(ctx context.Context, r Request, had []workbench.PackageSet) (set workbench.PackageSet, ok bool, err error) {
	s.keeping.RLock()
	defer s.keeping.RUnlock()
	name, err := s.had(ctx, r, had)
	if err != nil || name == "" {
		return workbench.PackageSet{}, false, err
	}
	set, err = s.shelf.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return workbench.PackageSet{}, false, nil
	}
	if err != nil {
		return set, false, err
	}
	s.shelf.touch(name, s.o.Clock())
	set.Requested = r.Packages
	return set, true, s.o.Store.AddPackages(ctx, r.RunID, r.Epoch, set)
}

// had names the set that a request meant for who had these: the one that was noted for
// it, or, where two requests meant the same set, the one that it means now.
func (s *Service) had(ctx context.Context, r Request, had []workbench.PackageSet) (string, error) {
	for _, set := range had {
		if set.Manager == r.Manager && slices.Equal(set.Requested, r.Packages) {
			return set.Name, nil
		}
	}
	key, err := s.key(ctx, r.TenantID, "request", r.ImageID, string(r.Manager), r.Packages)
	if err != nil {
		return "", err
	}
	now, _, ok := s.shelf.find(key)
	if !ok || !slices.ContainsFunc(had, func(set workbench.PackageSet) bool { return set.Name == now.Name }) {
		return "", nil
	}
	return now.Name, nil
}

// wait has the set installed, by whoever asked first.
func (s *Service) wait(ctx context.Context, key string, r Request) error {
	s.mu.Lock()
	b := s.under[key]
	if b == nil && s.ctx.Err() == nil {
		b = &building{done: make(chan struct{})}
		s.under[key] = b
		s.work.Go(func() {
			b.err = s.make(key, r)
			s.mu.Lock()
			delete(s.under, key)
			s.mu.Unlock()
			close(b.done)
		})
	}
	s.mu.Unlock()
	if b == nil {
		return errClosing()
	}
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return workbench.E(workbench.CodeCancelled, "the run ended before the packages were installed").
			WithHint("they are installed all the same: ask again, in a run with more time").Caused(ctx.Err())
	}
}

func errClosing() error {
	return workbench.E(workbench.CodeUnavailable, "the server is shutting down").WithHint("try again shortly")
}

// make installs a set and puts it on the shelf.
func (s *Service) make(key string, r Request) error {
	soon, over := context.WithTimeout(s.ctx, buildWithin)
	defer over()
	if s.places.Acquire(soon, r.TenantID) != nil {
		if s.ctx.Err() != nil {
			return errClosing()
		}
		return workbench.E(workbench.CodeCapacity, "too many packages are being installed").WithHint("try again in a minute")
	}
	defer s.places.Release(r.TenantID)
	ctx, cancel := context.WithTimeout(s.ctx, buildWithin)
	defer cancel()
	began := time.Now()
	tmp, err := s.shelf.begin()
	if err != nil {
		return workbench.E(workbench.CodeUnavailable, "there is no room to install packages").Caused(err)
	}
	defer tmp.abandon()
	lock, size, err := s.build(ctx, r, tmp)
	switch {
	case err == nil:
	case s.ctx.Err() != nil:
		return errClosing()
	case ctx.Err() != nil:
		return tooSlow()
	default:
		return err
	}
	set := workbench.PackageSet{Manager: r.Manager, Requested: r.Packages, Lock: lock, Bytes: size}
	if set.Name, err = s.key(ctx, r.TenantID, "set", r.ImageID, string(r.Manager), lock); err != nil {
		return err
	}
	if err := s.shelf.put(tmp, key, set, s.o.Clock()); err != nil {
		return workbench.E(workbench.CodeUnavailable, "the installed packages cannot be kept").Caused(err)
	}
	s.o.Log.Info("packages installed", "manager", r.Manager, "packages", len(lock), "bytes", size, "took", time.Since(began).Round(time.Millisecond).String())
	s.Sweep(ctx)
	return nil
}

// key is a name that only the tenant can know.
func (s *Service) key(ctx context.Context, tenantID, kind, imageID, manager string, what any) (string, error) {
	raw, err := json.Marshal([]any{kind, imageID, manager, what})
	if err != nil {
		return "", err
	}
	id, err := s.o.Keys.ContentID(ctx, tenantID, sha256.Sum256(raw))
	return strings.TrimPrefix(id, "c_"), err
}

// Sweep removes sets that no session has, those first that were not asked for the
// longest, until the others take no more than they may.
func (s *Service) Sweep(ctx context.Context) {
	s.keeping.Lock()
	defer s.keeping.Unlock()
	used, err := s.o.Store.PackagesInUse(ctx)
	if err != nil {
		s.o.Log.Warn("sets of packages are not swept", "err", err)
		return
	}
	since := s.o.Clock().Add(-settling)
	idle := slices.DeleteFunc(s.shelf.all(), func(k kept) bool { return used[k.set.Name] || k.used.After(since) })
	slices.SortFunc(idle, func(a, b kept) int { return b.used.Compare(a.used) })
	room := s.o.CacheBytes
	for _, k := range idle {
		if room -= k.set.Bytes; room >= 0 {
			continue
		}
		if err := s.shelf.remove(k.set.Name); err != nil {
			s.o.Log.Warn("a set of packages is not removed", "set", k.set.Name, "err", err)
		}
	}
	if err := s.shelf.forget(); err != nil {
		s.o.Log.Warn("what was asked for of packages is not swept", "err", err)
	}
}
