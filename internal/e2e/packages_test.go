package e2e_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/server"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

const allowPackages = `permit(principal, action == Action::"use", resource == Service::"packages");`

// registry is a Python index and an npm registry in one, which counts.
type registry struct {
	*httptest.Server

	mu     sync.Mutex
	asked  map[string]int
	status map[string]int // instead of an answer
	pause  map[string]time.Duration
	files  map[string][]byte
	wheels map[string][]string // file names, by project
	npm    map[string]map[string]any
}

func mustRegistry(t *testing.T) *registry {
	t.Helper()
	r := &registry{asked: map[string]int{}, status: map[string]int{}, pause: map[string]time.Duration{}, files: map[string][]byte{}, wheels: map[string][]string{}, npm: map[string]map[string]any{}}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked[req.URL.Path]++
	if status := r.status[req.URL.Path]; status != 0 {
		w.WriteHeader(status)
		return
	}
	if raw, ok := r.files[req.URL.Path]; ok {
		if pause := r.pause[req.URL.Path]; pause > 0 {
			r.mu.Unlock()
			defer r.mu.Lock()
			_, _ = w.Write(raw[:1])
			w.(http.Flusher).Flush()
			time.Sleep(pause)
			raw = raw[1:]
		}
		_, _ = w.Write(raw)
		return
	}
	if name, ok := strings.CutPrefix(req.URL.Path, "/simple/"); ok {
		wheels, ok := r.wheels[strings.TrimSuffix(name, "/")]
		if !ok {
			http.NotFound(w, req)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		for _, file := range wheels {
			sum := sha256.Sum256(r.files["/files/"+file])
			_, _ = fmt.Fprintf(w, "<a href=\"../../files/%s#sha256=%s\">%s</a>\n", file, hex.EncodeToString(sum[:]), file)
		}
		return
	}
	if page, ok := r.npm[strings.TrimPrefix(req.URL.Path, "/npm/")]; ok {
		_ = json.NewEncoder(w).Encode(page)
		return
	}
	http.NotFound(w, req)
}

func (r *registry) asks() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, k := range r.asked {
		n += k
	}
	return n
}

