package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/policy"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// The calls of one sample: no more than a run may make. They are timed inside, by the
// code that makes them: what is measured is from call to receipt, without the run
// around it. As a run makes one call before those in turn, it makes as many at once
// before those at once that are judged; what those first ones took is shown too.
const (
	callsInTurn = 7
	callsAtOnce = 8 // of workbench.aio, of promises, or of threads
)

const toolProgram = `
import time
time.sleep(0.5)  # what follows its start, such as the next interpreter that waits, is over
def call():
    assert workbench.call("bench.nothing").status == "succeeded"
call()
took = []
for _ in range(%d):
    began = time.perf_counter(); call(); took.append(time.perf_counter() - began)
print(sorted(took)[len(took) // 2] * 1e9)
`

const toolProgramAsync = `
import asyncio, time
time.sleep(0.5)  # as above
async def call():
    assert (await workbench.aio.call("bench.nothing")).status == "succeeded"
async def timed(awaitable):
    began = time.perf_counter(); await awaitable
    return (time.perf_counter() - began) * 1e9
async def main():
    await call()
    one = sorted([await timed(call()) for _ in range(%[1]d)])[%[1]d // 2]
    first, second = [await timed(asyncio.gather(*[call() for _ in range(%[2]d)])) for _ in range(2)]
    print(one, first, second)
asyncio.run(main())
`

const toolProgramThreads = `
import threading, time
time.sleep(0.5)  # as above
workbench.call("bench.nothing")
start, statuses = threading.Barrier(%[1]d + 1), []
def wait_and_call():
    start.wait(); statuses.append(workbench.call("bench.nothing").status)
threads = [threading.Thread(target=wait_and_call) for _ in range(%[1]d)]
for t in threads: t.start()
start.wait(); began = time.perf_counter()
for t in threads: t.join()
took = time.perf_counter() - began
assert statuses == ["succeeded"] * %[1]d, statuses
print(took * 1e9)
`

const toolProgramJS = `
await new Promise((go) => setTimeout(go, 500)); // as above
const call = async () => {
  if ((await workbench.call('bench.nothing')).status !== 'succeeded') throw new Error('it failed');
};
await call();
const took = [];
for (let i = 0; i < %d; i++) {
  const began = performance.now();
  await call();
  took.push(performance.now() - began);
}
const atOnce = async () => {
  const began = performance.now();
  await Promise.all(Array.from({ length: %d }, call));
  return (performance.now() - began) * 1e6;
};
console.log(took.sort((a, b) => a - b)[took.length >> 1] * 1e6, await atOnce(), await atOnce());
`

// tools is a session whose code calls a tool that does nothing.
type tools struct {
	w       *world
	service *http.Server
	session string
}

