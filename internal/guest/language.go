package guest

import (
	"context"
	"embed"
	"encoding/binary"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

//go:embed lib
var libraries embed.FS

// writeLibraries lays the drivers and helper libraries out for user code to
// read.
func writeLibraries() error {
	return fs.WalkDir(libraries, "lib", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(runDir, path)
		if d.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		raw, err := libraries.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(to, raw, 0o644)
	})
}

// defaultNames are what tracebacks show where the request names nothing.
var defaultNames = map[workbench.Language]string{
	workbench.Python: "main.py", workbench.JavaScript: "main.mjs", workbench.TypeScript: "main.ts", workbench.Bash: "main.sh",
}

// command says what the exec's stage becomes. A *compileError is the user's.
func (e *execution) command(ctx context.Context) (*command, error) {
	c := &command{program: program{Dir: []byte(workspaceDir), Files: e.b.limits.OpenFiles, Tasks: e.b.nproc}}
	dir := workspaceDir
	if e.r.Dir != "" {
		dir = e.r.Dir
	}
	own := maps.Clone(e.b.session)
	if own == nil {
		own = map[string]string{}
	}
	own["WORKBENCH_SOCKET"], own["WORKBENCH_TOKEN"] = e.broker.socket.path, e.broker.token
	maps.Copy(own, e.r.Env)
	findHelper(own)
	findPackages(own, e.r)
	name := e.r.Name
	if name == "" {
		name = defaultNames[e.r.Language]
	}
	source := e.r.Source
	switch e.r.Language {
	case "":
		c.Dir = []byte(dir)
		c.Argv = toBytes(e.r.Argv)
		c.Env = e.b.environment(own)
		return c, nil
	case workbench.Bash:
		// Bash calls a script what it was called with: it starts where the script
		// is, and goes where it belongs before the script's first command, on the
		// same line, so that line numbers are the script's.
		place := filepath.Join(e.place.dir, "script")
		if err := os.Mkdir(place, 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(place, name), append([]byte("cd -- "+shellQuote(dir)+" || exit 126; unset OLDPWD; "), source...), 0o444); err != nil {
			return nil, err
		}
		c.Dir = []byte(place)
		c.Argv = toBytes(append([]string{e.b.interpreters[workbench.Bash], "--", name}, e.r.Args...))
		c.Env = e.b.environment(own)
		return c, nil
	case workbench.TypeScript:
		var err error
		if source, err = e.transpile(ctx, name, source); err != nil {
			return nil, err
		}
	default: // its interpreter takes the source as it is
	}
	path := filepath.Join(e.place.dir, pythonSource)
	if e.r.Language != workbench.Python {
		path = filepath.Join(e.place.dir, "main.mjs")
		if err := os.WriteFile(path, source, 0o444); err != nil {
			return nil, err
		}
	}
	c.program = interpreter(e.b, e.r.Language)
	if e.special() {
		c.Env = e.b.environment(own)
	}
	c.control = controlMessage(name, path, dir, e.r.Args, own, source)
	return c, nil
}

// interpreter is how a language's driver starts. It is the same for every exec,
// so that one which waits already is no different: what is an exec's own comes
// by the control descriptor.
func interpreter(b *binding, lang workbench.Language) program {
	p := program{Dir: []byte(workspaceDir), Files: b.limits.OpenFiles, Tasks: b.nproc, Env: b.environment(nil), Keep: []int{controlFD, reportFD}}
	p.Argv = toBytes([]string{b.interpreters[workbench.Python], libDir + "/driver.py"})
	if lang == workbench.Python {
		p.Env = b.environment(map[string]string{"PYTHONUSERBASE": noUserSite})
	}
	if lang != workbench.Python {
		p.Argv = toBytes(append([]string{b.interpreters[lang]}, append(nodeOptions(b.limits), libDir+"/driver.cjs")...))
	}
	return p
}

