package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/api"
	"github.com/workbenchdev/workbench/internal/govern"
	"github.com/workbenchdev/workbench/internal/identity"
)

// The callers of the visibility table, in the order of its columns. The things
// asked for belong to ada of acme in the first project.
var callers = []string{
	"owner", "owner, read only", "owner, execute only", "other user", "other tenant", "other project",
	"embedded as owner", "embedded as other", "admin", "admin with contents", "other project's admin",
	"narrowed here", "narrowed elsewhere",
}

// expected is who gets which status, by operation. Callers that are refused
// everywhere (no key, revoked, expired, an embedded key for a tenant it may not
// act for) are not columns: see refusedEverywhere.
var expected = map[string][13]int{
	//                  own  ro   xo   user ten  proj eown eoth adm  admc oadm here else
	"createSession":          {201, 403, 201, 201, 201, 201, 201, 201, 403, 403, 403, 403, 403},
	"listSessions":           {200, 200, 403, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200},
	"getSession":             {200, 200, 403, 404, 404, 404, 200, 404, 200, 200, 404, 200, 404},
	"listRevisions":          {200, 200, 403, 404, 404, 404, 200, 404, 200, 200, 404, 200, 404},
	"configureSession":       {200, 403, 200, 404, 404, 404, 200, 404, 403, 403, 403, 200, 404},
	"restartSession":         {200, 403, 200, 404, 404, 404, 200, 404, 403, 403, 403, 200, 404},
	"closeSession":           {200, 403, 200, 404, 404, 404, 200, 404, 200, 200, 404, 200, 404},
	"streamSessionEvents":    {200, 200, 403, 404, 404, 404, 200, 404, 200, 200, 404, 200, 404},
	"submitRun":              {202, 403, 202, 404, 404, 404, 202, 404, 403, 403, 403, 202, 404},
	"runCode":                {202, 403, 202, 404, 404, 404, 202, 404, 403, 403, 403, 202, 404},
	"bash":                   {202, 403, 202, 404, 404, 404, 202, 404, 403, 403, 403, 202, 404},
	"listRuns":               {200, 200, 403, 404, 404, 404, 200, 404, 200, 200, 404, 200, 404},
	"getRun":                 {200, 200, 403, 404, 404, 404, 200, 404, 200, 200, 404, 200, 404},
	"streamRunEvents":        {200, 200, 403, 404, 404, 404, 200, 404, 403, 200, 404, 200, 404},
	"readRunOutput":          {200, 200, 403, 404, 404, 404, 200, 404, 403, 200, 404, 200, 404},
	"cancelRun":              {200, 403, 200, 404, 404, 404, 200, 404, 200, 200, 404, 200, 404},
	"listRunFiles":           {200, 200, 403, 404, 404, 404, 200, 404, 200, 200, 404, 200, 404},
	"readRunFile":            {200, 200, 403, 404, 404, 404, 200, 404, 403, 200, 404, 200, 404},
	"uploadArtifact":         {201, 403, 201, 404, 404, 404, 201, 404, 403, 403, 403, 201, 404},
	"listArtifacts":          {200, 200, 403, 404, 404, 404, 200, 404, 200, 200, 404, 200, 404},
	"getArtifact":            {200, 200, 403, 404, 404, 404, 200, 404, 200, 200, 404, 200, 404},
	"downloadArtifact":       {200, 200, 403, 404, 404, 404, 200, 404, 403, 200, 404, 200, 404},
	"deleteArtifact":         {200, 403, 200, 404, 404, 404, 200, 404, 200, 200, 404, 200, 404},
	"listCommits":            {200, 200, 403, 404, 404, 404, 200, 404, 200, 200, 404, 200, 404},
	"getCommit":              {200, 200, 403, 404, 404, 404, 200, 404, 200, 200, 404, 200, 404},
	"listCommitTree":         {200, 200, 403, 404, 404, 404, 200, 404, 200, 200, 404, 200, 404},
	"readCommitFile":         {200, 200, 403, 404, 404, 404, 200, 404, 403, 200, 404, 200, 404},
	"downloadCommit":         {200, 200, 403, 404, 404, 404, 200, 404, 403, 200, 404, 200, 404},
	"compareCommit":          {200, 200, 403, 404, 404, 404, 200, 404, 403, 200, 404, 200, 404},
	"compareRun":             {200, 200, 403, 404, 404, 404, 200, 404, 403, 200, 404, 200, 404},
	"rollBackSession":        {200, 403, 200, 404, 404, 404, 200, 404, 403, 403, 403, 200, 404},
	"forkSession":            {201, 403, 201, 404, 404, 404, 201, 404, 403, 403, 403, 403, 404},
	"listSeries":             {200, 200, 403, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200},
	"getUsage":               {200, 200, 403, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200},
	"getSeries":              {200, 200, 403, 404, 404, 404, 200, 404, 200, 200, 404, 200, 404},
	"deleteSeries":           {204, 403, 204, 404, 404, 404, 204, 404, 204, 204, 404, 204, 404},
	"listSeriesVersions":     {200, 200, 403, 404, 404, 404, 200, 404, 200, 200, 404, 200, 404},
	"getSeriesVersion":       {200, 200, 403, 404, 404, 404, 200, 404, 200, 200, 404, 200, 404},
	"replaySeries":           {202, 403, 202, 404, 404, 404, 202, 404, 403, 403, 403, 403, 404},
	"listReplays":            {200, 200, 403, 404, 404, 404, 200, 404, 200, 200, 404, 200, 404},
	"getReplay":              {200, 200, 403, 404, 404, 404, 200, 404, 200, 200, 404, 404, 404}, // it has a session of its own
	"publishSeries":          {200, 403, 200, 404, 404, 404, 200, 404, 403, 403, 403, 200, 404},
	"rollBackSeries":         {409, 403, 409, 404, 404, 404, 409, 404, 403, 403, 403, 409, 404}, // nothing was published before
	"runSeries":              {202, 403, 202, 404, 404, 404, 202, 404, 403, 403, 403, 403, 404},
	"listWorkspace":          {200, 200, 403, 404, 404, 404, 200, 404, 200, 200, 404, 200, 404},
	"readWorkspaceFile":      {200, 200, 403, 404, 404, 404, 200, 404, 403, 200, 404, 200, 404},
	"downloadWorkspace":      {200, 200, 403, 404, 404, 404, 200, 404, 403, 200, 404, 200, 404},
	"writeWorkspaceFile":     {200, 403, 200, 404, 404, 404, 200, 404, 403, 403, 403, 200, 404},
	"deleteWorkspaceFile":    {200, 403, 200, 404, 404, 404, 200, 404, 403, 403, 403, 200, 404},
	"moveWorkspaceFile":      {200, 403, 200, 404, 404, 404, 200, 404, 403, 403, 403, 200, 404},
	"makeWorkspaceDirectory": {200, 403, 200, 404, 404, 404, 200, 404, 403, 403, 403, 200, 404},
	"listRuntimeTiers":       {200, 200, 403, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200},
	"createKey":              {403, 403, 403, 403, 403, 403, 403, 403, 201, 201, 201, 403, 403},
	"listKeys":               {403, 403, 403, 403, 403, 403, 403, 403, 200, 200, 200, 403, 403},
	"revokeKey":              {403, 403, 403, 403, 403, 403, 403, 403, 200, 200, 404, 403, 403},
	"listAudit":              {403, 403, 403, 403, 403, 403, 403, 403, 200, 200, 200, 403, 403},
	"putApp":                 {403, 403, 403, 403, 403, 403, 403, 403, 200, 200, 200, 403, 403},
	"importApp":              {403, 403, 403, 403, 403, 403, 403, 403, 200, 200, 404, 403, 403},
	"listApps":               {403, 403, 403, 403, 403, 403, 403, 403, 200, 200, 200, 403, 403},
	"getApp":                 {403, 403, 403, 403, 403, 403, 403, 403, 200, 200, 404, 403, 403},
	"removeApp":              {403, 403, 403, 403, 403, 403, 403, 403, 204, 204, 404, 403, 403},
	"listTools":              {200, 200, 403, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200},
	"createConnection":       {403, 403, 403, 403, 403, 403, 403, 403, 201, 201, 201, 403, 403},
	"listConnections":        {403, 403, 403, 403, 403, 403, 403, 403, 200, 200, 200, 403, 403},
	"getConnection":          {403, 403, 403, 403, 403, 403, 403, 403, 200, 200, 404, 403, 403},
	"rotateConnection":       {403, 403, 403, 403, 403, 403, 403, 403, 200, 200, 404, 403, 403},
	"revokeConnection":       {403, 403, 403, 403, 403, 403, 403, 403, 200, 200, 404, 403, 403},
	"listRules":              {403, 403, 403, 403, 403, 403, 403, 403, 200, 200, 200, 403, 403},
	"changeRules":            {403, 403, 403, 403, 403, 403, 403, 403, 200, 200, 200, 403, 403},
	"checkRules":             {403, 403, 403, 403, 403, 403, 403, 403, 200, 200, 200, 403, 403},
	"explainRules":           {403, 403, 403, 403, 403, 403, 403, 403, 200, 200, 404, 403, 403},
	"listReceipts":           {200, 200, 403, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200},
	"getReceipt":             {200, 200, 403, 404, 404, 404, 200, 404, 200, 200, 404, 200, 404},
	"listApprovals":          {403, 403, 403, 403, 403, 403, 403, 403, 403, 403, 403, 403, 403},
	"approveCall":            {403, 403, 403, 403, 403, 403, 403, 403, 403, 403, 403, 403, 403},
	"denyCall":               {403, 403, 403, 403, 403, 403, 403, 403, 403, 403, 403, 403, 403},
	"listHeldRuns":           {403, 403, 403, 403, 403, 403, 403, 403, 403, 403, 403, 403, 403},
	"approveRun":             {403, 403, 403, 403, 403, 403, 403, 403, 403, 403, 403, 403, 403},
	"denyRun":                {403, 403, 403, 403, 403, 403, 403, 403, 403, 403, 403, 403, 403},
	"exportAudit":            {403, 403, 403, 403, 403, 403, 403, 403, 200, 200, 200, 403, 403},
	"verifyAudit":            {403, 403, 403, 403, 403, 403, 403, 403, 200, 200, 200, 403, 403},
}

