package storetest

import (
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
)

func (w *world) key(name string) workbench.Key {
	return workbench.Key{ID: workbench.NewID(workbench.KindKey), ProjectID: w.project.ID, Kind: workbench.KeyDirect, Name: name, TenantID: w.ann.TenantID,
		UserID: w.ann.UserID, Scopes: []workbench.Scope{workbench.ScopeExecute}, CreatedAt: w.now, SecretHash: []byte("hash of " + name + w.project.ID)}
}

func testIdentity(t *testing.T, open Open) {
	t.Run("names are made once, also in a race", func(t *testing.T) {
		w := mustWorld(t, open)
		var mu sync.Mutex
		tenants, users := map[string]bool{}, map[string]bool{}
		for _, err := range together(20, func(int) error {
			tn, err := w.EnsureTenant(ctx(t), w.project.ID, "raced")
			if err != nil {
				return err
			}
			u, err := w.EnsureUser(ctx(t), w.project.ID, tn.ID, "raced")
			mu.Lock()
			defer mu.Unlock()
			tenants[tn.ID], users[u.ID] = true, true
			return err
		}) {
			want(t, err, "")
		}
		equal(t, "tenants", len(tenants), 1)
		equal(t, "users", len(users), 1)
	})
	t.Run("a user or group of one name in two tenants is two", func(t *testing.T) {
		w := mustWorld(t, open)
		other := w.mustDirect("globex", "ann")
		equal(t, "apart", other.UserID != w.ann.UserID, true)
		a, err := w.EnsureGroup(ctx(t), w.project.ID, w.ann.TenantID, "sales")
		want(t, err, "")
		b, err := w.EnsureGroup(ctx(t), w.project.ID, other.TenantID, "sales")
		want(t, err, "")
		again, err := w.EnsureGroup(ctx(t), w.project.ID, w.ann.TenantID, "sales")
		want(t, err, "")
		equal(t, "apart", a.ID != b.ID, true)
		equal(t, "again", again.ID, a.ID)
		u, err := w.User(ctx(t), w.ann.UserID)
		want(t, err, "")
		equal(t, "user", u.Name, "ann")
		tn, err := w.Tenant(ctx(t), w.ann.TenantID)
		want(t, err, "")
		equal(t, "tenant", tn.Name, "acme")
		_, err = w.Tenant(ctx(t), "ten_none")
		want(t, err, workbench.CodeNotFound)
		_, err = w.User(ctx(t), "usr_none")
		want(t, err, workbench.CodeNotFound)
	})
	t.Run("keys", func(t *testing.T) { testKeys(t, open) })
	t.Run("the last admin key stays", func(t *testing.T) { testLastAdminKey(t, open) })
	t.Run("the first tenant key wins a race", func(t *testing.T) {
		w := mustWorld(t, open)
		_, _, err := w.TenantKey(ctx(t), w.tenant.ID)
		want(t, err, workbench.CodeNotFound)
		var mu sync.Mutex
		winners := map[string]bool{}
		for _, err := range together(10, func(i int) error {
			id, wrapped, err := w.PutTenantKey(ctx(t), w.tenant.ID, "tk"+string(rune('a'+i)), []byte{byte(i)})
			mu.Lock()
			defer mu.Unlock()
			winners[id+string(wrapped)] = true
			return err
		}) {
			want(t, err, "")
		}
		equal(t, "winners", len(winners), 1)
		id, wrapped, err := w.TenantKey(ctx(t), w.tenant.ID)
		want(t, err, "")
		equal(t, "the winner stays", winners[id+string(wrapped)], true)
		tenant, byID, err := w.TenantKeyByID(ctx(t), id)
		want(t, err, "")
		equal(t, "tenant", tenant, w.tenant.ID)
		same(t, "wrapped", byID, wrapped)
	})
}

