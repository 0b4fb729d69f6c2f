package guest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
	"github.com/workbenchdev/workbench/internal/sandbox/sandboxtest"
)

// The snippets that users find printed; they must run as they are.
const (
	seedPython = `receipt = arc0.call("your_app.lookup", {"query": "1234"}, version="1", connection_alias="support")
# Inspect receipt.status; an approval requirement is not an execution result.
arc0.save("summary.txt", "Reviewed output")
`
	seedJavaScript = `const receipt = await arc0.call("your_app.lookup", { query: "1234" }, {
  version: "1", connectionAlias: "support",
});
arc0.save("summary.txt", "Reviewed output");
`
	seedBash = `workbench call your_app.lookup '{"query": "1234"}' --version 1 --connection support >/dev/null
printf 'Reviewed output' > summary.txt
arc0 save summary.txt >/dev/null
`
)

// standIn answers as a server would whose session may call the tools of your_app.
func standIn(_ context.Context, op string, args map[string]any) (any, error) {
	tool, _ := args["tool"].(string)
	receipt := map[string]any{"id": "rcp_1", "tool": tool, "version": "1", "rules": []string{}, "durationMs": 5}
	with := func(status workbench.CallStatus, more map[string]any) (any, error) {
		receipt["status"] = status
		for k, v := range more {
			receipt[k] = v
		}
		return receipt, nil
	}
	switch op {
	case guestwire.OpCall:
		switch tool {
		case "your_app.lookup":
			return with(workbench.CallSucceeded, map[string]any{"result": map[string]any{"name": "Ü<", "n": nil}, "artifactId": "art_9"})
		case "your_app.pay":
			return with(workbench.CallPending, nil)
		case "your_app.drop":
			return with(workbench.CallDenied, map[string]any{"error": workbench.CallError{Code: workbench.CodeAccessDenied, Detail: "a rule denies it", Hint: "ask somebody", Field: "tool"}})
		case "your_app.lost":
			return with(workbench.CallUnknown, nil)
		case "your_app.large":
			return with(workbench.CallSucceeded, map[string]any{"result": strings.Repeat("é", int(args["args"].(map[string]any)["n"].(float64)))})
		}
		return nil, workbench.E(workbench.CodeToolNotAllowed, "this session may not call it").WithField("tool").WithHint("look with tools.search")
	case guestwire.OpReceipt:
		if args["waitMs"].(float64) == 0 {
			return with(workbench.CallPending, map[string]any{"tool": "your_app.pay"})
		}
		return with(workbench.CallSucceeded, map[string]any{"tool": "your_app.pay", "result": 1})
	case guestwire.OpToolSearch:
		return guestwire.FoundTools{Items: []guestwire.FoundTool{{Name: "your_app.lookup", Version: "1", Description: "looks", Connections: []string{"support"}}}}, nil
	case guestwire.OpToolSchema:
		return guestwire.ToolSchema{FoundTool: guestwire.FoundTool{Name: tool, Version: "1", Description: "looks", Connections: []string{}}, InputSchema: []byte(`{"type":"object"}`)}, nil
	case guestwire.OpAI:
		output := `"` + args["task"].(string) + `"`
		if args["task"] == guestwire.AIExtract {
			output = `{"a":1}`
		}
		return guestwire.AIAnswer{Output: []byte(output)}, nil
	case guestwire.OpWebSearch:
		return guestwire.FoundPages{Items: []guestwire.FoundPage{{Title: "T", URL: "https://example.org/?a&b", Snippet: "s"}}}, nil
	}
	return nil, workbench.E(workbench.CodeNotBuilt, "not built")
}

// with runs something to its end, on a host that answers.
func (s *session) with(t testing.TB, r guestwire.ExecRequest, answer func(context.Context, string, map[string]any) (any, error)) (outcome, *host) {
	t.Helper()
	h := newHost()
	h.answer = answer
	return s.begin(t, r, h).end(), h
}

// bothWays are a program and a cell.
func bothWays(lang workbench.Language, source string) map[string]guestwire.ExecRequest {
	context := "calls-" + string(lang)
	if lang == workbench.TypeScript {
		context = "calls-" + string(workbench.JavaScript)
	}
	return map[string]guestwire.ExecRequest{"run": request(lang, source), "cell": inContext(context, lang, source)}
}

// wantSeed checks what the snippets do.
func wantSeed(t *testing.T, o outcome, h *host) {
	t.Helper()
	o.want(t, 0, "")
	h.wantAsked(t, asked{"call", `{"tool":"your_app.lookup","version":"1","connection":"support","args":{"query":"1234"}}`})
	if len(o.files) != 1 || o.files[0].path != "summary.txt" || string(o.files[0].content) != "Reviewed output" {
		t.Errorf("kept %q; stderr %s", o.files, clip(o.stderr))
	}
}

func TestSeedSnippets(t *testing.T) {
	onDefault(t, func(t *testing.T, s *session) {
		for _, c := range []struct {
			lang   workbench.Language
			source string
		}{{workbench.Python, seedPython}, {workbench.JavaScript, seedJavaScript}, {workbench.TypeScript, seedJavaScript}, {workbench.Bash, seedBash}} {
			for how, r := range bothWays(c.lang, c.source) {
				t.Run(fmt.Sprintf("%s, %s", c.lang, how), func(t *testing.T) {
					o, h := s.with(t, r, standIn)
					wantSeed(t, o, h)
				})
			}
		}
	})
	t.Run("IPython", func(t *testing.T) {
		s := MustIPython(t, oci.Runsc)
		o, h := s.with(t, inContext("py", workbench.Python, seedPython), standIn)
		wantSeed(t, o, h)
		o, _ = s.with(t, inContext("py", workbench.Python, "(await arc0.aio.call('your_app.lookup')).status"), standIn)
		o.wantShown(t, "result 'succeeded'")
	})
}

const surfacePython = `
import workbench as w
from workbench import WorkbenchError, tools
r = w.call("your_app.lookup", version=1)
print(r.status, r["status"], r.result, r.error, r.artifact_id, r.duration_ms, r.raise_for_status() is r)
p = w.call("your_app.pay", {"n": 1}, connection="bank")
print(p.status, p.result, p.preview)
for bad in (p, w.call("your_app.drop"), w.call("your_app.lost")):
    try: bad.raise_for_status()
    except WorkbenchError as e: print(e.code, "|", e.detail, "|", e.hint, "|", e.field, e.receipt is bad)
try: w.call("other.tool", {"é": "\ud800"})
except WorkbenchError as e: print(e.code, e.field, e.hint, e.receipt)
try: p.nothing
except AttributeError as e: print(e)
print(w.receipt(p).status, w.receipt(p.id, wait=30).result)
print(tools.search("look", limit=3), tools.schema("your_app.lookup").inputSchema)
print(w.ai.complete("hi", system="s", max_tokens=5), w.ai.summarise("t", words=9), w.ai.summarize("t"), w.ai.classify("t", ["a", "b"]), w.ai.extract("t", {"type": "object"}))
print(w.web.search("q")[0].url)
`