// stage is ada's session with everything a route may ask for, and who asks.
type stage struct {
	w                             *world
	session, elsewhere, run, file string
	commit                        string // the session's last
	victim                        string // a key of the first project
	receipt, connection           string
	series, replay                string
	aliases                       int // given so far
	secrets                       map[string]string
	headers                       map[string][]string
	dead                          map[string]string // refused everywhere, 401
	misplaced                     string            // an embedded key limited to globex
	contentOfRun, contentOfFile   string
}

var (
	asAda = []string{identity.TenantHeader, "acme", identity.EndUserHeader, "ada"}
	asZoe = []string{identity.TenantHeader, "acme", identity.EndUserHeader, "zoe"}
)

func mustStage(t *testing.T) *stage { return newStage(t, MustWorld(t)) }

func newStage(t *testing.T, w *world) *stage {
	t.Helper()
	s := &stage{w: w, secrets: map[string]string{}, headers: map[string][]string{"embedded as owner": asAda, "embedded as other": asZoe},
		dead: map[string]string{"no key": "", "not a key": "wbk_d_" + strings.Repeat("0", 52)}, contentOfRun: "CANARY-OUTPUT", contentOfFile: "CANARY-FILE"}
	key := func(r identity.KeyRequest) string { _, secret := w.MustKey(r); return secret }
	ada := identity.KeyRequest{Kind: workbench.KeyDirect, Tenant: "acme", User: "ada"}
	with := func(r identity.KeyRequest, scopes ...workbench.Scope) identity.KeyRequest {
		r.Scopes = scopes
		return r
	}
	s.secrets["owner"] = key(ada)
	s.secrets["owner, read only"] = key(with(ada, workbench.ScopeRead))
	s.secrets["owner, execute only"] = key(with(ada, workbench.ScopeExecute))
	s.secrets["other user"] = w.Direct("", "acme", "bob")
	s.secrets["other tenant"] = w.Direct("", "globex", "ada")
	s.secrets["other project"] = w.Direct("second", "acme", "ada")
	s.secrets["embedded as owner"] = key(identity.KeyRequest{Kind: workbench.KeyEmbedded, Tenants: []string{"acme"}})
	s.secrets["embedded as other"] = key(identity.KeyRequest{Kind: workbench.KeyEmbedded})
	s.secrets["admin"] = key(identity.KeyRequest{Kind: workbench.KeyAdmin})
	s.secrets["admin with contents"] = key(identity.KeyRequest{Kind: workbench.KeyAdmin, Contents: true})
	s.secrets["other project's admin"] = key(identity.KeyRequest{Kind: workbench.KeyAdmin, Contents: true, Project: "second"})
	s.misplaced = key(identity.KeyRequest{Kind: workbench.KeyEmbedded, Tenants: []string{"globex"}})
	revoked, secret := w.MustKey(ada)
	if _, err := w.ids.RevokeKey(t.Context(), workbench.SystemPrincipal(), revoked.ID, false); err != nil {
		t.Fatalf("revoking: %v", err)
	}
	s.dead["revoked"] = secret
	if !w.clock.real {
		ends := w.clock.Now().Add(time.Second)
		expiring := ada
		expiring.ExpiresAt = &ends
		s.dead["expired"] = key(expiring)
		w.clock.Advance(time.Second)
	}
	s.elsewhere = w.MustSession(s.secrets["owner"])
	return s
}

