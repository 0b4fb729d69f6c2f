package api

import (
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/workbenchdev/workbench"
)

// archiveWriter writes an archive.
type archiveWriter = func(io.Writer) error

// workspaceErrors are those of every change of a workspace.
var workspaceErrors = []workbench.Code{workbench.CodePathInvalid, workbench.CodePathConflict, workbench.CodeConflict, workbench.CodeRunsActive, workbench.CodeWorkspaceFull, workbench.CodeQuotaExceeded,
	workbench.CodeSessionClosed, workbench.CodeSessionExpired, workbench.CodeFenced, workbench.CodeKeyUnavailable, workbench.CodeCorrupt}

func workspaceRoutes() []Route {
	files := base + "/sessions/{id}/workspace"
	reads := func(r Route) Route {
		r.Method, r.Tag, r.Target, r.Scope = http.MethodGet, "workspace", workbench.KindSession, workbench.ScopeRead
		return r
	}
	changes := func(method string, r Route) Route {
		r.Method, r.Tag, r.Target, r.Scope, r.Admin = method, "workspace", workbench.KindSession, workbench.ScopeExecute, AdminNever
		if r.Replies == nil {
			r.Replies = []Reply{ok("What is there now, and the commit with the change in it.", workbench.WorkspaceChange{})}
		}
		r.Errors = append(append([]workbench.Code{}, workspaceErrors...), r.Errors...)
		return r
	}
	return []Route{
		reads(Route{
			Pattern: files, ID: "listWorkspace", Summary: "List a session's workspace",
			Description: "As it is now: while code runs, what it has made of it so far (live, without digests), else the last commit. What is in one directory, in order of the names' bytes; with recursive=true everything below it.",
			Admin:       AdminReads, handle: listWorkspace, Params: []Param{directoryParam, treeBytesParam, recursiveParam, limitParam, cursorParam},
			Replies: []Reply{ok("A page of entries.", WorkspaceList{})},
			Errors:  append([]workbench.Code{workbench.CodePathInvalid, workbench.CodePathConflict}, commitErrors...),
		}),
		reads(Route{
			Pattern: files + "/content", ID: "readWorkspaceFile", Summary: "Download a file of a session's workspace",
			Description: "As it is now. Ranges are supported. While code runs the file has no ETag, and a change meanwhile cuts the download. Links are never followed.",
			Admin:       AdminContents, Action: "workspace.download", handle: readWorkspaceFile, Headers: rangeHeaders, Params: []Param{treePathParam, treeBytesParam},
			Replies: contentReplies, Errors: contentErrors,
		}),
		reads(Route{
			Pattern: files + "/tar", ID: "downloadWorkspace", Summary: "Download all files of a session's workspace", Admin: AdminContents, Action: "workspace.download",
			handle: downloadWorkspace, Replies: tarReplies, Errors: commitErrors,
		}),
		changes(http.MethodPut, Route{
			Pattern: files + "/content", ID: "writeWorkspaceFile", Summary: "Put a file into a session's workspace",
			Description: "The file itself as the body, not a form. It is there whole or not at all, directories above it are made, and the change is a commit. A link is never followed and never replaced.",
			Action:      "workspace.write", RawBody: true, handle: writeWorkspaceFile,
			Params: []Param{treePathParam, treeBytesParam, {Name: "mode", Doc: "permissions in octal, such as 0755; default those it has, or 0644", Kind: TextParam}},
			Headers: []Param{
				{Name: "If-Match", Doc: `the SHA-256 that the file has, in quotes as its ETag gives it, or *: it exists; else 412`, Kind: TextParam},
				{Name: "If-None-Match", Doc: "*: the file does not exist; else 412", Kind: TextParam},
			},
			Replies: []Reply{{Status: http.StatusOK, Doc: "The file, and the commit with it.", Body: workbench.WorkspaceChange{}, Headers: []string{"ETag"}}},
			Errors:  []workbench.Code{workbench.CodeVersionMismatch, workbench.CodeFileTooLarge, workbench.CodeUnsupportedMedia},
		}),
		changes(http.MethodDelete, Route{
			Pattern: files + "/content", ID: "deleteWorkspaceFile", Summary: "Delete a file, link or directory of a session's workspace",
			Description: "A directory that is not empty goes only with recursive=true. The change is a commit: earlier ones still have the file.",
			Action:      "workspace.delete", handle: deleteWorkspaceFile, Params: []Param{treePathParam, treeBytesParam, recursiveParam},
		}),
		changes(http.MethodPost, Route{
			Pattern: files + "/move", ID: "moveWorkspaceFile", Summary: "Give a file, link or directory another name",
			Action: "workspace.move", Body: MoveRequest{}, handle: moveWorkspaceFile,
		}),
		changes(http.MethodPost, Route{
			Pattern: files + "/directories", ID: "makeWorkspaceDirectory", Summary: "Make a directory, and those above it", Description: "One that is there stays as it is.",
			Action: "workspace.directory", Body: DirectoryRequest{}, handle: makeWorkspaceDirectory,
		}),
	}
}

func listWorkspace(c *call) error {
	q, err := c.treeQuery()
	if err != nil {
		return err
	}
	view, err := c.s.o.Engine.WorkspaceTree(c.ctx, c.p, c.id, q)
	if err != nil {
		return err
	}
	s, err := c.s.o.Engine.Session(c.ctx, c.p, c.id)
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, WorkspaceList{Session: s.Ref(), Commit: view.Commit, Live: view.Live, Items: whole(view.Items), NextCursor: view.NextCursor})
}

