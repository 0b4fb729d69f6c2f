package sdk

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"unicode/utf8"

	"github.com/workbenchdev/workbench"
)

// Workspace is a page of a session's workspace as it is now.
type Workspace struct {
	Session    workbench.SessionRef  `json:"session"`
	Commit     string                `json:"commit"` // shown, or the last one before a live view; "" before the first
	Live       bool                  `json:"live"`   // code runs, and this is what it has made of it so far
	Items      []workbench.TreeEntry `json:"items"`
	NextCursor string                `json:"nextCursor"`
}

// pathQuery names an exact path, in base64 where it is not text.
func pathQuery(path string) url.Values {
	if utf8.ValidString(path) {
		return url.Values{"path": {path}}
	}
	return url.Values{"pathBase64": {base64.StdEncoding.EncodeToString([]byte(path))}}
}

func treeQuery(t workbench.TreeQuery) url.Values {
	q := pageQuery(t.Page)
	if t.Path != "" {
		for name, values := range pathQuery(t.Path) {
			q[name] = values
		}
	}
	if t.Recursive {
		q.Set("recursive", "true")
	}
	return q
}

func workspacePath(sessionID, rest string) string {
	return "/sessions/" + seg(sessionID) + "/workspace" + rest
}

// ListWorkspace pages a session's workspace as it is now. Codes: not_found,
// path_conflict.
func (c *Client) ListWorkspace(ctx context.Context, sessionID string, q workbench.TreeQuery) (Workspace, error) {
	return get[Workspace](ctx, c, workspacePath(sessionID, ""), treeQuery(q))
}

// DownloadWorkspaceFile writes a file of a session's workspace, as it is now, to
// w and returns how many bytes it wrote.
func (c *Client) DownloadWorkspaceFile(ctx context.Context, sessionID, path string, w io.Writer) (int64, error) {
	return c.download(ctx, workspacePath(sessionID, "/content"), pathQuery(path), w)
}

// ReadWorkspaceFile is DownloadWorkspaceFile into memory; for small files.
func (c *Client) ReadWorkspaceFile(ctx context.Context, sessionID, path string) ([]byte, error) {
	var b bytes.Buffer
	_, err := c.DownloadWorkspaceFile(ctx, sessionID, path, &b)
	return b.Bytes(), err
}

// DownloadWorkspace writes all files of a session's workspace, as it is now, to
// w, as a tar archive.
func (c *Client) DownloadWorkspace(ctx context.Context, sessionID string, w io.Writer) (int64, error) {
	return c.download(ctx, workspacePath(sessionID, "/tar"), nil, w)
}

// WriteFile describes a file to put into a workspace.
type WriteFile struct {
	Path     string  // exact
	Mode     *uint32 // permissions; default those it has, or 0644
	IfMatch  string  // fail unless the file has this SHA-256; "*": unless it exists
	IfAbsent bool    // fail if it exists
	Size     int64   // bytes; 0 if unknown or empty
}

// WriteWorkspaceFile puts a file into a session's workspace, whole or not at
// all. It is never repeated by itself. Codes: path_invalid, path_conflict,
// version_mismatch, workspace_full, file_too_large, session_closed,
// session_expired.
func (c *Client) WriteWorkspaceFile(ctx context.Context, sessionID string, f WriteFile, content io.Reader) (workbench.WorkspaceChange, error) {
	q := pathQuery(f.Path)
	if f.Mode != nil {
		q.Set("mode", fmt.Sprintf("%04o", *f.Mode))
	}
	header := http.Header{"Content-Type": {"application/octet-stream"}}
	switch {
	case f.IfMatch == "*":
		header.Set("If-Match", "*")
	case f.IfMatch != "":
		header.Set("If-Match", strconv.Quote(f.IfMatch))
	case f.IfAbsent:
		header.Set("If-None-Match", "*")
	}
	size := int64(-1)
	if f.Size > 0 {
		size = f.Size
	} else if sized, ok := content.(interface{ Len() int }); ok { // bytes.Reader, strings.Reader, bytes.Buffer
		size = int64(sized.Len())
	}
	out, _, err := decode[workbench.WorkspaceChange](ctx, c, call{method: http.MethodPut, path: workspacePath(sessionID, "/content"), query: q, stream: content, size: size, header: header})
	return out, err
}

// DeleteWorkspaceFile takes a file, link or directory out of a session's
// workspace; a directory that is not empty only with recursive. Codes:
// not_found, path_conflict.
func (c *Client) DeleteWorkspaceFile(ctx context.Context, sessionID, path string, recursive bool) (workbench.WorkspaceChange, error) {
	q := pathQuery(path)
	if recursive {
		q.Set("recursive", "true")
	}
	out, _, err := decode[workbench.WorkspaceChange](ctx, c, call{method: http.MethodDelete, path: workspacePath(sessionID, "/content"), query: q})
	return out, err
}

// MoveWorkspaceFile gives a file, link or directory another name. Codes:
// not_found, path_conflict, path_invalid.
func (c *Client) MoveWorkspaceFile(ctx context.Context, sessionID string, m workbench.MoveFile) (workbench.WorkspaceChange, error) {
	body := map[string]any{"overwrite": m.Overwrite}
	namePath(body, "from", m.From)
	namePath(body, "to", m.To)
	return post[workbench.WorkspaceChange](ctx, c, workspacePath(sessionID, "/move"), body)
}

// MakeWorkspaceDirectory makes a directory and those above it. Codes:
// path_conflict.
func (c *Client) MakeWorkspaceDirectory(ctx context.Context, sessionID, path string) (workbench.WorkspaceChange, error) {
	body := map[string]any{}
	namePath(body, "path", path)
	return post[workbench.WorkspaceChange](ctx, c, workspacePath(sessionID, "/directories"), body)
}

// namePath names an exact path in a body, in base64 where it is not text.
func namePath(body map[string]any, field, path string) {
	if utf8.ValidString(path) {
		body[field] = path
		return
	}
	body[field+"Base64"] = base64.StdEncoding.EncodeToString([]byte(path))
}