const surfaceJavaScript = `
const { WorkbenchError } = workbench;
const w = workbench;
const r = await w.call('your_app.lookup', undefined, { version: 1 });
console.log(r.status, JSON.stringify(r.result), r.error, r.artifactId, r.durationMs, r.raiseForStatus() === r);
const p = await w.call('your_app.pay', { n: 1 }, { connection: 'bank' });
console.log(p.status, p.result, Object.keys(p).includes('raiseForStatus'));
for (const bad of [p, await w.call('your_app.drop'), await w.call('your_app.lost')]) {
  try { bad.raiseForStatus(); } catch (e) { console.log(e.code, '|', e.detail, '|', e.hint, '|', e.field, e.receipt === bad, e instanceof WorkbenchError); }
}
await w.call('other.tool', { 'é': '\ud800' }).catch((e) => console.log(e.code, e.field, e.hint, e.receipt));
await w.call('your_app.lookup', {}, { connection_alias: 'x' }).catch((e) => console.log(e.name, e.message));
console.log((await w.receipt(p)).status, (await w.receipt(p.id, { wait: 30 })).result);
console.log(JSON.stringify(await w.tools.search('look', { limit: 3 })), (await w.tools.schema('your_app.lookup')).inputSchema);
console.log(await w.ai.complete('hi', { system: 's', maxTokens: 5 }), await w.ai.summarise('t', { words: 9 }), await w.ai.summarize('t'), await w.ai.classify('t', ['a', 'b']), await w.ai.extract('t', { type: 'object' }));
console.log((await w.web.search('q'))[0].url);
`

// theSurface is what both ask for, alike.
var theSurface = []asked{
	{"call", `{"tool":"your_app.lookup","version":"1","args":{}}`},
	{"call", `{"tool":"your_app.pay","connection":"bank","args":{"n":1}}`},
	{"call", `{"tool":"your_app.drop","args":{}}`},
	{"call", `{"tool":"your_app.lost","args":{}}`},
	{"call", `{"tool":"other.tool","args":{"é":"\ud800"}}`},
	{"receipt", `{"id":"rcp_1","waitMs":0}`},
	{"receipt", `{"id":"rcp_1","waitMs":10000}`},
	{"tools.search", `{"query":"look","limit":3}`},
	{"tools.schema", `{"tool":"your_app.lookup"}`},
	{"ai", `{"task":"complete","input":"hi","system":"s","maxTokens":5}`},
	{"ai", `{"task":"summarise","input":"t","words":9}`},
	{"ai", `{"task":"summarise","input":"t"}`},
	{"ai", `{"task":"classify","input":"t","labels":["a","b"]}`},
	{"ai", `{"task":"extract","input":"t","schema":{"type":"object"}}`},
	{"web.search", `{"query":"q","limit":5}`},
}

func TestWhatCodeCanAsk(t *testing.T) {
	onDefault(t, func(t *testing.T, s *session) {
		t.Run("Python", func(t *testing.T) {
			for how, r := range bothWays(workbench.Python, surfacePython) {
				o, h := s.with(t, r, standIn)
				o.want(t, 0, `succeeded succeeded {'n': None, 'name': 'Ü<'} None art_9 5 True
pending_approval None None
pending_approval | the call of your_app.pay is pending approval | somebody has to approve it; workbench.receipt(id, wait=60) waits for that | None True
access_denied | a rule denies it | ask somebody | tool True
unknown | the call of your_app.lost is unknown | it may have been executed: look before you repeat it | None True
tool_not_allowed tool look with tools.search None
there is no 'nothing' in it; there are durationMs, id, rules, status, tool, version
pending_approval 1
[{'name': 'your_app.lookup', 'version': '1', 'description': 'looks', 'connections': ['support']}] {'type': 'object'}
complete summarise summarise classify {'a': 1}
https://example.org/?a&b
`)
				want := slices.Clone(theSurface)
				want[4].args = `{"tool":"other.tool","args":{"\u00e9":"\ud800"}}` // half of a pair is no UTF-8
				if h.wantAsked(t, want...); t.Failed() {
					t.Fatalf("as a %s: %s", how, clip(o.stderr))
				}
			}
		})
		t.Run("JavaScript", func(t *testing.T) {
			for how, r := range bothWays(workbench.JavaScript, surfaceJavaScript) {
				o, h := s.with(t, r, standIn)
				o.want(t, 0, `succeeded {"n":null,"name":"Ü<"} undefined art_9 5 true
pending_approval undefined false
pending_approval | the call of your_app.pay is pending approval | somebody has to approve it; workbench.receipt(id, { wait: 60 }) waits for that | undefined true true
access_denied | a rule denies it | ask somebody | tool true true
unknown | the call of your_app.lost is unknown | it may have been executed: look before you repeat it | undefined true true
tool_not_allowed tool look with tools.search undefined
TypeError there is no option connection_alias here, there are version, connectionAlias, connection
pending_approval 1
[{"name":"your_app.lookup","version":"1","description":"looks","connections":["support"]}] { type: 'object' }
complete summarise summarise classify { a: 1 }
https://example.org/?a&b
`)
				if h.wantAsked(t, theSurface...); t.Failed() {
					t.Fatalf("as a %s: %s", how, clip(o.stderr))
				}
			}
		})
		t.Run("modules", func(t *testing.T) {
			o, _ := s.with(t, request(workbench.Python, "a, b = arc0, workbench\nopen('uses.py', 'w').write('status = lambda: arc0.call(\"your_app.lookup\").status')\nimport arc0, workbench, uses\nfrom workbench import *\nprint(a is b is arc0 is workbench, uses.status(), call is workbench.call, arc0)"), standIn)
			o.want(t, 0, "True succeeded True <module 'workbench' from '/run/workbench/lib/python/workbench.py'>\n")
			o, _ = s.with(t, request(workbench.Python, "import workbench\nprint(workbench is arc0, 'call' in dir(workbench), workbench.call.__doc__[:5])\nimport inspect; print(inspect.signature(workbench.receipt))"), standIn)
			o.want(t, 0, "True True Calls\n(receipt: 'str | Receipt', wait: 'float | None' = None) -> 'Receipt'\n")
			o, _ = s.with(t, request(workbench.JavaScript, "import helper, { call, tools, ai, web, receipt } from 'arc0'; import { createRequire } from 'node:module';\nconst r = createRequire('/mnt/files/x.mjs');\nconsole.log(helper === arc0, call === workbench.call, typeof tools.search, typeof ai.extract, typeof web.search, typeof receipt, r('arc0') === r('workbench'), r('arc0') === arc0)"), standIn)
			o.want(t, 0, "true true function function function function true true\n")
			o, _ = s.with(t, request(workbench.TypeScript, "import { call } from 'workbench';\nconst r: { status: string } = await call('your_app.lookup'); console.log(r.status)"), standIn)
			o.want(t, 0, "succeeded\n")
		})
		t.Run("errors of Python can be passed on", func(t *testing.T) {
			o, _ := s.with(t, request(workbench.Python, "import copy, pickle\ntry: arc0.call('other.tool')\nexcept arc0.WorkbenchError as e: c = pickle.loads(pickle.dumps(e)); print(c.code, c.field, str(c) == str(e))\nr = pickle.loads(pickle.dumps(arc0.call('your_app.lookup'))); print(type(r).__name__, r.status, copy.deepcopy(r) == r)"), standIn)
			o.want(t, 0, "tool_not_allowed tool True\nReceipt succeeded True\n")
		})
		t.Run("asyncio", func(t *testing.T) {
			o, _ := s.with(t, request(workbench.Python, `
import asyncio
aio = arc0.aio
async def main():
    print((await aio.call("your_app.lookup", version="1")).status)
    print([r.status for r in await asyncio.gather(aio.call("your_app.lookup"), aio.call("your_app.pay"))])
    async with asyncio.TaskGroup() as g:
        t = g.create_task(aio.ai.classify("t", ["a"]))
    print(t.result(), await asyncio.wait_for(aio.tools.search("x"), 20), (await aio.receipt("rcp_1", wait=5)).status)
    print(await aio.ai.summarize("x"), (await aio.tools.schema("a.b"))["name"], len(await aio.web.search("x")))
    try: await aio.call("other.tool")
    except arc0.WorkbenchError as e: print(e.code)
asyncio.run(main())
print(asyncio.run(aio.call("your_app.pay")).status)
aio.call("other.tool")
`), standIn)
			o.want(t, 0, "succeeded\n['succeeded', 'pending_approval']\nclassify [{'name': 'your_app.lookup', 'version': '1', 'description': 'looks', 'connections': ['support']}] succeeded\nsummarise a.b 1\ntool_not_allowed\npending_approval\n")
			if want := "workbench: a call that nobody awaited failed: tool_not_allowed: this session may not call it (look with tools.search)\n"; o.stderr != want {
				t.Errorf("stderr %q, want %q", o.stderr, want)
			}
		})
	})
}