func readWorkspaceFile(c *call) error {
	path, err := c.treePath()
	if err != nil {
		return err
	}
	defer c.s.o.Engine.Active(c.id)()
	entry, content, err := c.s.o.Engine.WorkspaceFile(c.ctx, c.p, c.id, path)
	if err != nil {
		return err
	}
	return c.content(baseName(path), octetStream, entry.SHA256, content)
}

// baseName is the last element of an exact path.
func baseName(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

func downloadWorkspace(c *call) error {
	defer c.s.o.Engine.Active(c.id)()
	write, err := c.s.o.Engine.WorkspaceTar(c.ctx, c.p, c.id)
	if err != nil {
		return err
	}
	return c.archive(write)
}

func writeWorkspaceFile(c *call) error {
	path, err := c.treePath()
	if err != nil {
		return err
	}
	w := workbench.WriteFile{Path: path, MaxBytes: c.s.o.MaxUploadBytes}
	if err := c.writeConditions(&w); err != nil {
		return err
	}
	if c.r.ContentLength > c.s.o.MaxUploadBytes {
		return c.fileTooLarge()
	}
	if mediaType, _, _ := mime.ParseMediaType(c.r.Header.Get("Content-Type")); strings.HasPrefix(mediaType, "multipart/") { // one that cannot be read is no form
		return workbench.E(workbench.CodeUnsupportedMedia, "the body is a form, which is not what the file is to hold").WithField("Content-Type").
			WithHint("send the file itself as the body: curl -T FILE, or --data-binary @FILE")
	}
	defer c.s.o.Engine.Active(c.id)()
	body := &progressBody{ReadCloser: http.MaxBytesReader(c.w, c.r.Body, c.s.o.MaxUploadBytes), w: c.w, stall: c.s.o.ReadTimeout}
	return c.changed(func() (workbench.WorkspaceChange, error) {
		change, err := c.s.o.Engine.WriteFile(c.ctx, c.p, c.id, w, body)
		if err != nil {
			return change, c.uploadError(err)
		}
		if change.Entry != nil {
			c.w.Header().Set("ETag", strconv.Quote(change.Entry.SHA256))
		}
		return change, nil
	})
}

// writeConditions reads the mode, and what must hold before a file is written.
func (c *call) writeConditions(w *workbench.WriteFile) error {
	if c.q.has("mode") {
		mode, err := strconv.ParseUint(c.q.text("mode"), 8, 32)
		if err != nil || mode > 0o777 {
			return invalid("mode", "mode must be permissions in octal, at most 0777").WithHint("send a mode such as 0644 or 0755")
		}
		m := uint32(mode)
		w.Mode = &m
	}
	match, none := c.r.Header.Get("If-Match"), c.r.Header.Get("If-None-Match")
	switch {
	case match != "" && none != "":
		return invalid("If-None-Match", "If-Match and If-None-Match exclude each other").WithHint("send one of them")
	case none == "*":
		w.IfAbsent = true
	case none != "":
		return invalid("If-None-Match", "If-None-Match must be * here").WithHint("send * to write only a file that does not exist")
	case match == "*":
		w.IfMatch = "*"
	case match != "":
		digest, isQuoted := strings.CutPrefix(match, `"`)
		digest, closed := strings.CutSuffix(digest, `"`)
		if !isQuoted || !closed || len(digest) != 64 || strings.Trim(digest, "0123456789abcdef") != "" {
			return invalid("If-Match", "If-Match must be the SHA-256 of the file in quotes, or *").WithHint("send the ETag of the file as it was given")
		}
		w.IfMatch = digest
	}
	return nil
}

// changed makes a change and answers with its outcome. What the answer says of
// the session is read first: what was changed must not be answered as failed.
func (c *call) changed(make func() (workbench.WorkspaceChange, error)) error {
	ref, err := c.sessionRef(c.id)
	if err != nil {
		return err
	}
	change, err := make()
	if err != nil {
		return err
	}
	change.Commit, change.Session = wholeCommit(change.Commit), *ref
	return c.json(http.StatusOK, change)
}

func deleteWorkspaceFile(c *call) error {
	path, err := c.treePath()
	if err != nil {
		return err
	}
	return c.changed(func() (workbench.WorkspaceChange, error) {
		return c.s.o.Engine.DeleteFile(c.ctx, c.p, c.id, path, c.q.text("recursive") == "true")
	})
}

func moveWorkspaceFile(c *call) error {
	b := c.body.(*MoveRequest)
	from, err := bodyPath("from", b.From, b.FromBase64)
	if err != nil {
		return err
	}
	to, err := bodyPath("to", b.To, b.ToBase64)
	if err != nil {
		return err
	}
	return c.changed(func() (workbench.WorkspaceChange, error) {
		return c.s.o.Engine.MoveFile(c.ctx, c.p, c.id, workbench.MoveFile{From: from, To: to, Overwrite: b.Overwrite})
	})
}

func makeWorkspaceDirectory(c *call) error {
	b := c.body.(*DirectoryRequest)
	path, err := bodyPath("path", strings.TrimSuffix(b.Path, "/"), b.PathBase64)
	if err != nil {
		return err
	}
	return c.changed(func() (workbench.WorkspaceChange, error) { return c.s.o.Engine.MakeDirectory(c.ctx, c.p, c.id, path) })
}

// bodyPath is a path that a body names in one of two ways.
func bodyPath(field, text, encoded string) (string, error) {
	if text == "" && encoded == "" {
		return "", invalid(field, "%s is required", field).WithHint("add it: a path in the workspace, or %sBase64 for a name that is not UTF-8", field)
	}
	return workbench.WorkspacePath(field, text, encoded)
}