// set puts fresh things on the stage: some routes end what they touch.
func (s *stage) set(t *testing.T) {
	t.Helper()
	owner := s.secrets["owner"]
	s.session = s.w.MustSession(owner)
	s.file = s.w.MustUpload(owner, s.session, "input.txt", s.contentOfFile)
	if s.w.clock.real {
		s.run = s.runForReal(t)
	} else {
		s.run = s.w.MustSubmit(owner, s.session)
		r := s.w.engine.MustStart(t, s.run)
		r.Write(workbench.Stdout, s.contentOfRun)
		r.Show(workbench.Result{Type: workbench.ResultDisplay, Data: map[string]json.RawMessage{"text/plain": json.RawMessage(`"` + s.contentOfRun + `"`)}})
		s.callOf(t, r)
		r.End()
	}
	s.replayed(t)
	s.w.Do("PUT", "/v1/workbench/apps/crm", s.secrets["admin"], appOfStage).Want(200)
	s.aliases++
	s.connection = s.w.Do("POST", "/v1/workbench/connections", s.secrets["admin"],
		fmt.Sprintf(`{"alias":"stage%d","provider":"crm","auth":"bearer","tenant":"acme","user":"ada","credentials":{"token":"%s"}}`, s.aliases, s.contentOfFile)).Want(201).Text("id")
	s.receipt = s.w.Do("GET", "/v1/workbench/receipts?run="+s.run, owner, "").Want(200).Text("items.0.id")
	s.w.Do("POST", "/v1/workbench/sessions/"+s.session+"/contexts", owner, `{"id":"`+contextOfStage+`","language":"bash"}`).Want(201)
	head, _, err := s.w.db.HeadCommit(t.Context(), s.session)
	if err != nil {
		t.Fatalf("head: %v", err)
	}
	s.commit = head.ID
	victim, _ := s.w.MustKey(identity.KeyRequest{Kind: workbench.KeyDirect, Tenant: "acme", User: "ada"})
	s.victim = victim.ID
	for name, session := range map[string]string{"narrowed here": s.session, "narrowed elsewhere": s.elsewhere} {
		_, s.secrets[name] = s.w.MustKey(identity.KeyRequest{Kind: workbench.KeyDirect, Tenant: "acme", User: "ada", SessionID: session})
	}
}