// A child of a program has threads of its own for what it calls.
func TestCallsOfAForkedChild(t *testing.T) {
	s := MustSession(t, oci.Runsc)
	o, _ := s.with(t, request(workbench.Python, `
import asyncio, os
print(asyncio.run(arc0.aio.call("your_app.lookup")).status, flush=True)
if os.fork() == 0:
    print(asyncio.run(arc0.aio.call("your_app.pay")).status, flush=True)
    os._exit(0)
print(os.wait()[1])
`), standIn)
	o.want(t, 0, "succeeded\npending_approval\n0\n")
}

func TestShellCommand(t *testing.T) {
	onDefault(t, func(t *testing.T, s *session) {
		const receipt = `{"artifactId":"art_9","durationMs":5,"id":"rcp_1","result":{"n":null,"name":"Ü<"},"rules":[],"status":"succeeded","tool":"your_app.lookup","version":"1"}` + "\n"
		for _, c := range []struct {
			source string
			exit   int
			stdout string
			stderr string // contained
			asked  []asked
		}{
			{source: `workbench call your_app.lookup '{ "query": "1234" }' --version=1 --connection support`, stdout: receipt,
				asked: []asked{{"call", `{"tool":"your_app.lookup","version":"1","connection":"support","args":{"query":"1234"}}`}}},
			{source: `echo '{"a": [1, 2]}' | arc0 call --connection-alias x your_app.lookup - | cat`, stdout: receipt,
				asked: []asked{{"call", `{"tool":"your_app.lookup","connection":"x","args":{"a":[1,2]}}`}}},
			{source: "workbench call your_app.pay >/dev/null", exit: 3, asked: []asked{{"call", `{"tool":"your_app.pay","args":{}}`}}},
			{source: "workbench call your_app.drop >/dev/null", exit: 4, asked: []asked{{"call", `{"tool":"your_app.drop","args":{}}`}}},
			{source: "workbench call your_app.lost >/dev/null", exit: 1, asked: []asked{{"call", `{"tool":"your_app.lost","args":{}}`}}},
			{source: "workbench call other.tool", exit: 1, stderr: "workbench: call: this session may not call it (tool_not_allowed; look with tools.search)\n", asked: []asked{{"call", `{"tool":"other.tool","args":{}}`}}},
			{source: "workbench call your_app.lookup '[1]'", exit: 2, stderr: "one JSON object\nworkbench --help shows"},
			{source: "workbench call your_app.lookup --nope 1", exit: 2, stderr: "there is no option --nope here"},
			{source: "workbench call", exit: 2, stderr: "workbench: call: it takes the name"},
			{source: "workbench receipt rcp_1 >/dev/null", exit: 3, asked: []asked{{"receipt", `{"id":"rcp_1","waitMs":0}`}}},
			{source: "workbench receipt rcp_1 --wait 30 >/dev/null", asked: []asked{{"receipt", `{"id":"rcp_1","waitMs":10000}`}}},
			{source: "workbench receipt rcp_1 --wait soon", exit: 2, stderr: "--wait takes seconds"},
			{source: "workbench tools search look it up --limit 3", stdout: `{"name":"your_app.lookup","version":"1","description":"looks","connections":["support"]}` + "\n", asked: []asked{{"tools.search", `{"query":"look it up","limit":3}`}}},
			{source: "workbench tools schema your_app.lookup | head -c 25", stdout: `{"name":"your_app.lookup"`, asked: []asked{{"tools.schema", `{"tool":"your_app.lookup"}`}}},
			{source: "workbench ai complete hi --system s --max-tokens 5", stdout: "complete\n", asked: []asked{{"ai", `{"task":"complete","input":"hi","system":"s","maxTokens":5}`}}},
			{source: "printf text | workbench ai summarize --words 9", stdout: "summarise\n", asked: []asked{{"ai", `{"task":"summarise","input":"text","words":9}`}}},
			{source: "printf text | workbench ai classify - --labels a,b --labels c", stdout: "classify\n", asked: []asked{{"ai", `{"task":"classify","input":"text","labels":["a","b","c"]}`}}},
			{source: `workbench ai extract t --schema '{"type": "object"}'`, stdout: `{"a":1}` + "\n", asked: []asked{{"ai", `{"task":"extract","input":"t","schema":{"type":"object"}}`}}},
			{source: "workbench ai extract t", exit: 2, stderr: "--schema takes"},
			{source: "workbench web search q", stdout: `{"title":"T","url":"https://example.org/?a&b","snippet":"s"}` + "\n", asked: []asked{{"web.search", `{"query":"q"}`}}},
			{source: "workbench --help | grep -c 'workbench call'", stdout: "1\n"},
			{source: "workbench", exit: 2, stderr: "usage:"},
			{source: "workbench tools", exit: 2, stderr: "usage:"},
			{source: "WORKBENCH_SOCKET=/none workbench web search q", exit: 1, stderr: "cannot be reached"},
		} {
			o, h := s.with(t, request(workbench.Bash, c.source), standIn)
			if o.want(t, c.exit, c.stdout); !strings.Contains(o.stderr, c.stderr) || c.stderr == "" && o.stderr != "" {
				t.Errorf("%s: stderr %q, want %q in it", c.source, o.stderr, c.stderr)
			}
			if h.wantAsked(t, c.asked...); t.Failed() {
				t.Fatal(c.source)
			}
		}
		t.Run("in every language", func(t *testing.T) {
			for lang, source := range map[workbench.Language]string{
				workbench.Python:     "import subprocess; print(subprocess.run(['workbench', 'call', 'your_app.pay'], capture_output=True).returncode)",
				workbench.JavaScript: "import { spawnSync } from 'node:child_process'; console.log(spawnSync('arc0', ['call', 'your_app.pay']).status)",
				workbench.Bash:       "workbench call your_app.pay >/dev/null; echo $?",
			} {
				for _, r := range bothWays(lang, source) {
					o, _ := s.with(t, r, standIn)
					o.want(t, 0, "3\n")
				}
			}
		})
	})
}

