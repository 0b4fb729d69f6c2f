package guest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/evanw/esbuild/pkg/api"
	"golang.org/x/sys/unix"
)

// Bounds of one translation. esbuild promises no end of its own, so it runs as
// a process of the exec's group, with user code's identity and limits.
const (
	transpileTime   = 20 * time.Second
	transpileOutput = 8 << 20
	maxMessages     = 10
)

// transpile turns TypeScript into an ES module with its source map inside.
// Local modules in TypeScript become part of it; what else it imports stays an
// import. A *compileError is the user's.
func (e *execution) transpile(ctx context.Context, name string, source []byte) ([]byte, error) {
	return e.translate(ctx, source, name)
}

// transpileCell turns a cell into JavaScript: what it declares keeps its name,
// and what it imports stays an import, also where the cell does not use it.
func (e *execution) transpileCell(ctx context.Context, name string, source []byte) ([]byte, error) {
	return e.translate(ctx, source, name, "cell")
}

func (e *execution) translate(ctx context.Context, source []byte, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, transpileTime)
	defer cancel()
	t := &transpiling{ended: make(chan unix.WaitStatus, 1)}
	if err := t.start(e, source, args); err != nil {
		return nil, err
	}
	select {
	case status := <-t.ended:
		t.reading.Wait()
		switch {
		case status.Exited() && status.ExitStatus() == 0:
			return t.out.Bytes(), nil
		case status.Exited() && status.ExitStatus() == 2:
			return nil, &compileError{t.err.String()}
		}
		return nil, &compileError{fmt.Sprintf("error: the program could not be translated: %s", strings.TrimSpace(t.err.String()))}
	case <-ctx.Done():
	case <-e.cancelled:
	}
	e.group.kill()
	t.reading.Wait()
	return nil, &compileError{"error: translating the program took too long\n"}
}

// transpiling is one translation under way.
type transpiling struct {
	out, err bytes.Buffer
	reading  sync.WaitGroup
	ended    chan unix.WaitStatus
}