// replayed has the run's version replayed, with a verdict that lets it be published.
func (s *stage) replayed(t *testing.T) {
	t.Helper()
	owner := s.secrets["owner"]
	s.series = s.w.Do("GET", "/v1/workbench/runs/"+s.run, owner, "").Want(200).Text("reusableRun.seriesId")
	s.replay = s.w.Do("POST", "/v1/workbench/series/"+s.series+"/replays", owner, replayOfStage).Want(202).Text("id")
	if s.w.clock.real {
		if x := s.w.Do("GET", "/v1/workbench/replays/"+s.replay+"?waitMs=60000", owner, "").Want(200); x.Text("verdict") != string(workbench.VerdictMatches) {
			t.Fatalf("the replay: %s", x.Body)
		}
		return
	}
	if _, err := s.w.db.Judge(t.Context(), s.replay, workbench.VerdictMatches, nil, s.w.clock.Now()); err != nil {
		t.Fatal(err)
	}
}

const replayOfStage = `{"tools":"recorded"}`

const appOfStage = `{"kind":"http","config":{"url":"http://127.0.0.1:1","endpoints":[{"name":"lookup","method":"GET","path":"/","inputSchema":{"type":"object"}}]}}`

// callOf has the run call a tool that its session does not allow: that leaves a
// receipt too.
func (s *stage) callOf(t *testing.T, r *running) {
	t.Helper()
	session, err := s.w.db.Session(t.Context(), workbench.SystemPrincipal(), s.session)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.w.parts.tools.Call(t.Context(), govern.Caller{Session: session, Run: r.run, Epoch: r.epoch}, govern.CallRequest{Tool: "no.tool"})
	if !workbench.HasCode(err, workbench.CodeToolNotAllowed) {
		t.Fatalf("the call: %v", err)
	}
}