func TestBoundsOfCalls(t *testing.T) {
	onDefault(t, func(t *testing.T, s *session) {
		o, h := s.with(t, request(workbench.Python, `
import json, os, socket
def tell(f):
    try: f()
    except arc0.WorkbenchError as e: print(e.code, "|", e.detail)
tell(lambda: arc0.call("your_app.lookup", {"x": "y" * 340_000}))
tell(lambda: arc0.call("your_app.lookup", {"x": "y" * 500_000}))
tell(lambda: arc0.call("your_app.large", {"n": 200_000}))
print(len(arc0.call("your_app.large", {"n": 120_000}).result), arc0.call("your_app.lookup", {"x": "é" * 100_000}).status)
def raw(content):
    with socket.socket(socket.AF_UNIX) as c:
        c.connect(os.environ["WORKBENCH_SOCKET"])
        c.sendall(content)
        got = b""
        while part := c.recv(65536): got += part
    return json.loads(got[4:])["error"]
print(raw((3_000_000).to_bytes(4, "big") + b" " * 3_000_000))
for value in ([], 1, None, "x"):
    body = json.dumps({"token": os.environ["WORKBENCH_TOKEN"], "op": "call", "value": value}).encode()
    print(raw(len(body).to_bytes(4, "big") + body)["detail"])
body = json.dumps({"token": os.environ["WORKBENCH_TOKEN"], "op": "bind", "value": {}}).encode()
print(raw(len(body).to_bytes(4, "big") + body))
`), standIn)
		o.want(t, 0, `body_too_large | the call has 340042 bytes, 327680 are allowed
body_too_large | the call has 500107 bytes, 393216 are allowed
result_too_large | the answer has 400111 bytes, 262144 are allowed
120000 succeeded
{'code': 'body_too_large', 'detail': 'the request has 3000000 bytes, 393216 are allowed', 'hint': 'save what is large as a file'}
the arguments are not a JSON object
the arguments are not a JSON object
the arguments are not a JSON object
the arguments are not a JSON object
{'code': 'invalid_request', 'detail': 'there is no such operation'}
`)
		if len(h.asked) != 3 {
			t.Errorf("%d calls arrived, want 3", len(h.asked))
		}
		o, _ = s.with(t, request(workbench.JavaScript, "for (const n of [340_000, 500_000]) await arc0.call('your_app.lookup', { x: 'y'.repeat(n) }).catch((e) => console.log(e.code));\nawait arc0.call('your_app.lookup', { x: 1n }).catch((e) => console.log(e.name));"), standIn)
		o.want(t, 0, "body_too_large\nbody_too_large\nTypeError\n")
		o, _ = s.with(t, request(workbench.Bash, "{ printf '{\"x\":\"'; head -c 340000 /dev/zero | tr '\\0' y; printf '\"}'; } > big; workbench call your_app.lookup - < big; echo $?; { cat big; cat big; } | workbench ai complete; echo $?"), standIn)
		o.want(t, 0, "1\n1\n")
		if !strings.Contains(o.stderr, "body_too_large") || !strings.Contains(o.stderr, "standard input has more than") {
			t.Errorf("stderr %s", o.stderr)
		}
	})
}

// slowly is a host whose tool takes some time, and what became of its calls.
type slowly struct {
	takes            time.Duration
	begun, done, cut atomic.Int64
}

func (w *slowly) answer(ctx context.Context, op string, args map[string]any) (any, error) {
	w.begun.Add(1)
	select {
	case <-time.After(w.takes):
		w.done.Add(1)
		return map[string]any{"id": "rcp_1", "tool": args["tool"], "status": "succeeded"}, nil
	case <-ctx.Done():
		w.cut.Add(1)
		return nil, context.Cause(ctx)
	}
}