// openTools declares the tool, a service of this process on loopback.
func (w *world) openTools(ctx context.Context) (*tools, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	t := &tools{w: w, service: &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"done": true}`)
	})}}
	go func() { _ = t.service.Serve(listener) }() // ends with close
	admin, err := sdk.New(sdk.Options{BaseURL: w.url, Key: w.server.AdminKey()})
	if err != nil {
		return t, err
	}
	_, err = admin.PutApp(ctx, "bench", sdk.PutApp{Kind: workbench.AppHTTP, Config: workbench.AppConfig{URL: "http://" + listener.Addr().String(),
		Endpoints: []workbench.Endpoint{{Name: "nothing", Method: http.MethodPost, Path: "/", InputSchema: json.RawMessage(`{"type": "object"}`)}}}})
	if err != nil {
		return t, err
	}
	if _, err := admin.ChangeRules(ctx, sdk.ChangeRules{Put: []sdk.RuleText{{Name: "bench", Text: `permit(principal, action == Action::"call", resource in App::"bench");`}}}); err != nil {
		return t, err
	}
	t.session, err = w.session(ctx, sdk.CreateSession{Tools: []workbench.ToolRef{{Name: "bench.nothing", Version: "1"}}})
	return t, err
}

func (t *tools) close() error {
	if t == nil {
		return nil
	}
	return t.service.Close()
}

// contenders are one call after another, in Python also those of workbench.aio, many at
// once, a run's first and then again, and in Python also as many by threads.
func (t *tools) contenders() []contender {
	var all []contender
	add := func(l workbench.Language, program string, names ...string) {
		for i, name := range names {
			all = append(all, contender{name: name, language: string(l), few: true, rest: t.w.rest, run: func(ctx context.Context) (time.Duration, error) {
				took, err := t.sample(ctx, l, program, len(names))
				if err != nil {
					return 0, err
				}
				return took[i], nil
			}})
		}
	}
	add(workbench.Python, fmt.Sprintf(toolProgram, callsInTurn), nameCall)
	add(workbench.Python, fmt.Sprintf(toolProgramAsync, callsInTurn, callsAtOnce), nameAwaited, nameFirstCalls, nameCalls)
	add(workbench.Python, fmt.Sprintf(toolProgramThreads, callsAtOnce), nameThreads)
	add(workbench.JavaScript, fmt.Sprintf(toolProgramJS, callsInTurn, callsAtOnce), nameCall, nameFirstCalls, nameCalls)
	slices.SortFunc(all, func(a, b contender) int { return strings.Compare(a.name+b.language, b.name+a.language) })
	return all
}

func (t *tools) sample(ctx context.Context, l workbench.Language, program string, numbers int) (took []time.Duration, err error) {
	r, err := t.w.submit(ctx, t.session, job(l, program), time.Minute)
	if err != nil {
		return took, err
	}
	fields := strings.Fields(r.Output())
	if r.Status != workbench.StatusSucceeded || len(fields) != numbers {
		return took, fmt.Errorf("the run ended %s (%s) %s: %s", r.Status, r.Reason, r.Message, r.ErrorOutput())
	}
	for _, f := range fields {
		ns, parseErr := strconv.ParseFloat(f, 64)
		took, err = append(took, time.Duration(ns)), errors.Join(err, parseErr)
	}
	return took, err
}

// decisions times one decision under a project's thousand policies, most of which
// speak of other tools: the one that allows the call is the last.
func decisions() (figure, error) {
	const policies, samples = 1000, 500
	var text strings.Builder
	for i := range policies - 1 {
		fmt.Fprintf(&text, "permit(principal, action == Action::\"call\", resource == Tool::\"app%d.tool\") when { principal.tenant == \"acme\" && context.ceil.amount < %d };\n", i, i)
	}
	text.WriteString(`permit(principal, action == Action::"call", resource in App::"bench") when { context.args.amount <= 10 && context.session.agent == "bench" };`)
	set, problems := policy.Compile([]workbench.Rule{{Name: "many", Text: text.String()}})
	if set == nil {
		return figure{}, fmt.Errorf("the policies do not compile: %+v", problems)
	}
	request := policy.Request{Action: policy.ActionCall, Principal: policy.Identity{ProjectID: "prj_1", TenantID: "ten_1", TenantName: "acme", UserID: "usr_1", UserName: "ada"},
		Tool: &workbench.Tool{App: "bench", Name: "bench.nothing", Version: "1"}, Session: &workbench.Session{ID: "ses_1", Agent: "bench"},
		Language: workbench.Python, Lane: workbench.LaneForeground, Args: json.RawMessage(`{"amount": 5, "to": ["a", "b"]}`)}
	took := make([]time.Duration, samples)
	for i := range took {
		began := time.Now()
		decision := set.Decide(request)
		took[i] = time.Since(began)
		if !decision.Allowed {
			return figure{}, fmt.Errorf("the call is denied: %s", decision.Denied)
		}
	}
	slices.Sort(took)
	return figure{Name: nameDecision, Unit: "ms", Value: float64(took[samples/2].Nanoseconds()) / 1e6, Samples: samples}, nil
}