// ask sends the route's request about the things on the stage.
func (s *stage) ask(r api.Route, secret string, headers []string) exchange {
	path := strings.ReplaceAll(r.Pattern, "{id}", map[workbench.IDKind]string{
		workbench.KindSession: s.session, workbench.KindRun: s.run, workbench.KindArtifact: s.file, workbench.KindKey: s.victim, workbench.KindCommit: s.commit,
		workbench.KindReceipt: s.receipt, workbench.KindConnect: s.connection, workbench.KindSeries: s.series, workbench.KindReplay: s.replay}[r.Target])
	path = strings.NewReplacer("{context}", contextOfStage, "{index}", "0", "{version}", "1", "{app}", map[bool]string{true: "made", false: "crm"}[r.ID == "putApp"]).Replace(path)
	body := map[string]string{
		"createContext": `{"language":"bash"}`,
		"submitRun":     `{"language":"bash","code":"ls"}`, "runCode": `{"sessionId":"` + s.session + `","language":"bash","code":"ls"}`,
		"bash": `{"sessionId":"` + s.session + `","command":"ls"}`, "configureSession": `{"agent":"x"}`,
		"rollBackSession": `{"commit":"` + s.commit + `"}`, "forkSession": `{}`, "moveWorkspaceFile": `{"from":"out/made.txt","to":"moved.txt"}`, "makeWorkspaceDirectory": `{"path":"new"}`,
		"replaySeries": replayOfStage, "publishSeries": `{"version":1,"expectedPublishedVersion":0}`, "rollBackSeries": `{"expectedPublishedVersion":0}`, "runSeries": `{"version":1}`,
		"putApp": appOfStage, "changeRules": `{"put":[{"name":"all","text":"permit(principal, action == Action::\"call\", resource);"}]}`, "checkRules": `{"rules":[]}`,
		"rotateConnection": `{"credentials":{"token":"another-token"}}`, "explainRules": `{"session":"` + s.session + `","tool":"crm.lookup@1"}`,
		"createConnection": fmt.Sprintf(`{"alias":"made%d","provider":"crm","auth":"bearer","credentials":{"token":"a-token"}}`, s.aliases),
		"createKey":        `{"kind":"direct","tenant":"t","user":"u"}`, "createSession": `{}`,
	}[r.ID]
	switch r.ID {
	case "streamSessionEvents":
		if !s.w.clock.real { // the stream ends with its session
			s.w.Do("POST", "/v1/workbench/sessions/"+s.session+"/close", s.secrets["owner"], "")
		}
	case "readRunFile", "readCommitFile", "readWorkspaceFile", "deleteWorkspaceFile":
		path += "?path=out/made.txt"
	case "writeWorkspaceFile":
		path += "?path=out/new.txt"
		body = "x"
	case "uploadArtifact":
		path += "?name=x.txt"
		body, headers = "x", append([]string{"Content-Type", "text/plain"}, headers...)
	}
	return s.w.Do(r.Method, path, secret, body, headers...)
}