// TestCallsWithoutAwait: what was called completes before the run, or the cell, has
// ended, within its time limit.
func TestCallsWithoutAwait(t *testing.T) {
	t.Parallel() // it waits more than it works
	takes := callsTake
	if sandboxtest.Soak() {
		takes = 20 * time.Second
	}
	const daemon = "import threading, time\nthreading.Thread(target=lambda: arc0.call('your_app.slow'), daemon=True).start()\ntime.sleep(2)"
	onDefault(t, func(t *testing.T, s *session) {
		for _, group := range [][]struct {
			name   string
			r      guestwire.ExecRequest
			exit   int
			calls  int64
			stdout string
		}{{
			{name: "JavaScript", r: request(workbench.JavaScript, "arc0.call('your_app.slow'); arc0.call('your_app.slow').then((r) => console.log(r.status))"), calls: 2, stdout: "succeeded\n"},
			{name: "JavaScript that exits", r: request(workbench.JavaScript, "arc0.call('your_app.slow'); setTimeout(() => process.exit(3), 1000)"), exit: 3, calls: 1},
			{name: "JavaScript cell", r: inContext("slow-js", workbench.JavaScript, "for (let i = 0; i < 20; i++) { arc0.call('your_app.slow') }\nlet x = 1"), calls: 20},
		}, {
			{name: "JavaScript cell that fails", r: inContext("slow-js", workbench.JavaScript, "arc0.call('your_app.slow'); null.x"), exit: 1, calls: 1},
			{name: "TypeScript", r: request(workbench.TypeScript, "const n: number = 1; arc0.call('your_app.slow', { n })"), calls: 1},
			{name: "Python", r: request(workbench.Python, "for i in range(10): arc0.aio.call('your_app.slow', {'n': i})"), calls: 10},
			{name: "Python with a daemon", r: request(workbench.Python, daemon), calls: 1},
		}, {
			{name: "Python, asyncio.run", r: request(workbench.Python, "import asyncio\nasync def main():\n    asyncio.create_task(arc0.aio.call('your_app.slow'))\n    arc0.aio.call('your_app.slow')\nasyncio.run(main())\nprint('end')"), calls: 2, stdout: "end\n"},
			{name: "Python cell", r: inContext("slow-py", workbench.Python, "import asyncio\nasync def main(): asyncio.create_task(arc0.aio.call('your_app.slow'))\nfor i in range(9): arc0.aio.call('your_app.slow')\nawait main()"), calls: 10},
			{name: "Python cell with a thread", r: inContext("slow-py2", workbench.Python, daemon), calls: 1},
			{name: "Bash", r: request(workbench.Bash, "workbench call your_app.slow >/dev/null & sleep 1.5"), calls: 1},
			{name: "Bash cell", r: inContext("slow-sh", workbench.Bash, "workbench call your_app.slow >/dev/null & sleep 1.5"), calls: 1},
		}} {
			var ends []func()
			for _, c := range group {
				w := &slowly{takes: takes}
				h := newHost()
				h.answer = w.answer
				run := s.begin(t, c.r, h)
				ends = append(ends, func() {
					o := run.end()
					if o.want(t, c.exit, c.stdout); w.done.Load() != c.calls || w.cut.Load() != 0 || o.took < takes || o.Reason != "" {
						t.Errorf("%s: %d calls of %d done, %d cut, after %v, %s\nstderr: %s", c.name, w.done.Load(), c.calls, w.cut.Load(), o.took, o.Reason, clip(o.stderr))
					}
				})
			}
			for _, end := range ends {
				end()
			}
		}
	})
}

// TestInterruptedCalls: an exception out of a signal's handler, wherever in a call it
// comes, takes no later call's answer.
func TestInterruptedCalls(t *testing.T) {
	t.Parallel() // it waits more than it works
	onDefault(t, func(t *testing.T, s *session) {
		o, _ := s.with(t, request(workbench.Python, `
import asyncio, faulthandler, random, signal, sys, time
faulthandler.dump_traceback_later(40, exit=True)
class Late(Exception): pass
def late(*_): raise Late
signal.signal(signal.SIGALRM, late)
interrupted = answered = 0
async def one(): return (await asyncio.wait_for(workbench.aio.call("your_app.lookup"), 20)).status
for i in range(150):
    if i % 3 == 0: sys.modules["workbench_aio"].abandon() if "workbench_aio" in sys.modules else None # a line that begins
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00002, 0.004))
        for _ in range(1 + i % 10): workbench.aio.tools.search("x" * 20000)
        time.sleep(0.005)
    except Late: interrupted += 1
    finally:
        try: signal.setitimer(signal.ITIMER_REAL, 0)
        except Late: interrupted += 1
    if i % 10 == 0: answered += asyncio.run(one()) == "succeeded"
answered += asyncio.run(one()) == "succeeded"
print(answered, interrupted > 20)
`), standIn)
		o.want(t, 0, "16 True\n")
	})
}

// TestAnswersThatPythonCannotRead: such an answer is its call's error, and no other's.
func TestAnswersThatPythonCannotRead(t *testing.T) {
	t.Parallel()
	onDefault(t, func(t *testing.T, s *session) {
		odd := map[string]string{"long": strings.Repeat("7", 5000), "deep": strings.Repeat("[", 9996) + strings.Repeat("]", 9996)}
		o, _ := s.with(t, request(workbench.Python, `
import asyncio
async def main():
    for what, error in (("long", ValueError), ("deep", RecursionError)):  # that is as deep as Python's stack, or not quite
        try: print((await workbench.aio.call("odd", {"what": what})).status)
        except error: print("succeeded" if what == "deep" else "ValueError")
        print((await workbench.aio.call("your_app.lookup")).status)
    # As long as a request may be without the number that it gets: the host refuses it.
    long = "x" * ((384 << 10) - len(workbench._request(op="call", value={"tool": "your_app.lookup", "args": {"x": ""}})))
    for x in (long, long + "x"):
        try: await workbench.aio.call("your_app.lookup", {"x": x})
        except workbench.WorkbenchError as e: print(e.code, "393216" in str(e))
        print((await workbench.aio.call("your_app.lookup")).status)
asyncio.run(main())
`), func(ctx context.Context, op string, args map[string]any) (any, error) {
			if what, ok := args["args"].(map[string]any)["what"].(string); ok {
				return json.RawMessage(`{"id": "rcp_1", "tool": "odd", "status": "succeeded", "result": ` + odd[what] + `}`), nil
			}
			return standIn(ctx, op, args)
		})
		o.want(t, 0, "ValueError\nsucceeded\nsucceeded\nsucceeded\nbody_too_large False\nsucceeded\nbody_too_large True\nsucceeded\n")
		o, _ = s.with(t, request(workbench.JavaScript, `
const room = (384 << 10) - Buffer.byteLength(JSON.stringify({ token: process.env.WORKBENCH_TOKEN, op: 'call', value: { tool: 'your_app.lookup', args: { x: '' } } }));
for (const more of [0, 1]) {
  const [long, beside] = await Promise.allSettled([workbench.call('your_app.lookup', { x: 'x'.repeat(room + more) }), workbench.call('your_app.lookup')]);
  console.log(long.value?.status ?? long.reason.code, beside.value.status);
}
`), standIn)
		o.want(t, 0, "body_too_large succeeded\nbody_too_large succeeded\n")
	})
}

// TestLeftConnections: what a program leaves behind keeps its run for the grace at
// most, in whatever state its connection is, and not until its time limit.
func TestLeftConnections(t *testing.T) {
	t.Parallel() // it waits more than it works
	const leaves = `
import json, os, socket, sys, time
def frame(**o):
    b = json.dumps({"token": os.environ["WORKBENCH_TOKEN"], **o}).encode()
    return len(b).to_bytes(4, "big") + b
r, w = os.pipe()
if os.fork() == 0:
    s = socket.socket(socket.AF_UNIX); s.connect(os.environ["WORKBENCH_SOCKET"])
    %s
    os.write(w, b"x")
    time.sleep(1000)
os.read(r, 1)
print("end", flush=True)`
	onDefault(t, func(t *testing.T, s *session) {
		var ends []func()
		for name, does := range map[string]string{
			"nothing said":         `pass`,
			"half a request":       `s.sendall((256).to_bytes(4, "big") + b"abc")`,
			"too long a request":   `s.sendall((1 << 30).to_bytes(4, "big") + b"x")`,
			"half of its content":  `s.sendall(frame(op="display", kind="display", size=1000000) + b"x")`,
			"answers that it left": `[s.sendall(frame(n=i + 1, op="call", value={"tool": "big", "args": {}})) for i in range(20)]`,
		} {
			h := newHost()
			h.answer = func(context.Context, string, map[string]any) (any, error) { return strings.Repeat("x", 60_000), nil }
			run := s.begin(t, request(workbench.Python, fmt.Sprintf(leaves, does)), h)
			ends = append(ends, func() {
				o := run.end()
				if o.want(t, 0, "end\n"); o.Reason != "" || o.took > callsGrace+10*time.Second {
					t.Errorf("%s: the run ended after %v (%s)", name, o.took, o.Reason)
				}
			})
		}
		for _, end := range ends {
			end()
		}
	})
}