// noUserSite is where a Python that may wait looks for the user's own packages
// when it starts: code that a run left in the right place must not run before
// another run does. The driver uses the right place then.
const noUserSite = "/nonexistent"

// special reports whether the exec's environment has variables that an
// interpreter looks at when it starts: one that waits has started without them.
func (e *execution) special() bool {
	if e.r.Context != "" && e.r.Language == workbench.Python && e.r.Packages != "" {
		return true // they may be other versions of what a fork has loaded
	}
	for _, env := range []map[string]string{e.b.session, e.r.Env} {
		for name := range env {
			if slices.ContainsFunc(startVariables, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
				return true
			}
		}
	}
	return false
}

// startVariables are the beginnings of the names of variables that loaders,
// C libraries and interpreters read at their start.
var startVariables = []string{"PYTHON", "NODE", "LD_", "LC_", "LANG", "TZ", "MALLOC_", "GLIBC_", "OPENSSL_", "SSL_", "UV_", "OMP_", "OPENBLAS_", "MKL_", "NUMEXPR_"}

// nodeOptions give the driver what it needs to run a module from memory as if
// it were a file of the workspace, and V8 a thread for each CPU that there is:
// it would start four, and every thread costs a context time at each stop.
//
// V8's memory reducer collects garbage once a program has done nothing for eight
// seconds. An interpreter that has waited for its code for so long, or a context
// for its next cell, would do that first of all, with what is to be run waiting
// for it: 30 ms. What is allocated is collected without it as well.
func nodeOptions(l guestwire.SandboxLimits) []string {
	return []string{"--expose-internals", "--no-memory-reducer", "--v8-pool-size=" + strconv.Itoa(cpusOf(l))}
}

// pythonSource is where the processes that multiprocessing starts afresh read
// the program.
const pythonSource = "main.py"

// keepSource keeps a Python program for them while the exec lives, once it has
// lived for a moment. It is whole once it is there: the driver has such a process
// wait for it.
func (e *execution) keepSource() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.kept || e.place == nil || e.r.Language != workbench.Python {
		return
	}
	e.kept = true
	path := filepath.Join(e.place.dir, pythonSource)
	err := writeWhole(path+".part", e.r.Source, 0o444)
	if err == nil {
		err = unix.Rename(path+".part", path)
	}
	if err != nil {
		fmt.Fprintln(e.s.log, "guest: keep a program for its workers:", err)
	}
}

// writeWhole is os.WriteFile in as few system calls as there can be.
func writeWhole(path string, data []byte, mode uint32) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC, mode)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		default:
			data = data[n:]
		}
	}
	return nil
}

// environment is the base with more on top.
func (b *binding) environment(more map[string]string) [][]byte {
	all := maps.Clone(b.env)
	maps.Copy(all, more)
	env := make([][]byte, 0, len(all))
	for _, k := range slices.Sorted(maps.Keys(all)) {
		env = append(env, []byte(k+"="+all[k]))
	}
	return env
}

// controlMessage is what a driver reads: its length, then counted strings, each
// with its own, all as big-endian uint32, so that a driver needs no parser for it.
func controlMessage(name, path, dir string, args []string, env map[string]string, source []byte) []byte {
	var b []byte
	str := func(s string) {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	str("") // the length of the rest
	str(name)
	str(path)
	str(dir)
	b = binary.BigEndian.AppendUint32(b, uint32(len(args)))
	for _, a := range args {
		str(a)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(env)))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		str(k)
		str(env[k])
	}
	str(string(source))
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func shellQuote(s string) string {
	out := []byte{'\''}
	for i := range len(s) {
		if s[i] == '\'' {
			out = append(out, `'\''`...)
		} else {
			out = append(out, s[i])
		}
	}
	return string(append(out, '\''))
}

func toBytes(s []string) [][]byte {
	out := make([][]byte, len(s))
	for i, v := range s {
		out[i] = []byte(v)
	}
	return out
}