// TestWhoMaySeeWhat is the table over every route and two of everything. A
// route without a row fails.
func TestWhoMaySeeWhat(t *testing.T) {
	s := mustStage(t)
	rows := map[string]bool{}
	for _, r := range api.Routes() {
		if r.Public {
			continue
		}
		row, ok := expected[r.ID]
		rows[r.ID] = true
		if !ok {
			t.Errorf("%s %s (%s) has no row in the table", r.Method, r.Pattern, r.ID)
			continue
		}
		for i, caller := range callers {
			if i == 0 || r.Method != http.MethodGet {
				s.set(t)
			}
			x := s.ask(r, s.secrets[caller], s.headers[caller])
			if x.Status != row[i] {
				t.Errorf("%s by %s: %d, want %d: %.200s", r.ID, caller, x.Status, row[i], x.Body)
			}
			s.mustNotTell(t, r, caller, x)
		}
	}
	for id := range expected {
		if !rows[id] {
			t.Errorf("the table has a row for %s, which is no route", id)
		}
	}
}

// mustNotTell checks what an answer may not hold, whatever its status.
func (s *stage) mustNotTell(t *testing.T, r api.Route, caller string, x exchange) {
	t.Helper()
	stranger := map[string]bool{"other user": true, "other tenant": true, "other project": true, "embedded as other": true,
		"other project's admin": true, "narrowed elsewhere": true}[caller]
	body := string(x.Body)
	if stranger || x.Status >= 400 {
		for what, id := range map[string]string{"session": s.session, "run": s.run, "file": s.file, "commit": s.commit, "receipt": s.receipt, "connection": s.connection,
			"series": s.series, "replay": s.replay} {
			if strings.Contains(body, id) {
				t.Errorf("%s tells %s the id of the %s: %.300s", r.ID, caller, what, body)
			}
		}
	}
	blind := stranger || caller == "admin" || caller == "owner, execute only" || x.Status >= 400
	for _, canary := range []string{s.contentOfRun, s.contentOfFile} {
		if blind && strings.Contains(body, canary) {
			t.Errorf("%s shows %s contents: %.300s", r.ID, caller, body)
		}
	}
	if x.Status == 403 && x.Text("hint") == "" {
		t.Errorf("%s refuses %s without a hint", r.ID, caller)
	}
}