// callsGrace is for how long what a program leaves may say what it wants.
const callsGrace = 5 * time.Second

// callsTake is longer than anything has that is not a call.
const callsTake = 7 * time.Second

// TestCallsDieWithTheirRun: at the time limit, and when the run is cancelled.
func TestCallsDieWithTheirRun(t *testing.T) {
	t.Parallel() // it waits more than it works
	onDefault(t, func(t *testing.T, s *session) {
		for name, c := range map[string]struct {
			r      guestwire.ExecRequest
			cancel bool
			exit   int
		}{
			"limit while it is awaited":         {r: request(workbench.Python, "arc0.call('your_app.slow')"), exit: -1},
			"limit after the end":               {r: request(workbench.JavaScript, "arc0.call('your_app.slow'); setTimeout(() => process.exit(0), 1000)")},
			"limit after the end of a cell":     {r: inContext("die-sh", workbench.Bash, "workbench call your_app.slow >/dev/null & sleep 1.5")},
			"limit in a cell of Python":         {r: inContext("die-py", workbench.Python, "for i in range(20): arc0.aio.call('your_app.slow')"), exit: 130},
			"limit in a cell of JavaScript":     {r: inContext("die-js", workbench.JavaScript, "for (let i = 0; i < 40; i++) { arc0.call('your_app.slow') }"), exit: 130},
			"cancelled after the end":           {r: request(workbench.JavaScript, "arc0.call('your_app.slow'); setTimeout(() => process.exit(0), 1000)"), cancel: true},
			"cancelled after the end of a cell": {r: inContext("die-sh2", workbench.Bash, "workbench call your_app.slow >/dev/null & sleep 1.5"), cancel: true},
		} {
			t.Run(name, func(t *testing.T) {
				w := &slowly{takes: time.Minute}
				h := newHost()
				h.answer = w.answer
				c.r.Grace = 20 * time.Second
				want := workbench.ReasonCancelled
				if !c.cancel {
					c.r.Timeout, want = 5*time.Second, workbench.ReasonTimeout
				}
				if c.exit < 0 {
					c.r.Grace = 0
				}
				run := s.begin(t, c.r, h)
				if c.cancel {
					time.Sleep(4 * time.Second) // it has ended by then, but for its call
					if err := run.Cancel(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				o := run.end()
				if o.Reason != want || o.ExitCode != c.exit || o.took > 30*time.Second {
					t.Errorf("%+v after %v, want %s; stderr %s", o.ExecResult, o.took, want, clip(o.stderr))
				}
				end := time.Now().Add(10 * time.Second)
				for w.cut.Load() < w.begun.Load() && time.Now().Before(end) {
					time.Sleep(5 * time.Millisecond)
				}
				if n := w.begun.Load(); n == 0 || w.cut.Load() != n || w.done.Load() != 0 {
					t.Errorf("%d calls begun, %d cut, %d done", n, w.cut.Load(), w.done.Load())
				}
				if c.exit != 130 {
					return
				}
				begun := w.begun.Load()
				c.r.Source = []byte("1 + 1")
				after := &slowly{}
				o, _ = s.with(t, c.r, after.answer)
				o.want(t, 0, "")
				o.wantShown(t, "result 2")
				if after.begun.Load() != 0 || w.begun.Load() != begun || o.stderr != "" {
					t.Errorf("%d calls of an earlier cell were made; stderr %s", after.begun.Load(), o.stderr)
				}
			})
		}
	})
}

// TestAThousandCalls: each gets an answer, a receipt or an error.
func TestAThousandCalls(t *testing.T) {
	onDefault(t, func(t *testing.T, s *session) {
		const js = "const all = await Promise.allSettled(Array.from({ length: 1000 }, (_, i) => arc0.call('your_app.lookup', { i })));\nconst codes = all.map((a) => a.value?.status ?? a.reason.code);\nconsole.log(codes.filter((c) => c === 'succeeded').length, codes.filter((c) => c === 'tool_calls_exhausted').length);"
		for name, c := range map[string]guestwire.ExecRequest{
			"JavaScript":      request(workbench.JavaScript, js),
			"JavaScript cell": inContext("many-js", workbench.JavaScript, js),
			"asyncio": request(workbench.Python, `
import asyncio, collections
async def one(i):
    try: return (await arc0.aio.call("your_app.lookup", {"i": i})).status
    except arc0.WorkbenchError as e: return e.code
async def main(): return collections.Counter(await asyncio.gather(*[one(i) for i in range(1000)]))
n = asyncio.run(main())
print(n["succeeded"], n["tool_calls_exhausted"])
`),
			"threads": request(workbench.Python, `
import collections, concurrent.futures
def one(i):
    try: return arc0.call("your_app.lookup", {"i": i}).status
    except arc0.WorkbenchError as e: return e.code
with concurrent.futures.ThreadPoolExecutor(55) as pool: n = collections.Counter(pool.map(one, range(1000)))
print(n["succeeded"], n["tool_calls_exhausted"])
`),
			"connections at once": request(workbench.Python, `
import asyncio, json, os
token, path = os.environ["WORKBENCH_TOKEN"], os.environ["WORKBENCH_SOCKET"]
async def one(i):
    body = json.dumps({"token": token, "op": "call", "value": {"tool": "your_app.lookup", "args": {"i": i}}}).encode()
    async with places:
        r, w = await asyncio.open_unix_connection(path)
        w.write(len(body).to_bytes(4, "big") + body)
        answer = json.loads((await r.read())[4:])
        w.close()
    return answer["error"]["code"] if "error" in answer else answer["result"]["status"]
async def main():
    global places
    places = asyncio.Semaphore(200)
    return await asyncio.gather(*[one(i) for i in range(1000)])
n = asyncio.run(main())
print(n.count("succeeded"), n.count("tool_calls_exhausted"))
`),
		} {
			t.Run(name, func(t *testing.T) {
				var calls atomic.Int64
				o, h := s.with(t, c, func(context.Context, string, map[string]any) (any, error) {
					time.Sleep(2 * time.Millisecond) // a tool takes its time
					if calls.Add(1) > 25 {
						return nil, workbench.E(workbench.CodeToolCallLimit, "the run has made its 25 calls")
					}
					return map[string]any{"id": "rcp_1", "status": "succeeded"}, nil
				})
				o.want(t, 0, "25 975\n")
				if len(h.asked) != 1000 {
					t.Errorf("%d calls arrived; stderr %s", len(h.asked), clip(o.stderr))
				}
			})
		}
	})
}

// TestACallerMayBeBusy: who has connected and has other things to do before it
// writes has its answer all the same.
func TestACallerMayBeBusy(t *testing.T) {
	t.Parallel() // it waits more than it works
	s := MustSession(t, oci.Runsc)
	var runs []*run
	for _, r := range []guestwire.ExecRequest{
		request(workbench.JavaScript, "arc0.call('your_app.lookup').then((r) => console.log(r.status)); Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 12_000)"),
		request(workbench.Python, `
import json, os, socket, time
with socket.socket(socket.AF_UNIX) as c:
    c.connect(os.environ["WORKBENCH_SOCKET"])
    time.sleep(12)
    body = json.dumps({"token": os.environ["WORKBENCH_TOKEN"], "op": "call", "value": {"tool": "your_app.lookup"}}).encode()
    c.sendall(len(body).to_bytes(4, "big") + body)
    print(json.loads(c.recv(65536)[4:])["result"]["status"])
`),
	} {
		h := newHost()
		h.answer = standIn
		runs = append(runs, s.begin(t, r, h))
	}
	for _, r := range runs {
		r.end().want(t, 0, "succeeded\n")
	}
}

// TestTokens: H84: nobody calls with the token of another run, while that runs or
// after its end, and no cell with that of another.
func TestTokens(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		const uses = `
import os
def with_token(token, path=os.environ["WORKBENCH_SOCKET"]):
    mine = dict(os.environ)
    os.environ.update(WORKBENCH_TOKEN=token, WORKBENCH_SOCKET=path)
    try: return arc0.call("your_app.lookup").status
    except arc0.WorkbenchError as e: return e.code
    finally: os.environ.update(mine)
old = open("token").read().strip()
print(with_token(old), with_token(""), with_token(old[:-1]), with_token(old.upper()), with_token(os.environ["WORKBENCH_TOKEN"]))
`
		h := newHost()
		first := s.begin(t, request(workbench.Bash, "echo $WORKBENCH_TOKEN > token; echo $WORKBENCH_SOCKET > socket; echo up; sleep 60"), h)
		<-h.wrote
		o, second := s.with(t, request(workbench.Python, uses), standIn)
		o.want(t, 0, "forbidden forbidden forbidden forbidden succeeded\n")
		if err := first.Cancel(t.Context()); err != nil {
			t.Fatal(err)
		}
		first.end()
		o, _ = s.with(t, request(workbench.Python, uses+`print(with_token(old, open("socket").read().strip()), with_token(os.environ["WORKBENCH_TOKEN"], open("socket").read().strip()))`), standIn)
		o.want(t, 0, "forbidden forbidden forbidden forbidden succeeded\nunavailable unavailable\n")
		if len(second.asked) != 1 || len(h.asked) != 0 {
			t.Errorf("asked %q and %q", second.asked, h.asked)
		}
		if second.refusals.Load() != 1 || h.refusals.Load() != 0 {
			t.Errorf("told of %d and %d refusals, want one of the run that was refused", second.refusals.Load(), h.refusals.Load())
		}
		// Nobody is told where another's socket is.
		h = newHost()
		first = s.begin(t, request(workbench.Bash, "echo $WORKBENCH_SOCKET > socket; echo up; sleep 60"), h)
		<-h.wrote
		o, _ = s.with(t, request(workbench.Python, `
import os
path = open("socket").read().strip()
known = open("/proc/net/unix").read()
print(os.path.exists(path), path in known, os.environ["WORKBENCH_SOCKET"] in known, os.path.basename(os.path.dirname(path)) in known, len(known) > 60)
for dir in ("/run/workbench/x", "/run/workbench/b"):
    try: print(os.listdir(dir))
    except PermissionError: print("refused")
`), standIn)
		o.want(t, 0, "True False False False True\nrefused\nrefused\n")
		if err := first.Cancel(t.Context()); err != nil {
			t.Fatal(err)
		}
		first.end()
		o, _ = s.with(t, inContext("tokens", workbench.Python, "import os\nwith open('token', 'w') as f: f.write(os.environ['WORKBENCH_TOKEN'])\nlen(set(os.environ['WORKBENCH_TOKEN'])) > 4, len(os.environ['WORKBENCH_TOKEN'])"), standIn)
		o.wantShown(t, "result (True, 32)")
		o, second = s.with(t, inContext("tokens", workbench.Python, uses), standIn)
		o.want(t, 0, "forbidden forbidden forbidden forbidden succeeded\n")
		if len(second.asked) != 1 {
			t.Errorf("asked %q", second.asked)
		}
	})
}

