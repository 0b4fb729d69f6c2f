package verify

import (
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/workbenchdev/workbench/internal/guestwire"
)

// Probes are Python programs: prelude.py, which gives them raw system calls and
// the verdict, then the row's own file. They run from the command line, so that
// nothing that a workspace holds is loaded with them.
//
//go:embed probes
var probes embed.FS

// verdictMark begins the line in which a probe says what it found.
const verdictMark = "\nVERDICT "

// probeRequest composes a probe. Its parameters are the promised limits and
// what the row adds.
func (b *session) probeRequest(name string, params any) (guestwire.ExecRequest, error) {
	prelude, err := probes.ReadFile("probes/prelude.py")
	if err != nil {
		return guestwire.ExecRequest{}, err
	}
	body, err := probes.ReadFile("probes/" + name + ".py")
	if err != nil {
		return guestwire.ExecRequest{}, err
	}
	all := map[string]any{}
	promised := b.scene.promised()
	for _, p := range []any{map[string]any{
		"tasks": promised.Tasks, "files": promised.OpenFiles, "memory": promised.MemoryBytes,
		"workspace": promised.WorkspaceBytes, "inodes": promised.WorkspaceFiles, "scratch": promised.ScratchBytes,
	}, params} {
		if p == nil {
			continue
		}
		raw, err := json.Marshal(p)
		if err != nil {
			return guestwire.ExecRequest{}, err
		}
		more := map[string]any{}
		if err := json.Unmarshal(raw, &more); err != nil {
			return guestwire.ExecRequest{}, fmt.Errorf("parameters of probe %s: %w", name, err)
		}
		maps.Copy(all, more)
	}
	raw, err := json.Marshal(all)
	if err != nil {
		return guestwire.ExecRequest{}, err
	}
	return guestwire.ExecRequest{
		Argv:    []string{"/usr/bin/python3", "-I", "-S", "-c", string(prelude) + string(body) + "\ndone()\n", string(raw)},
		Timeout: 40 * time.Second,
	}, nil
}