// TestRefusedEverywhere has the callers that no route serves.
func TestRefusedEverywhere(t *testing.T) {
	s := mustStage(t)
	s.set(t)
	for _, r := range api.Routes() {
		if r.Public {
			if x := s.w.Do(r.Method, r.Pattern, "", ""); x.Status != 200 {
				t.Errorf("%s without a key: %d, want 200", r.ID, x.Status)
			}
			continue
		}
		var first string
		for name, secret := range s.dead {
			x := s.ask(r, secret, nil)
			if x.Status != 401 || x.Header.Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("%s with %s: %d, want 401", r.ID, name, x.Status)
			}
			// Nothing tells a missing key from a wrong, revoked or expired one.
			if told := x.Text("code") + x.Text("detail") + x.Text("hint"); first == "" {
				first = told
			} else if told != first {
				t.Errorf("%s tells %s apart: %s", r.ID, name, x.Body)
			}
		}
		for name, c := range map[string]struct {
			secret  string
			headers []string
			status  int
		}{
			"an embedded key for another's tenant":    {s.misplaced, asAda, 403},
			"an embedded key without headers":         {s.misplaced, nil, 400},
			"a direct key that names another user":    {s.secrets["owner"], asZoe, 403},
			"a direct key that names another tenant":  {s.secrets["owner"], []string{identity.TenantHeader, "globex"}, 403},
			"a direct key that names a group":         {s.secrets["owner"], []string{identity.GroupHeader, "staff"}, 403},
			"an admin key that names an end user":     {s.secrets["admin"], asAda, 403},
			"an embedded key with a control char":     {s.secrets["embedded as other"], []string{identity.TenantHeader, "acme", identity.EndUserHeader, "a\u0085b"}, 400},
			"an embedded key with a name too long":    {s.secrets["embedded as other"], []string{identity.TenantHeader, "acme", identity.EndUserHeader, strings.Repeat("x", 129)}, 400},
			"an embedded key with a name that is not": {s.secrets["embedded as other"], []string{identity.TenantHeader, "acme", identity.EndUserHeader, "\xff\xfe"}, 400},
		} {
			x := s.ask(r, c.secret, c.headers)
			if x.Status != c.status {
				t.Errorf("%s with %s: %d, want %d: %s", r.ID, name, x.Status, c.status, x.Body)
			}
		}
	}
	if x := s.w.Do("GET", "/v1/workbench/sessions", s.secrets["owner"], "", asAda...); x.Status != 200 {
		t.Errorf("a direct key that names itself: %d, want 200: %s", x.Status, x.Body)
	}
}

// TestRevocationIsImmediate: the next request is refused.
func TestRevocationIsImmediate(t *testing.T) {
	w := MustWorld(t)
	_, admin := w.MustKey(identity.KeyRequest{Kind: workbench.KeyAdmin})
	key, secret := w.MustKey(identity.KeyRequest{Kind: workbench.KeyDirect, Tenant: "acme", User: "ada"})
	w.Do("GET", "/v1/workbench/sessions", secret, "").Want(200)
	w.Do("DELETE", "/v1/workbench/keys/"+key.ID, admin, "").Want(200)
	w.Do("GET", "/v1/workbench/sessions", secret, "").Want(401)
}

