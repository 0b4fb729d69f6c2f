package sdk

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/workbenchdev/workbench"
)

// Upload describes a file to retain.
type Upload struct {
	Name     string // download name; default: the last element of Path
	Path     string // where it goes by default in a workspace; default: Name
	MimeType string // default: guessed from the name
	Size     int64  // bytes; 0 if unknown or empty
}

// UploadSessionArtifact sends a file into a session's retained files. It is
// never repeated by itself. Codes: file_too_large, quota_exceeded,
// path_invalid, session_closed, session_expired.
func (c *Client) UploadSessionArtifact(ctx context.Context, sessionID string, u Upload, content io.Reader) (workbench.Artifact, error) {
	q := url.Values{}
	if u.Name != "" {
		q.Set("name", u.Name)
	}
	if u.Path != "" {
		q.Set("path", u.Path)
	}
	mimeType := u.MimeType
	if mimeType == "" {
		mimeType = "application/octet-stream"
	}
	size := int64(-1)
	switch {
	case u.Size > 0:
		size = u.Size
	default:
		if sized, ok := content.(interface{ Len() int }); ok { // bytes.Reader, strings.Reader, bytes.Buffer
			size = int64(sized.Len())
		}
	}
	out, _, err := decode[workbench.Artifact](ctx, c, call{
		method: http.MethodPost, path: "/sessions/" + seg(sessionID) + "/artifacts", query: q,
		stream: content, size: size, header: http.Header{"Content-Type": {mimeType}},
	})
	return out, err
}

// ListSessionArtifacts pages a session's retained files.
func (c *Client) ListSessionArtifacts(ctx context.Context, sessionID string, page workbench.Page) (SessionList[workbench.Artifact], error) {
	return get[SessionList[workbench.Artifact]](ctx, c, "/sessions/"+seg(sessionID)+"/artifacts", pageQuery(page))
}

// SessionArtifact reads a retained file's metadata.
func (c *Client) SessionArtifact(ctx context.Context, artifactID string) (workbench.Artifact, error) {
	return get[workbench.Artifact](ctx, c, "/artifacts/"+seg(artifactID), nil)
}

// DownloadSessionArtifact writes a retained file's contents to w and returns
// how many bytes it wrote. A connection lost on the way is picked up where it
// broke. Codes: artifact_deleted, artifact_expired, not_found, forbidden.
func (c *Client) DownloadSessionArtifact(ctx context.Context, artifactID string, w io.Writer) (int64, error) {
	return c.download(ctx, "/artifacts/"+seg(artifactID)+"/content", nil, w)
}

// ReadSessionArtifact is DownloadSessionArtifact into memory.
func (c *Client) ReadSessionArtifact(ctx context.Context, artifactID string) ([]byte, error) {
	var b bytes.Buffer
	_, err := c.DownloadSessionArtifact(ctx, artifactID, &b)
	return b.Bytes(), err
}

// DeleteSessionArtifact deletes a retained file and returns what it was.
// Deleting twice changes nothing. It is never repeated by itself.
func (c *Client) DeleteSessionArtifact(ctx context.Context, artifactID string) (workbench.Artifact, error) {
	out, _, err := decode[workbench.Artifact](ctx, c, call{method: http.MethodDelete, path: "/artifacts/" + seg(artifactID)})
	return out, err
}

// download copies a body to w and asks for the rest when it breaks off. The
// entity tag makes sure that the rest belongs to the same content.
func (c *Client) download(ctx context.Context, path string, query url.Values, w io.Writer) (int64, error) {
	var done int64
	var tag string
	for n := 1; ; n++ {
		header := http.Header{"Accept": {"*/*"}}
		if done > 0 {
			header.Set("Range", "bytes="+strconv.FormatInt(done, 10)+"-")
			header.Set("If-Range", tag)
		}
		res, err := c.do(ctx, call{method: http.MethodGet, path: path, query: query, header: header})
		if err != nil {
			return done, err
		}
		if done > 0 && (res.StatusCode != http.StatusPartialContent || !strings.HasPrefix(res.Header.Get("Content-Range"), "bytes "+strconv.FormatInt(done, 10)+"-")) {
			res.Body.Close()
			return done, workbench.E(workbench.CodeUnavailable, "the download broke off and could not be continued").WithHint("download it again")
		}
		tag = res.Header.Get("ETag")
		written, readErr, writeErr := copyBody(w, res.Body)
		res.Body.Close()
		done += written
		if readErr == nil && writeErr == nil {
			return done, nil
		}
		if writeErr != nil {
			return done, writeErr
		}
		err = c.unreachable(ctx, readErr)
		if written > 0 {
			n = 0
		}
		if tag == "" || strings.HasPrefix(tag, "W/") || n >= c.o.Retries || c.pause(ctx, n+1, 0) != nil {
			return done, err
		}
	}
}

// copyBody tells a broken connection from a broken destination.
func copyBody(w io.Writer, body io.Reader) (written int64, readErr, writeErr error) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := body.Read(buffer)
		if n > 0 {
			m, werr := w.Write(buffer[:n])
			written += int64(m)
			if werr != nil {
				return written, nil, werr
			}
		}
		if err == io.EOF { //nolint:errorlint // Read returns io.EOF itself
			return written, nil, nil
		}
		if err != nil {
			return written, err, nil
		}
	}
}