// TestRequestsShareAConnection: numbered requests leave it open; their answers come
// as they are ready.
func TestRequestsShareAConnection(t *testing.T) {
	onDefault(t, func(t *testing.T, s *session) {
		const wire = `
import json, os, socket, time
def connect():
    c = socket.socket(socket.AF_UNIX); c.connect(os.environ["WORKBENCH_SOCKET"]); return c
def ask(tool, token=os.environ["WORKBENCH_TOKEN"], **more):
    body = json.dumps({"token": token, "op": "call", "value": {"tool": tool, "args": {}}, **more}).encode()
    return len(body).to_bytes(4, "big") + body
def answers(c):
    f = c.makefile("rb")
    while head := f.read(4):
        a = json.loads(f.read(int.from_bytes(head, "big")))
        yield a.get("n"), a["error"]["code"] if "error" in a else a["result"]["status"]
`
		answer := func(ctx context.Context, op string, args map[string]any) (any, error) {
			if args["tool"] == "your_app.slow" {
				time.Sleep(time.Second)
				args["tool"] = "your_app.lookup"
			}
			return standIn(ctx, op, args)
		}
		for name, c := range map[string]struct{ source, stdout string }{
			"out of turn": {`
c = connect(); a = answers(c)
c.sendall(ask("your_app.slow", n=7) + ask("your_app.lookup", n=8) + ask("your_app.drop", n=7) + ask("your_app.lookup", token="no", n=9)[:30])
print(sorted([next(a), next(a)]))
c.sendall(ask("your_app.lookup", token="no", n=9)[30:])
print(next(a), next(a))
c.sendall(ask("your_app.pay", n=1)); print(next(a))
c.sendall(ask("your_app.slow", n=2) + ask("your_app.lookup")); print(list(a))
`, "[(7, 'denied'), (8, 'succeeded')]\n(9, 'forbidden') (7, 'succeeded')\n(1, 'pending_approval')\n[(2, 'succeeded'), (None, 'succeeded')]\n"},
			"content": {`
c = connect(); c.sendall(ask("your_app.slow", n=3) + ask("x", n=4, op="display", kind="display", size=2) + b"{}"); print(list(answers(c)))
`, "[(3, 'succeeded'), (4, 'invalid_request')]\n"},
			"no JSON, too long, cut off": {`
for bad in (b"\0\0\0\2{]", b"\xff\0\0\0", ask("your_app.lookup", n=2)[:-5]):
    c = connect(); c.sendall(ask("your_app.slow", n=1) + bad); c.shutdown(socket.SHUT_WR); print(list(answers(c)))
`, "[(1, 'succeeded'), (None, 'invalid_request')]\n[(1, 'succeeded'), (None, 'body_too_large')]\n[(1, 'succeeded'), (None, 'invalid_request')]\n"},
			"who takes no answer": {`
c = connect()
for n in range(1, 9): c.sendall(ask("your_app.large", n=n, value={"tool": "your_app.large", "args": {"n": 120_000}}))
print(workbench.call("your_app.lookup").status)
a = answers(c); print(sorted(next(a) for _ in range(8)) == [(n, "succeeded") for n in range(1, 9)])
`, "succeeded\nTrue\n"},
			"who never takes one": {`
c = connect(); c.settimeout(2)
try:
    while True: c.sendall(ask("your_app.large", n=1, value={"tool": "your_app.large", "args": {"n": 120_000}}))
except TimeoutError: print("it is full")
print(workbench.call("your_app.lookup").status)
`, "it is full\nsucceeded\n"},
		} {
			t.Run(name, func(t *testing.T) {
				o, _ := s.with(t, request(workbench.Python, wire+c.source), answer)
				o.want(t, 0, c.stdout)
			})
		}
	})
}