func testKeys(t *testing.T, open Open) {
	w := mustWorld(t, open)
	k := w.key("ci")
	expires := w.now.Add(time.Hour)
	k.ExpiresAt, k.SessionID, k.Tenants = &expires, "ses_x", []string{"acme"}
	want(t, w.CreateKey(ctx(t), k), "")
	want(t, w.CreateKey(ctx(t), k), workbench.CodeConflict)
	read, err := w.KeyByHash(ctx(t), k.SecretHash)
	want(t, err, "")
	equal(t, "id", read.ID, k.ID)
	equal(t, "scope", read.Scopes[0], workbench.ScopeExecute)
	equal(t, "tenants", read.Tenants[0], "acme")
	equal(t, "expires", *read.ExpiresAt, expires)
	equal(t, "not used yet", read.LastUsedAt == nil, true)
	_, err = w.KeyByHash(ctx(t), []byte("nothing"))
	want(t, err, workbench.CodeNotFound)

	want(t, w.TouchKey(ctx(t), k.ID, w.now), "")
	want(t, w.TouchKey(ctx(t), k.ID, w.now.Add(30*time.Second)), "")
	read, err = w.KeyByHash(ctx(t), k.SecretHash)
	want(t, err, "")
	equal(t, "a use within the minute costs no write", *read.LastUsedAt, w.now)
	want(t, w.TouchKey(ctx(t), k.ID, w.now.Add(61*time.Second)), "")
	read, err = w.KeyByHash(ctx(t), k.SecretHash)
	want(t, err, "")
	equal(t, "last use", *read.LastUsedAt, w.now.Add(61*time.Second))

	n, err := w.CountKeys(ctx(t), workbench.KeyAdmin)
	want(t, err, "")
	equal(t, "admin keys", n, 0)
	n, err = w.CountKeys(ctx(t), workbench.KeyDirect)
	want(t, err, "")
	equal(t, "direct keys", n, 1)

	revoked, err := w.RevokeKey(ctx(t), w.admin(), k.ID, w.now, false)
	want(t, err, "")
	equal(t, "revoked", *revoked.RevokedAt, w.now)
	again, err := w.RevokeKey(ctx(t), w.admin(), k.ID, w.now.Add(time.Hour), false)
	want(t, err, "")
	equal(t, "the first revocation stays", *again.RevokedAt, w.now)
	_, err = w.RevokeKey(ctx(t), w.admin(), "key_none", w.now, false)
	want(t, err, workbench.CodeNotFound)
}

func testLastAdminKey(t *testing.T, open Open) {
	w := mustWorld(t, open)
	admin := func(name string, change func(*workbench.Key)) workbench.Key {
		k := w.key(name)
		k.Kind, k.TenantID, k.UserID, k.Scopes = workbench.KeyAdmin, "", "", []workbench.Scope{workbench.ScopeManage, workbench.ScopeRead}
		if change != nil {
			change(&k)
		}
		want(t, w.CreateKey(ctx(t), k), "")
		return k
	}
	past := w.now.Add(-time.Hour)
	one, two := admin("one", nil), admin("two", nil)
	reader := admin("reader", func(k *workbench.Key) { k.Scopes = []workbench.Scope{workbench.ScopeRead} })
	admin("expired", func(k *workbench.Key) { k.ExpiresAt = &past })
	elsewhere, err := w.EnsureProject(ctx(t), "elsewhere")
	want(t, err, "")
	other := w.key("other project")
	other.TenantID, other.UserID = "", ""
	other.ProjectID, other.Kind, other.Scopes = elsewhere.ID, workbench.KeyAdmin, one.Scopes
	want(t, w.CreateKey(ctx(t), other), "")

	// Two end each other's key at the same time: one of them stays.
	refused := 0
	for _, err := range together(2, func(i int) error {
		_, err := w.RevokeKey(ctx(t), w.admin(), []string{one.ID, two.ID}[i], w.now, false)
		return err
	}) {
		if err != nil {
			want(t, err, workbench.CodeConflict)
			refused++
		}
	}
	equal(t, "refused", refused, 1)
	_, err = w.RevokeKey(ctx(t), w.admin(), reader.ID, w.now, false)
	want(t, err, "") // it could not manage
	for _, id := range []string{one.ID, two.ID} {
		k, err := w.RevokeKey(ctx(t), w.admin(), id, w.now, true)
		want(t, err, "")
		equal(t, "revoked with force", k.RevokedAt != nil, true)
	}
}
