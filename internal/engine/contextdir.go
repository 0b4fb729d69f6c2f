package engine

import (
	"context"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/workspace"
)

// contextDir is where an interpreter starts: an absolute path inside the
// sandbox, or one relative to the workspace. Code: path_invalid.
func contextDir(dir string) (string, error) {
	bad := func(why string) error {
		return workbench.E(workbench.CodePathInvalid, "cwd %s", why).WithField("cwd").
			WithHint("send an absolute path such as %s, or one relative to it", workbench.WorkspaceDir)
	}
	switch {
	case dir == "":
		return workbench.WorkspaceDir, nil
	case len(dir) > workbench.MaxContextDir:
		return "", bad("is longer than 1024 bytes")
	case !utf8.ValidString(dir) || strings.ContainsFunc(dir, func(r rune) bool { return r < 0x20 || r == 0x7f }):
		return "", bad("has a control character, or is not UTF-8")
	case strings.Contains("/"+dir+"/", "/../"):
		return "", bad(`has a ".." element`)
	}
	if !strings.HasPrefix(dir, "/") {
		dir = workbench.WorkspaceDir + "/" + dir
	}
	return path.Clean(dir), nil
}

// hasDir refuses a directory of the workspace that is not there, as far as that
// is known: not while runs are active, which may make it, nor through a link.
// Code: path_invalid.
func (e *Engine) hasDir(ctx context.Context, s workbench.Session, dir string) error {
	below, inside := strings.CutPrefix(dir, workbench.WorkspaceDir+"/")
	if !inside {
		return nil
	}
	if active, err := e.o.Store.ActiveRuns(ctx, s.ID); err != nil || len(active) > 0 {
		return err
	}
	tree := workspace.Empty()
	head, ok, err := e.o.Store.HeadCommit(ctx, s.ID)
	if err == nil && ok {
		tree, err = e.loadTree(ctx, head)
	}
	if err != nil {
		return err
	}
	at := ""
	for name := range strings.SplitSeq(below, "/") {
		at = path.Join(at, name)
		switch entry, there := tree.Get(at); {
		case !there:
			return noContextDir("there is no directory %s in the workspace", shortened(at))
		case entry.Type == workspace.Symlink:
			return nil
		case entry.Type != workspace.Dir:
			return noContextDir("%s in the workspace is no directory", shortened(at))
		}
	}
	return nil
}

func noContextDir(why string, args ...any) error {
	return workbench.E(workbench.CodePathInvalid, "cwd must be a directory that is there: "+why, args...).WithField("cwd").
		WithHint("make it first, or leave cwd out to start in the workspace itself")
}