func (t *transpiling) start(e *execution, source []byte, args []string) error {
	var its []int
	var mine []*os.File
	defer func() {
		for _, fd := range its {
			_ = unix.Close(fd)
		}
	}()
	for _, childReads := range []bool{true, false, false, true} {
		f, fd, err := pipe(childReads)
		if err != nil {
			closeFiles(mine)
			return err
		}
		mine, its = append(mine, f), append(its, fd)
	}
	if _, err := e.group.spawn(its, true, func(ev groupEvent) { t.ended <- unix.WaitStatus(ev.Status) }); err != nil {
		closeFiles(mine)
		return err
	}
	for i, to := range []*bytes.Buffer{&t.out, &t.err} {
		from := mine[i+1]
		t.reading.Go(func() {
			defer from.Close()
			_, _ = io.Copy(to, io.LimitReader(from, transpileOutput)) // a cut translation does not parse
		})
	}
	t.reading.Go(func() {
		defer mine[0].Close()
		_, _ = mine[0].Write(source) // fails if the translator has ended
	})
	p := program{Argv: toBytes(append([]string{guestBinary, "transpile"}, args...)), Dir: []byte(workspaceDir), Files: e.b.limits.OpenFiles, Tasks: e.b.nproc}
	p.Env = toBytes([]string{"GOMAXPROCS=1", "GOMEMLIMIT=128MiB"})
	_, err := mine[3].Write(marshalProgram(p))
	mine[3].Close()
	return err
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// transpileMain is the translator: source on stdin, module on stdout, messages
// on stderr. Exit status 2: the program is at fault.
func transpileMain() int {
	lean()
	name := "main.ts"
	if len(os.Args) > 2 {
		name = os.Args[2]
	}
	source, err := io.ReadAll(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if len(os.Args) > 3 && os.Args[3] == "cell" {
		return transpileCellMain(name, source)
	}
	result := api.Build(api.BuildOptions{
		Stdin:         &api.StdinOptions{Contents: string(source), ResolveDir: workspaceDir, Sourcefile: name, Loader: api.LoaderTS},
		Bundle:        true,
		Write:         false,
		Outfile:       filepath.Join(workspaceDir, name+".mjs"),
		AbsWorkingDir: workspaceDir,
		Format:        api.FormatESModule,
		Platform:      api.PlatformNode,
		Target:        api.ES2022,
		Sourcemap:     api.SourceMapInline,
		Charset:       api.CharsetUTF8,
		TsconfigRaw:   "{}",
		LogLevel:      api.LogLevelSilent,
		Plugins:       []api.Plugin{{Name: "local", Setup: localOnly}},
	})
	if len(result.Errors) > 0 {
		return complain(result.Errors)
	}
	if len(result.OutputFiles) != 1 {
		fmt.Fprintln(os.Stderr, "no translation")
		return 1
	}
	if _, err := os.Stdout.Write(result.OutputFiles[0].Contents); err != nil {
		return 1
	}
	return 0
}

// complain shows what is wrong with the program: where, what, and the line.
func complain(errors []api.Message) int {
	for _, m := range errors[:min(len(errors), maxMessages)] {
		at := m.Location
		if at == nil {
			fmt.Fprintf(os.Stderr, "SyntaxError: %s\n", m.Text)
			continue
		}
		line := []byte(at.LineText)
		mark := bytes.Map(func(r rune) rune {
			if r == '\t' {
				return r
			}
			return ' '
		}, line[:min(at.Column, len(line))])
		fmt.Fprintf(os.Stderr, "%s:%d:%d\n%s\n%s^\n\nSyntaxError: %s\n", at.File, at.Line, at.Column+1, line, mark, m.Text)
	}
	return 2
}

// transpileCellMain translates without putting anything together.
func transpileCellMain(name string, source []byte) int {
	result := api.Transform(string(source), api.TransformOptions{
		Sourcefile:  name,
		Loader:      api.LoaderTS,
		Platform:    api.PlatformNode,
		Target:      api.ESNext,
		TreeShaking: api.TreeShakingFalse,
		Charset:     api.CharsetUTF8,
		TsconfigRaw: `{"compilerOptions":{"verbatimModuleSyntax":true}}`,
		Sourcemap:   api.SourceMapExternal,
		LogLevel:    api.LogLevelSilent,
	})
	if len(result.Errors) > 0 {
		return complain(result.Errors)
	}
	code, err := onTheirLines(result.Code, result.Map)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if _, err := os.Stdout.Write(code); err != nil {
		return 1
	}
	return 0
}

// localOnly decides what becomes part of the translated module: TypeScript of
// the workspace that is imported by a relative path. Everything else is left to
// Node, with relative paths made absolute.
func localOnly(b api.PluginBuild) {
	b.OnResolve(api.OnResolveOptions{Filter: `.*`}, func(a api.OnResolveArgs) (api.OnResolveResult, error) {
		if a.Kind == api.ResolveEntryPoint {
			return api.OnResolveResult{}, nil
		}
		if !strings.HasPrefix(a.Path, "./") && !strings.HasPrefix(a.Path, "../") && a.Path != "." && a.Path != ".." {
			return api.OnResolveResult{Path: a.Path, External: true}, nil
		}
		full := filepath.Join(a.ResolveDir, a.Path)
		if ts := typescriptAt(full); ts != "" && (a.Kind == api.ResolveJSImportStatement || a.Kind == api.ResolveJSDynamicImport || a.Kind == api.ResolveJSRequireCall) {
			return api.OnResolveResult{Path: ts}, nil
		}
		return api.OnResolveResult{Path: full, External: true}, nil
	})
}

// typescriptAt finds the TypeScript file that an import names: with its own
// ending, without any, or with that of what it is translated to.
func typescriptAt(path string) string {
	stem := path
	for _, ending := range []string{".js", ".mjs"} {
		stem = strings.TrimSuffix(stem, ending)
	}
	candidates := []string{path}
	if _, err := os.Stat(path); err != nil || stem == path {
		candidates = append(candidates, stem+".ts", stem+".tsx", stem+".mts", stem+"/index.ts")
	}
	for _, c := range candidates {
		switch filepath.Ext(c) {
		case ".ts", ".tsx", ".mts", ".cts":
			if info, err := os.Stat(c); err == nil && info.Mode().IsRegular() {
				return c
			}
		}
	}
	return ""
}