// TestAuditTrail: what was done and what was refused stands in the trail, and
// a flood of refusals does not fill the database.
func TestAuditTrail(t *testing.T) {
	w := MustWorld(t)
	_, admin := w.MustKey(identity.KeyRequest{Kind: workbench.KeyAdmin})
	key, bob := w.Direct("", "acme", "ada"), w.Direct("", "acme", "bob")
	session := w.MustSession(key)
	file := w.MustUpload(key, session, "a.txt", "x")
	w.Do("GET", "/v1/workbench/artifacts/"+file+"/content", key, "").Want(200)
	w.Do("GET", "/v1/workbench/artifacts/"+file+"/content", bob, "", "Workbench-Request-Id", "bobs-try").Want(404)
	w.Do("GET", "/v1/workbench/keys", bob, "").Want(403)
	_, blind := w.MustKey(identity.KeyRequest{Kind: workbench.KeyDirect, Tenant: "acme", User: "ada", Scopes: []workbench.Scope{workbench.ScopeExecute}})
	run := workbench.NewID(workbench.KindRun)
	w.Do("GET", "/v1/workbench/runs/"+run+"/output", blind, "").Want(403)
	w.Do("GET", "/v1/workbench/runs/"+session+"/events", blind, "").Want(403)
	for _, want := range []string{"session.create ok " + session, "artifact.upload ok " + file, "artifact.download ok " + file,
		"artifact.download not_found " + file, "listKeys forbidden ",
		"readRunOutput forbidden " + run} {
		action, rest, _ := strings.Cut(want, " ")
		outcome, target, _ := strings.Cut(rest, " ")
		x := w.Do("GET", "/v1/workbench/audit?action="+action+"&target="+target, admin, "").Want(200)
		if !strings.Contains(string(x.Body), fmt.Sprintf("%q:%q", "outcome", outcome)) {
			t.Errorf("no row %q: %s", want, x.Body)
		}
	}
	if x := w.Do("GET", "/v1/workbench/audit?target="+file, admin, "").Want(200); !strings.Contains(string(x.Body), `"requestId":"bobs-try"`) {
		t.Errorf("the client's request id is not in the trail: %s", x.Body)
	}
	if x := w.Do("GET", "/v1/workbench/audit?action=streamRunEvents", admin, "").Want(200); strings.Contains(string(x.Body), session) {
		t.Errorf("what is no id of a run is a target: %s", x.Body)
	}
	for range 300 {
		w.Do("GET", "/v1/workbench/sessions/"+session, bob, "").Want(404)
	}
	list, err := w.db.ListAudit(t.Context(), workbench.SystemPrincipal(), workbench.AuditFilter{Action: "getSession"}, workbench.Page{Limit: 200})
	if err != nil || len(list.Items) > 100 {
		t.Errorf("300 refusals left %d rows, want at most 100 (err %v)", len(list.Items), err)
	}
	w.clock.Advance(2 * time.Second)
	w.Do("GET", "/v1/workbench/sessions/"+session, bob, "").Want(404)
	list, _ = w.db.ListAudit(t.Context(), workbench.SystemPrincipal(), workbench.AuditFilter{Action: "getSession"}, workbench.Page{Limit: 1})
	if len(list.Items) != 1 || !strings.Contains(string(list.Items[0].Detail), `"suppressed"`) {
		t.Errorf("the row after a flood does not say what was left out: %+v", list.Items)
	}
}

// bareReplies are those about what never changes again: they name no session.
var bareReplies = map[string]bool{"getCommit": true, "listCommitTree": true, "compareCommit": true, "compareRun": true, "listRunFiles": true, "readRunOutput": true}

// TestRepliesTellTheSession has every answer in JSON about a session, its runs,
// contexts, workspace and retained files say how the session is.
func TestRepliesTellTheSession(t *testing.T) {
	s := mustStage(t)
	told := map[string]bool{}
	for _, r := range api.Routes() {
		if r.Target != workbench.KindSession && r.Target != workbench.KindRun && r.Target != workbench.KindArtifact && r.Target != workbench.KindCommit {
			continue
		}
		s.set(t)
		x := s.ask(r, s.secrets["owner"], nil)
		if x.Status >= 300 || x.Header.Get("Content-Type") != "application/json" || bareReplies[r.ID] {
			continue
		}
		ref := "session."
		switch r.ID {
		case "getSession", "configureSession", "restartSession", "closeSession", "forkSession":
			ref = ""
		case "interruptContext":
			ref = "context.session."
		}
		told[r.ID] = true
		if id := x.Text(ref + "id"); id != s.session && r.ID != "forkSession" || !strings.HasPrefix(id, "ses_") || x.Text(ref+"generation") == "" || !strings.HasPrefix(x.Text(ref+"expiresAt"), "2026-11-30T12:00:0") {
			t.Errorf("%s tells of its session: %.400s", r.ID, x.Body)
		}
	}
	for _, id := range []string{"createContext", "getContext", "deleteContext", "restartContext", "interruptContext", "writeWorkspaceFile", "deleteWorkspaceFile", "moveWorkspaceFile",
		"makeWorkspaceDirectory", "uploadArtifact", "getArtifact", "deleteArtifact", "submitRun", "getRun", "cancelRun", "rollBackSession", "listWorkspace"} {
		if !told[id] {
			t.Errorf("%s was not asked", id)
		}
	}
}