// wheel adds a wheel of one module to the index.
func (r *registry) wheel(t *testing.T, name, version, tag, source string, needs ...string) {
	t.Helper()
	var raw bytes.Buffer
	z := zip.NewWriter(&raw)
	info := fmt.Sprintf("%s-%s.dist-info/", name, version)
	metadata := fmt.Sprintf("Metadata-Version: 2.1\nName: %s\nVersion: %s\n", name, version)
	for _, n := range needs {
		metadata += "Requires-Dist: " + n + "\n"
	}
	for _, f := range [][2]string{{name + "/__init__.py", source}, {info + "METADATA", metadata},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: " + tag + "\n"}, {info + "RECORD", ""},
		{info + "entry_points.txt", fmt.Sprintf("[console_scripts]\n%s-cli = %s:main\n", name, name)}} {
		w, err := z.Create(f[0])
		if err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write([]byte(f[1]))
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	r.file(fmt.Sprintf("%s-%s-%s.whl", name, version, tag), raw.Bytes(), name)
}

func (r *registry) file(file string, raw []byte, project string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files["/files/"+file] = raw
	r.wheels[project] = append(r.wheels[project], file)
}

// module adds an npm package of one file.
func (r *registry) module(t *testing.T, name, version, source string, needs map[string]string) {
	t.Helper()
	r.pack(t, name, version, map[string]any{"dependencies": needs, "hasInstallScript": true,
		"scripts": map[string]string{"postinstall": "touch /mnt/files/set/node/ran"}}, map[string]string{"package/index.js": source})
}

// pack adds an npm package of these files.
func (r *registry) pack(t *testing.T, name, version string, more map[string]any, files map[string]string) {
	t.Helper()
	about := map[string]any{"name": name, "version": version, "main": "index.js"}
	maps.Copy(about, more)
	first, err := json.Marshal(about)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{"package/package.json": string(first)}
	maps.Copy(all, files)
	var raw bytes.Buffer
	gz := gzip.NewWriter(&raw)
	tw := tar.NewWriter(gz)
	for _, file := range slices.Sorted(maps.Keys(all)) {
		if err := tw.WriteHeader(&tar.Header{Name: file, Mode: 0o644, Size: int64(len(all[file]))}); err != nil {
			t.Fatal(err)
		}
		_, _ = tw.Write([]byte(all[file]))
	}
	_, _ = tw.Close(), gz.Close()
	sum := sha512.Sum512(raw.Bytes())
	r.mu.Lock()
	defer r.mu.Unlock()
	at := fmt.Sprintf("/tarballs/%s-%s.tgz", strings.ReplaceAll(name, "/", "-"), version)
	r.files[at] = raw.Bytes()
	about["dist"] = map[string]any{"tarball": r.URL + at, "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])}
	r.npm[name] = map[string]any{"name": name, "dist-tags": map[string]string{"latest": version}, "versions": map[string]any{version: about}}
}

// mustShop is a server whose packages come from a registry of the test.
func mustShop(t *testing.T) (*desk, *registry) {
	t.Helper()
	r := mustRegistry(t)
	d := mustDesk(t, func(o *server.Options) { o.PythonIndex, o.NPMRegistry = r.URL+"/simple/", r.URL+"/npm" })
	return d, r
}

func TestPackages(t *testing.T) {
	t.Parallel() // it waits more than it works
	d, reg := mustShop(t)
	reg.wheel(t, "greeting", "1.0", "py3-none-any", "import manners\ndef main(): print('cli', manners.WORD)\nVERSION = 1\n", "manners>=2")
	reg.wheel(t, "manners", "2.5", "py3-none-any", "WORD = 'please'\n")
	reg.module(t, "padding", "1.2.3", "module.exports = (s) => require('@deep/spaces') + s;", map[string]string{"@deep/spaces": "^1.0.0"})
	reg.module(t, "@deep/spaces", "1.0.4", "module.exports = '  ';", nil)
	s := mustSessionOf(t, d.mustUser(t, "acme", "ada"), patient())

	wantOut(t, s.mustPython(`
try: workbench.packages.install("greeting")
except workbench.WorkbenchError as e: print(e.code)
`), "access_denied\n")
	if n := reg.asks(); n != 0 {
		t.Fatalf("without a rule the registry was asked %d times", n)
	}
	d.rules(t, "packages", allowPackages)

	first := s.mustPython(`
import subprocess
try: workbench.packages.install(None)
except TypeError as e: assert "None" in str(e)
else: assert False
set = workbench.packages.install("greeting")
import greeting, manners
print(manners.WORD, [(p["name"], p["version"]) for p in set["lock"]], set["path"].startswith("/opt/workbench/packages/"))
print(subprocess.run(["python3", "-c", "import greeting; greeting.main()"], capture_output=True, text=True).stdout, end="")
print(subprocess.run(["greeting-cli"], capture_output=True, text=True).stdout, end="")
`)
	wantOut(t, first, "please [('greeting', '1.0'), ('manners', '2.5')] True\ncli please\ncli please\n")
	if len(first.Packages) != 1 || len(first.Packages[0].Lock) != 2 || !strings.HasPrefix(first.Packages[0].Lock[0].Hash, "sha256-") {
		t.Errorf("the run has %+v", first.Packages)
	}
	if first.Services["packages"].Calls != 1 {
		t.Errorf("the run used %+v", first.Services)
	}
	wantOut(t, s.mustRun(sdk.CreateRun{Language: workbench.JavaScript, Code: `
await workbench.packages.install([null]).then(() => { throw new Error("it was installed"); }, (e) => { if (!(e instanceof TypeError)) throw e; });
const set = await workbench.packages.install(["padding@1.2.3"]);
const padding = (await import('padding')).default;
console.log(JSON.stringify(padding('x')), JSON.stringify(require('padding')('y')), set.lock.map((p) => p.name + '@' + p.version).join(' '));
console.log(require('child_process').execFileSync('node', ['-e', "console.log(require('padding')('z'))"]).toString().trimEnd());
console.log(require('fs').existsSync(set.path + '/node/ran'));
`}), "\"  x\" \"  y\" @deep/spaces@1.0.4 padding@1.2.3\n  z\nfalse\n")

	// Later runs have them, in every language, also in contexts and after a restart.
	asked := reg.asks()
	wantOut(t, s.mustPython(`import greeting; print(greeting.VERSION)`), "1\n")
	wantOut(t, s.mustRun(sdk.CreateRun{Language: workbench.TypeScript, Code: `import padding from 'padding'; console.log(padding('t'))`}), "  t\n")
	wantOut(t, s.mustRun(sdk.CreateRun{Language: workbench.Bash, Code: `greeting-cli; node -e "console.log(require('padding')('b'))"`}), "cli please\n  b\n")
	wantOut(t, s.cell(workbench.Python, `import greeting; print(greeting.VERSION)`), "1\n")
	if reg.asks() != asked {
		t.Errorf("the registry was asked again")
	}
	// The bash command, and another session of the tenant: what is there is not asked for.
	other := mustSessionOf(t, d.mustUser(t, "acme", "bob"), patient())
	wantOut(t, other.mustRun(sdk.CreateRun{Language: workbench.Bash, Code: `eval "$(workbench packages install greeting 2>/dev/null)"; greeting-cli; python3 -c 'import manners; print(manners.WORD)'`}),
		"cli please\nplease\n")
	if reg.asks() != asked {
		t.Errorf("the registry was asked for what is there")
	}
	wantOut(t, other.cell(workbench.JavaScript, `await workbench.packages.install('padding@1.2.3'); console.log(require('padding')('r'))`), "  r\n")
	wantOut(t, other.cell(workbench.JavaScript, `import p from 'padding'; console.log(p('c'))`), "  c\n")
	if reg.asks() != asked {
		t.Errorf("the registry was asked for what is there")
	}
	fork, err := s.c.ForkAgentSession(t.Context(), s.id, sdk.ForkSession{})
	if err != nil {
		t.Fatal(err)
	}
	forked := &session{t: t, c: s.c, id: fork.ID}
	wantOut(t, forked.mustPython(`import greeting; print(greeting.VERSION)`), "1\n")
	// Another tenant cannot know, or guess, that a set is there.
	foreign := mustSessionOf(t, d.mustUser(t, "globex", "eve"), patient())
	wantOut(t, foreign.mustPython(`
import os
try: print(os.listdir("/opt/workbench/packages"))
except PermissionError: print("not listed")
set = workbench.packages.install("greeting")
open("/mnt/files/path", "w").write(set["path"])
try: open(set["path"] + "/python/greeting/__init__.py", "a")
except OSError as e: print("read-only")
`), "not listed\nread-only\n")
	if reg.asks() == asked {
		t.Errorf("another tenant was given what the first one's set is")
	}
	if len(foreign.mustPython(`print(open("/mnt/files/path").read())`).Packages) != 1 {
		t.Errorf("the second run does not say what it had")
	}
}

func TestPackagesThatCannotBe(t *testing.T) {
	t.Parallel() // it waits more than it works
	d, reg := mustShop(t)
	d.rules(t, "packages", allowPackages)
	s := mustSessionOf(t, d.mustUser(t, "acme", "ada"), patient())
	reg.wheel(t, "present", "1.0", "py3-none-any", "")
	reg.wheel(t, "elsewhere", "1.0", "cp27-cp27m-win32", "")
	reg.wheel(t, "tampered", "1.0", "py3-none-any", "")
	reg.file("source-1.0.tar.gz", []byte("not a wheel"), "source")
	reg.wheel(t, "left", "1.0", "py3-none-any", "", "shared==1.0")
	reg.wheel(t, "right", "1.0", "py3-none-any", "", "shared==2.0")
	reg.wheel(t, "shared", "1.0", "py3-none-any", "")
	reg.wheel(t, "shared", "2.0", "py3-none-any", "")
	reg.pack(t, "upward", "1.0.0", map[string]any{"dependencies": map[string]string{"up": "file:../.."}}, nil)
	reg.mu.Lock()
	reg.status["/simple/forbidden/"] = http.StatusForbidden
	reg.status["/simple/broken/"] = http.StatusInternalServerError
	reg.files["/simple/tampered/"] = []byte(`<a href="/files/tampered-1.0-py3-none-any.whl#sha256=` + strings.Repeat("0", 64) + `">tampered-1.0-py3-none-any.whl</a>`)
	reg.files["/simple/inward/"] = []byte(`<a href="http://169.254.169.254/latest/inward-1.0-py3-none-any.whl">inward-1.0-py3-none-any.whl</a>`)
	reg.mu.Unlock()
	cases := []struct{ call, code, says string }{
		{`"absent"`, "packages_refused", "the registry has no package absent"},
		{`"present==9"`, "packages_refused", "there are 1.0"},
		{`"elsewhere"`, "packages_refused", "no wheel of"},
		{`"source"`, "packages_refused", "no wheel of"},
		{`"forbidden"`, "unavailable", "403"},
		{`"broken"`, "unavailable", "500"},
		{`"inward"`, "unavailable", "neither its own host nor https"},
		{`"tampered"`, "packages_refused", "is not the one that its page names by hash"},
		{`"left", "right"`, "packages_refused", "pip cannot install these together"},
		{`"present", manager="conda"`, "invalid_request", "pip or npm"},
		{`"requests; id"`, "invalid_request", "is no package of pip"},
		{`"--index-url=http://x"`, "invalid_request", "is no package of pip"},
		{`"https://host/x.whl"`, "invalid_request", "is no package of pip"},
		{`"./x"`, "invalid_request", "is no package of pip"},
		{`"git+ssh://host/x", manager="npm"`, "invalid_request", "is no package of npm"},
		{`"x@..", manager="npm"`, "invalid_request", "is no package of npm"},
		{`"upward", manager="npm"`, "packages_refused", "is no file of the registry"},
		{`"absent", manager="npm"`, "packages_refused", "the registry has no package absent"},
	}
	code := "from concurrent.futures import ThreadPoolExecutor\nimport json\ndef f(call):\n  try: return str(call())\n  except workbench.WorkbenchError as e: return e.code + ' | ' + str(e)\n" +
		"calls = [\n"
	for _, c := range cases {
		code += fmt.Sprintf("  lambda: workbench.packages.install(%s),\n", c.call)
	}
	limit := int64(120_000)
	r := s.mustRun(sdk.CreateRun{Language: workbench.Python, TimeoutMs: &limit, Code: code + "]\nprint(json.dumps(list(ThreadPoolExecutor(4).map(f, calls))))"})
	var said []string
	if err := json.Unmarshal([]byte(*r.Stdout), &said); err != nil || len(said) != len(cases) {
		t.Fatalf("%v: %s %s", err, *r.Stdout, *r.Stderr)
	}
	for i, c := range cases {
		if out := said[i]; !strings.HasPrefix(out, c.code+" |") || !strings.Contains(out, c.says) {
			t.Errorf("install(%s) says %q, want %s with %q", c.call, out, c.code, c.says)
		}
	}
	if r := s.mustPython(`print("ok")`); len(r.Packages) != 0 {
		t.Errorf("what failed is there: %+v", r.Packages)
	}
	left, err := os.ReadDir(filepath.Join(d.dir, "data", "packages", "tmp"))
	if err != nil || len(left) != 0 {
		t.Errorf("failed installations leave %v (%v)", left, err)
	}
}

// patient is a session whose runs may take long, as installations do on a busy machine.
func patient() sdk.CreateSession {
	long := int64(150_000)
	return sdk.CreateSession{Limits: &workbench.LimitsRequest{TimeoutMs: &long}}
}

// A file comes for longer than pip waits for an answer, a package brings another one
// inside of its own, a cache holds nothing, the path holds what is no text.
func TestPackagesThatTakeTheirTime(t *testing.T) {
	t.Parallel() // it waits more than it works
	reg := mustRegistry(t)
	d := mustDesk(t, func(o *server.Options) {
		o.PythonIndex, o.NPMRegistry, o.PackagesCache = reg.URL+"/simple/", reg.URL+"/npm", 1
	})
	d.rules(t, "packages", allowPackages)
	s := mustSessionOf(t, d.mustUser(t, "acme", "ada"), patient())
	reg.wheel(t, "slow", "1.0", "py3-none-any", "SAYS = 'slow'\n")
	reg.pack(t, "outer", "1.0.0", map[string]any{"bundleDependencies": []string{"inner"}, "dependencies": map[string]string{"inner": "1.0.0"}}, map[string]string{
		"package/index.js": "module.exports = require('inner')", "package/node_modules/inner/package.json": `{"name": "inner", "version": "1.0.0"}`,
		"package/node_modules/inner/index.js": "module.exports = 'inner'"})
	reg.mu.Lock()
	reg.pause["/files/slow-1.0-py3-none-any.whl"] = 17 * time.Second
	reg.mu.Unlock()
	wantOut(t, s.mustPython(`
import pathlib, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
sys.path.insert(0, pathlib.Path("/nowhere"))
with ThreadPoolExecutor() as pool:
    bundle = pool.submit(workbench.packages.install, "outer", manager="npm")
    workbench.packages.install("slow")
import slow
print(slow.SAYS, [p["name"] for p in bundle.result()["lock"]])
print(subprocess.run(["node", "-p", "require('outer')"], capture_output=True, text=True).stdout, end="")
`), "slow ['outer']\ninner\n")
}

// The registries themselves, as pip and npm know them, with a wheel that has native
// code, which lives on in a memory that is kept.
func TestPackagesOfTheRegistries(t *testing.T) {
	t.Parallel() // it waits more than it works
	d := mustDesk(t, quick)
	d.rules(t, "packages", allowPackages)
	s := mustSessionOf(t, d.mustUser(t, "acme", "ada"), sdk.CreateSession{KeepMemory: true, Limits: patient().Limits})
	limit := int64(120_000)
	wantOut(t, s.mustRun(sdk.CreateRun{Language: workbench.Python, TimeoutMs: &limit, Code: `
workbench.packages.install("ujson==5.10.0", "humanize==4.12.0")
import humanize, ujson
print(ujson.dumps({"a": 1}), humanize.intcomma(1234567), ujson.__file__.endswith(".so"))
`}), "{\"a\":1} 1,234,567 True\n")
	wantOut(t, s.mustRun(sdk.CreateRun{Language: workbench.JavaScript, TimeoutMs: &limit, Code: `
await workbench.packages.install('is-odd@3.0.1');
const { default: isOdd } = await import('is-odd');
console.log(isOdd(3), require('is-number')(4));
`}), "true true\n")
	wantOut(t, s.cell(workbench.Python, `import ujson; print(ujson.dumps([1]))`), "[1]\n")
	if at := s.mustSuspended(); !at.MemoryKept {
		t.Errorf("suspended %+v", at)
	}
	back := s.cell(workbench.Python, `import humanize; print(ujson.dumps([2]), humanize.intcomma(1000))`)
	wantOut(t, back, "[2] 1,000\n")
	if back.VariablesLost || back.Generation != 1 {
		t.Errorf("it returned in generation %d, variables lost: %t", back.Generation, back.VariablesLost)
	}
}