// TestConnectionsAreKept: what the helper library keeps is its process's and its
// cell's alone.
func TestConnectionsAreKept(t *testing.T) {
	t.Parallel() // it waits more than it works
	onDefault(t, func(t *testing.T, s *session) {
		for name, c := range map[string]struct {
			r    guestwire.ExecRequest
			want string
		}{
			"forks": {request(workbench.Python, `
import os, sys
ask = lambda: workbench.call("your_app.lookup").status
print(ask()); sys.stdout.flush()
for i in range(4):
    if os.fork() == 0:
        if {ask() for _ in range(20)} != {"succeeded"}: os.write(1, b"wrong\n")
        os._exit(0)
print({ask() for _ in range(20)})
for _ in range(4): assert os.wait()[1] == 0
`), "succeeded\n{'succeeded'}\n"},
			"forks of asyncio": {request(workbench.Python, `
import asyncio, os, sys
async def eight(): return {r.status for r in await asyncio.gather(*[workbench.aio.call("your_app.lookup") for _ in range(8)])}
print(asyncio.run(eight())); sys.stdout.flush()
for _ in range(3):
    if os.fork() == 0:
        if asyncio.run(eight()) != {"succeeded"}: os.write(1, b"wrong\n")
        os._exit(0)
print(asyncio.run(eight()))
for _ in range(3): assert os.wait()[1] == 0
`), "{'succeeded'}\n{'succeeded'}\n"},
			"closed by the program": {request(workbench.Python, `
import os
for _ in range(3):
    print(workbench.call("your_app.lookup").status)
    os.closerange(3, 64)
f = [open("/dev/null") for _ in range(4)]
print(workbench.call("your_app.lookup").status)
assert all(x.read() == "" for x in f)
`), "succeeded\nsucceeded\nsucceeded\nsucceeded\n"},
			"warnings are errors": {request(workbench.Python, `
import subprocess, sys
print(workbench.call("your_app.lookup").status)
p = subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-c", "import workbench; print(workbench.call('your_app.lookup').status)"], capture_output=True, text=True)
print(p.stdout, p.stderr)
`), "succeeded\nsucceeded\n \n"},
			"many that rest": {request(workbench.Python, `
import json, os, signal, socket
kept, child = [], os.fork()
if child: os.waitpid(child, os.WUNTRACED)
for i in range(150):  # more than may be open: those that rest longest give way
    c = socket.socket(socket.AF_UNIX); c.connect(os.environ["WORKBENCH_SOCKET"]); kept.append(c)
    body = json.dumps({"n": 1, "token": os.environ["WORKBENCH_TOKEN"], "op": "call", "value": {"tool": "your_app.lookup"}}).encode()
    c.sendall(len(body).to_bytes(4, "big") + body)
    assert json.loads(c.recv(65536)[4:])["result"]["status"] == "succeeded", i
if not child: os.kill(os.getpid(), signal.SIGSTOP)
os.kill(child, signal.SIGKILL)
print(workbench.call("your_app.lookup").status)
`), "succeeded\n"},
			"what a script starts": {request(workbench.Bash, "python3 -c 'import workbench; print(workbench.call(\"your_app.lookup\").status)'; PYTHONPATH=/tmp python3 -c 'import workbench' 2>&1 | tail -n 1; node -e 'require(\"workbench\").call(\"your_app.lookup\").then((r) => console.log(r.status))'"),
				"succeeded\nModuleNotFoundError: No module named 'workbench'\nsucceeded\n"},
			"workers": {request(workbench.JavaScript, `
const { Worker } = require('worker_threads');
const ask = async () => (await workbench.call('your_app.lookup')).status;
console.log(await ask());
const of = () => new Promise((done) => new Worker("const w = require('/run/workbench/lib/js/workbench'); w.call('your_app.lookup').then((r) => require('worker_threads').parentPort.postMessage(r.status))", { eval: true }).on('message', done));
console.log((await Promise.all([of(), of(), ask(), ask()])).join());
`), "succeeded\nsucceeded,succeeded,succeeded,succeeded\n"},
		} {
			t.Run(name, func(t *testing.T) {
				o, _ := s.with(t, c.r, standIn)
				o.want(t, 0, c.want)
			})
		}
		t.Run("cells", func(t *testing.T) {
			for i := range 20 {
				for language, source := range map[workbench.Language]string{
					workbench.Python:     "import asyncio\n[workbench.call('your_app.lookup').status] + [r.status for r in await asyncio.gather(*[workbench.aio.call('your_app.lookup') for _ in range(3)])]",
					workbench.JavaScript: "(await Promise.all([1, 2, 3, 4].map(() => workbench.call('your_app.lookup')))).map((r) => r.status)",
				} {
					o, h := s.with(t, inContext("kept-"+string(language), language, source), standIn)
					if o.ExitCode != 0 || len(h.asked) != 4 || o.stderr != "" {
						t.Fatalf("cell %d of %s ended %d after %d calls: %s", i, language, o.ExitCode, len(h.asked), clip(o.stderr))
					}
				}
			}
		})
	})
}
