package api_test

import (
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/api"
	"github.com/workbenchdev/workbench/internal/govern"
	"github.com/workbenchdev/workbench/internal/identity"
)

// A user's key with manage has that user's connections, and nobody else's.
func TestConnectionsOfOnesOwn(t *testing.T) {
	const path = "/v1/workbench/connections"
	w := MustWorld(t)
	_, admin := w.MustKey(identity.KeyRequest{Kind: workbench.KeyAdmin})
	manages := func(r identity.KeyRequest) string {
		r.Scopes = []workbench.Scope{workbench.ScopeManage}
		_, secret := w.MustKey(r)
		return secret
	}
	ada := manages(identity.KeyRequest{Kind: workbench.KeyDirect, Tenant: "acme", User: "ada"})
	bob := manages(identity.KeyRequest{Kind: workbench.KeyDirect, Tenant: "acme", User: "bob"})
	embedded := manages(identity.KeyRequest{Kind: workbench.KeyEmbedded})
	const bearer = `"provider":"crm","auth":"bearer","credentials":{"token":"a-token"}`

	own := w.Do("POST", path, ada, `{"alias":"own",`+bearer+`}`).Want(201).Text("id")
	if got := w.Do("GET", path+"/"+own, admin, "").Want(200); got.Text("tenant") == "" || got.Text("user") == "" {
		t.Errorf("the connection is nobody's: %s", got.Body)
	}
	tenants := w.Do("POST", path, admin, `{"alias":"tenants","tenant":"acme",`+bearer+`}`).Want(201).Text("id")
	projects := w.Do("POST", path, admin, `{"alias":"projects",`+bearer+`}`).Want(201).Text("id")
	given := w.Do("POST", path, admin, `{"alias":"given","tenant":"acme","user":"ada","provider":"crm","auth":"oauth2_client_credentials",
		"credentials":{"tokenUrl":"https://id.example.com/t","clientId":"client","clientSecret":"a-secret"}}`).Want(201).Text("id")

	t.Run("the owner's key has them", func(t *testing.T) {
		if got := w.Do("GET", path, ada, "").Want(200); strings.Count(string(got.Body), `"con_`) != 2 || !strings.Contains(string(got.Body), own) || !strings.Contains(string(got.Body), given) {
			t.Errorf("listed %s", got.Body)
		}
		w.Do("POST", path+"/"+own+"/rotate", ada, `{"credentials":{"token":"another"}}`).Want(200)
		w.Do("GET", path+"/"+own, embedded, "", asAda...).Want(200)
	})
	t.Run("nobody else's key does", func(t *testing.T) {
		for _, id := range []string{own, tenants, projects} {
			w.Do("GET", path+"/"+id, bob, "").Want(404)
			w.Do("POST", path+"/"+id+"/rotate", bob, `{"credentials":{"token":"another"}}`).Want(404)
			w.Do("DELETE", path+"/"+id, bob, "").Want(404)
			w.Do("DELETE", path+"/"+id, embedded, "", asZoe...).Want(404)
		}
		w.Do("DELETE", path+"/"+projects, ada, "").Want(404)
	})
	t.Run("for nobody else", func(t *testing.T) {
		w.Do("POST", path, ada, `{"alias":"more","tenant":"acme","user":"bob",`+bearer+`}`).Want(403)
		w.Do("POST", path, w.Direct("", "acme", "ada"), `{"alias":"more",`+bearer+`}`).Want(403)
	})
	t.Run("the server asks no token endpoint of a user's choice", func(t *testing.T) {
		const endpoint = `"credentials":{"tokenUrl":"https://10.0.0.1/","clientId":"client","clientSecret":"a-secret"}}`
		w.Do("POST", path, ada, `{"alias":"more","provider":"crm","auth":"oauth2_client_credentials",`+endpoint).Want(403)
		w.Do("POST", path+"/"+given+"/rotate", ada, `{`+endpoint).Want(403)
	})
	t.Run("and nothing else", func(t *testing.T) {
		for _, c := range [][3]string{{"POST", "/v1/workbench/keys", `{"kind":"admin"}`}, {"PUT", "/v1/workbench/apps/crm", appOfStage},
			{"GET", "/v1/workbench/rules", ""}, {"GET", "/v1/workbench/audit", ""}} {
			w.Do(c[0], c[1], ada, c[2]).Want(403)
		}
	})
	w.Do("DELETE", path+"/"+own, ada, "").Want(200)
}

