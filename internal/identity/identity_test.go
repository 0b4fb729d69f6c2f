package identity_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/identity"
	"github.com/workbenchdev/workbench/internal/store"
)

// watched counts what reaches the store.
type watched struct {
	*store.DB
	mu      sync.Mutex
	ensured int
	touched int
	lookups [][]byte
}

func (w *watched) EnsureTenant(ctx context.Context, projectID, name string) (workbench.Named, error) {
	w.mu.Lock()
	w.ensured++
	w.mu.Unlock()
	return w.DB.EnsureTenant(ctx, projectID, name)
}

func (w *watched) TouchKey(ctx context.Context, id string, at time.Time) error {
	w.mu.Lock()
	w.touched++
	w.mu.Unlock()
	return w.DB.TouchKey(ctx, id, at)
}

func (w *watched) KeyByHash(ctx context.Context, hash []byte) (workbench.Key, error) {
	w.mu.Lock()
	w.lookups = append(w.lookups, hash)
	w.mu.Unlock()
	return w.DB.KeyByHash(ctx, hash)
}

type fixture struct {
	t    *testing.T
	ids  *identity.Service
	db   *watched
	file string
	now  time.Time
}

func mustFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, file: filepath.Join(t.TempDir(), "i.db"), now: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)}
	db, err := store.Open(t.Context(), "sqlite:"+f.file, store.Options{Clock: func() time.Time { return f.now }})
	if err != nil {
		t.Fatalf("opening the store: %v", err)
	}
	t.Cleanup(func() { _ = db.Close() })
	f.db = &watched{DB: db}
	f.ids = identity.New(f.db, func() time.Time { return f.now })
	return f
}

func (f *fixture) mustKey(r identity.KeyRequest) (workbench.Key, string) {
	f.t.Helper()
	key, secret, err := f.ids.CreateKey(f.t.Context(), workbench.SystemPrincipal(), r)
	if err != nil {
		f.t.Fatalf("creating a key: %v", err)
	}
	return key, secret
}

func (f *fixture) auth(secret string, names ...string) (workbench.Principal, error) {
	names = append(names, "", "", "")
	return f.ids.Authenticate(f.t.Context(), secret, names[0], names[1], names[2], "192.0.2.1", "req_x")
}

func TestFirstStart(t *testing.T) {
	f := mustFixture(t)
	secret, created, err := f.ids.Bootstrap(t.Context())
	if err != nil || !created || !strings.HasPrefix(secret, "wbk_a_") {
		t.Fatalf("first start: %q, %v, %v", secret, created, err)
	}
	if again, created, err := f.ids.Bootstrap(t.Context()); err != nil || created || again != "" {
		t.Errorf("second start: %q, %v, %v", again, created, err)
	}
	p, err := f.auth(secret)
	if err != nil || !p.Admin() || !p.Has(workbench.ScopeManage) || !p.Has(workbench.ScopeRead) || p.Has(workbench.ScopeExecute) || p.Contents {
		t.Errorf("the first key is %+v (err %v)", p, err)
	}
}

// TestKeysOfThisProcessAreNotListed: they work, and are in no database.
func TestKeysOfThisProcessAreNotListed(t *testing.T) {
	f := mustFixture(t)
	first, _, err := f.ids.Bootstrap(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	local, err := f.ids.LocalKey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	admin, err := f.ids.LocalAdminKey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if p, err := f.auth(local); err != nil || p.KeyKind != workbench.KeyDirect || p.UserID == "" || !p.Has(workbench.ScopeExecute) {
		t.Errorf("a local key acts as %+v (err %v)", p, err)
	}
	if p, err := f.auth(admin); err != nil || !p.Admin() || !p.Has(workbench.ScopeManage) {
		t.Errorf("a local admin key acts as %+v (err %v)", p, err)
	}
	p, err := f.auth(first)
	if err != nil {
		t.Fatal(err)
	}
	list, err := f.ids.ListKeys(t.Context(), p, workbench.Page{Limit: 10})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != "first admin key" {
		t.Errorf("listed: %+v (err %v)", list.Items, err)
	}
	another := identity.New(f.db, nil)
	if _, err := another.Authenticate(t.Context(), local, "", "", "", "", ""); !workbench.HasCode(err, workbench.CodeUnauthenticated) {
		t.Errorf("another process with the same database: %v, want unauthenticated", err)
	}
	for range 14 {
		if _, err := f.ids.LocalKey(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.ids.LocalKey(t.Context()); !workbench.HasCode(err, workbench.CodeRateLimited) {
		t.Errorf("the 17th: %v, want rate_limited", err)
	}
}

// TestSecretsAreNotKept: no byte of a secret is in the database's files, and
// what is looked up is its hash.
func TestSecretsAreNotKept(t *testing.T) {
	f := mustFixture(t)
	key, secret := f.mustKey(identity.KeyRequest{Kind: workbench.KeyDirect, Tenant: "acme", User: "ada"})
	if len(secret) != 58 || !strings.HasPrefix(secret, "wbk_d_") {
		t.Errorf("a secret has the form %q", secret)
	}
	if _, err := f.auth(secret); err != nil {
		t.Fatalf("authenticating: %v", err)
	}
	want := sha256.Sum256([]byte(secret))
	if !bytes.Equal(f.db.lookups[0], want[:]) {
		t.Error("the key is not looked up by the SHA-256 of its secret")
	}
	_ = f.db.Close()
	files, _ := filepath.Glob(f.file + "*")
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(raw, []byte(secret[6:30])) {
			t.Errorf("%s holds the secret of %s", filepath.Base(file), key.ID)
		}
	}
	if len(files) == 0 {
		t.Error("no database file was looked at")
	}
}

func TestSecretsDiffer(t *testing.T) {
	f := mustFixture(t)
	seen := map[string]bool{}
	for range 50 {
		_, secret := f.mustKey(identity.KeyRequest{Kind: workbench.KeyEmbedded})
		if seen[secret] {
			t.Fatal("a secret came twice")
		}
		seen[secret] = true
	}
}

func TestLastUseIsWrittenOnceAMinute(t *testing.T) {
	f := mustFixture(t)
	key, secret := f.mustKey(identity.KeyRequest{Kind: workbench.KeyDirect, Tenant: "acme", User: "ada"})
	used := func() string {
		list, err := f.ids.ListKeys(t.Context(), workbench.SystemPrincipal(), workbench.Page{})
		if err != nil || len(list.Items) != 1 || list.Items[0].ID != key.ID {
			t.Fatalf("listing: %+v, %v", list, err)
		}
		if list.Items[0].LastUsedAt == nil {
			return "never"
		}
		return list.Items[0].LastUsedAt.Format(time.TimeOnly)
	}
	if used() != "never" {
		t.Errorf("last use before the first: %s", used())
	}
	for _, step := range []struct {
		after   time.Duration
		want    string
		touched int
	}{{0, "12:00:00", 1}, {time.Second, "12:00:00", 1}, {58 * time.Second, "12:00:00", 1}, {time.Second, "12:01:00", 2}} {
		f.now = f.now.Add(step.after)
		if _, err := f.auth(secret); err != nil {
			t.Fatal(err)
		}
		if used() != step.want || f.db.touched != step.touched {
			t.Errorf("at %s: last use %s, want %s; %d writes, want %d", f.now.Format(time.TimeOnly), used(), step.want, f.db.touched, step.touched)
		}
	}
}

func TestKeysEnd(t *testing.T) {
	f := mustFixture(t)
	ends := f.now.Add(time.Hour)
	_, expiring := f.mustKey(identity.KeyRequest{Kind: workbench.KeyDirect, Tenant: "acme", User: "ada", ExpiresAt: &ends})
	key, secret := f.mustKey(identity.KeyRequest{Kind: workbench.KeyDirect, Tenant: "acme", User: "ada"})
	if _, err := f.auth(expiring); err != nil {
		t.Errorf("before its end: %v", err)
	}
	f.now = ends
	if _, err := f.auth(expiring); !workbench.HasCode(err, workbench.CodeUnauthenticated) {
		t.Errorf("at its end: %v", err)
	}
	if _, err := f.ids.RevokeKey(t.Context(), workbench.SystemPrincipal(), key.ID, false); err != nil {
		t.Fatal(err)
	}
	p, err := f.auth(secret)
	if !workbench.HasCode(err, workbench.CodeUnauthenticated) {
		t.Errorf("revoked: %v", err)
	}
	if len(p.Scopes) != 0 || p.UserID != "" || p.KeyID != key.ID {
		t.Errorf("a dead key's principal is %+v: it may name the key and nothing else", p)
	}
}

// TestEmbeddedKeys: names become ids on first use, the same ones later, and
// different ones in different tenants.
func TestEmbeddedKeys(t *testing.T) {
	f := mustFixture(t)
	_, secret := f.mustKey(identity.KeyRequest{Kind: workbench.KeyEmbedded})
	one, err := f.auth(secret, "acme", "ada", "staff")
	if err != nil || one.TenantID == "" || one.UserID == "" || one.GroupID == "" {
		t.Fatalf("first use: %+v, %v", one, err)
	}
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() {
			if p, err := f.auth(secret, "acme", "ada", "staff"); err != nil || p.UserID != one.UserID || p.TenantID != one.TenantID || p.GroupID != one.GroupID {
				t.Errorf("again: %+v, %v", p, err)
			}
		})
	}
	wait.Wait()
	if f.db.ensured != 1 {
		t.Errorf("the tenant was looked up %d times, want once", f.db.ensured)
	}
	other, err := f.auth(secret, "globex", "ada")
	if err != nil || other.TenantID == one.TenantID || other.UserID == one.UserID || other.GroupID != "" {
		t.Errorf("another tenant's ada: %+v, %v", other, err)
	}
	if p, err := f.auth(secret, "acme", "Ada"); err != nil || p.UserID == one.UserID {
		t.Errorf("names are opaque: Ada is not ada: %+v, %v", p, err)
	}
}