// Rules are asked about the very arguments that are sent, and about a call that
// was made as its run made it.
func TestExplainedAsItIsCalled(t *testing.T) {
	s := mustStage(t)
	s.set(t)
	admin := s.secrets["admin"]
	explain := func(body string) string {
		return s.w.Do("POST", "/v1/workbench/rules/explain", admin, body).Want(200).Text("outcome")
	}
	exact := `,"rules":[{"name":"r","text":"permit(principal, action == Action::\"call\", resource) when { context.args.id == 9007199254740993 };"}]}`
	if got := explain(`{"session":"` + s.session + `","tool":"crm.lookup@1","arguments":{"id":9007199254740993}` + exact); got != "allowed" {
		t.Errorf("the number that is named: %s", got)
	}
	if got := explain(`{"session":"` + s.session + `","tool":"crm.lookup@1","arguments":{"id":9007199254740992}` + exact); got != "denied" {
		t.Errorf("its neighbour: %s", got)
	}
	if x := s.w.Do("POST", "/v1/workbench/rules/explain", admin, `{"session":"`+s.session+`","tool":"crm.lookup@1","arguments":[1]}`).Want(400); x.Text("field") != "arguments" {
		t.Errorf("a list: %s", x.Body)
	}

	id := s.w.Do("POST", "/v1/workbench/sessions/"+s.session+"/runs", s.secrets["owner"], `{"language":"bash","code":"true"}`).Want(202).Text("id")
	r := s.w.engine.MustStart(t, id)
	session, err := s.w.db.Session(t.Context(), workbench.SystemPrincipal(), s.session)
	if err != nil {
		t.Fatal(err)
	}
	made, _ := s.w.parts.tools.Call(t.Context(), govern.Caller{Session: session, Run: r.run, Epoch: r.epoch}, govern.CallRequest{Tool: "crm.lookup", Version: "1"})
	r.End()
	bash := `,"rules":[{"name":"r","text":"permit(principal, action == Action::\"call\", resource) when { context.run.language == \"bash\" };"}]}`
	if got := explain(`{"receipt":"` + made.ID + `"` + bash); got != "allowed" {
		t.Errorf("a call of a run in Bash: %s", got)
	}
}

// An app may bring an OpenAPI document that is larger and deeper than other
// bodies are, up to a bound.
func TestBodyOfAnApp(t *testing.T) {
	w := MustWorld(t)
	_, admin := w.MustKey(identity.KeyRequest{Kind: workbench.KeyAdmin})
	app := func(deep int, pad string) string {
		// Four levels are around x-deep: document, paths, path, operation.
		return `{"kind":"openapi","config":{"url":"http://127.0.0.1:1","document":{"openapi":"3.1.0","info":{"title":"t","version":"1","description":"` + pad + `"},
			"paths":{"/x":{"get":{"operationId":"get","responses":{"200":{"description":"ok"}},"x-deep":` + strings.Repeat("[", deep) + strings.Repeat("]", deep) + `}}}}}}`
	}
	put := func(body string) exchange { return w.Do("PUT", "/v1/workbench/apps/pets", admin, body) }
	if got := put(app(100, "")).Want(200); !strings.Contains(string(got.Body), "pets.get") {
		t.Errorf("imported %s", got.Body)
	}
	put(app(196, "")).Want(200) // with the document's own, 200
	if x := put(app(197, "")).Want(400); x.Text("code") != "invalid_request" || !strings.Contains(x.Text("detail"), "nested deeper than 202") {
		t.Errorf("too deep: %s", x.Body)
	}
	if x := put(app(1, strings.Repeat("x", api.MaxJSONBody))).Want(400); x.Text("code") != "schema_invalid" || x.Text("field") != "config.document" {
		t.Errorf("a document that is too large: %s", x.Body)
	}
	if x := put(app(1, strings.Repeat("x", api.MaxAppBody))).Want(413); x.Text("code") != "body_too_large" || !strings.Contains(x.Text("hint"), "document") {
		t.Errorf("a body that is too large: %s", x.Body)
	}
}