func TestDirectKeysActForThemselves(t *testing.T) {
	f := mustFixture(t)
	_, secret := f.mustKey(identity.KeyRequest{Kind: workbench.KeyDirect, Tenant: "acme", User: "ada"})
	for _, c := range []struct {
		names []string
		code  workbench.Code
	}{
		{nil, ""}, {[]string{"acme"}, ""}, {[]string{"acme", "ada"}, ""}, {[]string{"", "ada"}, ""},
		{[]string{"globex"}, workbench.CodeForbidden}, {[]string{"acme", "bob"}, workbench.CodeForbidden}, {[]string{"", "", "staff"}, workbench.CodeForbidden},
		{[]string{"acme\n"}, workbench.CodeInvalidRequest}, {[]string{strings.Repeat("a", 129)}, workbench.CodeInvalidRequest},
	} {
		_, err := f.auth(secret, c.names...)
		if workbench.CodeOf(err) != c.code {
			t.Errorf("%q: %v, want code %q", c.names, err, c.code)
		}
		if e := workbench.AsError(err); e != nil && strings.Contains(e.Detail+e.Hint, "globex") {
			t.Errorf("%q: the answer repeats the name", c.names)
		}
	}
}

// TestOnlyAdminsManage: the service itself refuses, whatever the face checks.
func TestOnlyAdminsManage(t *testing.T) {
	f := mustFixture(t)
	_, secret := f.mustKey(identity.KeyRequest{Kind: workbench.KeyDirect, Tenant: "acme", User: "ada"})
	ada, err := f.auth(secret)
	if err != nil {
		t.Fatal(err)
	}
	forged := ada
	forged.Scopes = []workbench.Scope{workbench.ScopeManage}
	for _, p := range []workbench.Principal{ada, forged, {}} {
		_, _, err1 := f.ids.CreateKey(t.Context(), p, identity.KeyRequest{Kind: workbench.KeyAdmin})
		_, err2 := f.ids.ListKeys(t.Context(), p, workbench.Page{})
		_, err3 := f.ids.RevokeKey(t.Context(), p, ada.KeyID, false)
		for _, err := range []error{err1, err2, err3} {
			if !workbench.HasCode(err, workbench.CodeForbidden) {
				t.Errorf("%s: %v", p.KeyKind, err)
			}
		}
	}
	if _, err := f.auth(secret); err != nil {
		t.Errorf("the key was revoked by who may not: %v", err)
	}
}

// TestStoreFailureIsNoRefusal: a database that is gone is not a wrong key.
func TestStoreFailureIsNoRefusal(t *testing.T) {
	f := mustFixture(t)
	_, secret := f.mustKey(identity.KeyRequest{Kind: workbench.KeyDirect, Tenant: "acme", User: "ada"})
	_ = f.db.Close()
	_, err := f.auth(secret)
	if err == nil || workbench.HasCode(err, workbench.CodeUnauthenticated) || errors.Is(err, context.Canceled) {
		t.Errorf("a closed database gives %v", err)
	}
}

// fullDisk is a database that can be read and not written.
type fullDisk struct{ identity.Store }

// TouchKey implements identity.Store.
func (fullDisk) TouchKey(context.Context, string, time.Time) error {
	return workbench.E(workbench.CodeUnavailable, "the database's disk is full")
}

// TestFullDiskRefusesNobody: a last use that cannot be noted is no reason to
// keep a caller from reading.
func TestFullDiskRefusesNobody(t *testing.T) {
	f := mustFixture(t)
	_, secret := f.mustKey(identity.KeyRequest{Kind: workbench.KeyDirect, Tenant: "acme", User: "ada"})
	s := identity.New(fullDisk{f.db}, func() time.Time { return f.now })
	p, err := s.Authenticate(t.Context(), secret, "", "", "", "", "req_1")
	if err != nil || p.UserID == "" {
		t.Errorf("the principal is %+v, %v", p, err)
	}
}
