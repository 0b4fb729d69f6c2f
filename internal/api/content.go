package api

import (
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
)

var rangeHeaders = []Param{
	{Name: "Range", Doc: "bytes=…", Kind: TextParam},
	{Name: "If-Range", Doc: "the ETag of the content the range is of", Kind: TextParam},
	{Name: "If-Match", Doc: "answers 412 unless the content has this ETag", Kind: TextParam},
	{Name: "If-None-Match", Doc: "answers 304 if the content has this ETag", Kind: TextParam},
}

const octetStream = "application/octet-stream"

var contentReplies = []Reply{
	{Status: http.StatusOK, Doc: "The bytes, as an attachment.", Types: []string{octetStream}, Headers: []string{"ETag", "Content-Disposition", "Accept-Ranges"}},
	{Status: http.StatusPartialContent, Doc: "The range asked for.", Types: []string{octetStream}, Headers: []string{"ETag", "Content-Range"}},
	{Status: http.StatusNotModified, Doc: "The content has the ETag sent."},
}

func downloadArtifact(c *call) error {
	a, content, err := c.s.o.Artifacts.Open(c.ctx, c.p, c.id)
	if err != nil {
		return err
	}
	defer c.s.o.Engine.Active(a.SessionID)()
	return c.content(a.Name, a.MimeType, a.SHA256, content)
}

func readRunFile(c *call) error {
	name, err := c.treePath()
	if err != nil {
		return err
	}
	file, content, err := c.s.o.Engine.RunFile(c.ctx, c.p, c.id, name)
	if err != nil {
		return err
	}
	return c.content(baseName(name), octetStream, file.SHA256, content)
}

// content sends bytes that nobody vouches for: as an attachment, with the type
// as declared, in a form that no browser sniffs, renders or runs.
func (c *call) content(name, mimeType, sha256 string, content io.ReadSeekCloser) error {
	defer func() { _ = content.Close() }() // only read from
	h := c.w.Header()
	h.Set("Content-Type", declaredType(mimeType))
	h.Set("Content-Disposition", Attachment(name))
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "private, no-store")
	if sha256 != "" {
		h.Set("ETag", strconv.Quote(sha256))
	}
	w := &rangeWriter{reply: c.w}
	guarded := &guardedContent{ReadSeeker: content}
	if ranges, ok := strings.CutPrefix(c.r.Header.Get("Range"), "bytes="); ok {
		c.r.Header.Set("Range", "bytes="+plainRanges(ranges))
	} else {
		c.r.Header.Del("Range") // of a unit that is not known here: to be ignored
	}
	http.ServeContent(w, c.r, "", time.Time{}, guarded)
	switch w.refused {
	case http.StatusPreconditionFailed:
		return workbench.E(workbench.CodeVersionMismatch, "the content has another ETag than If-Match names").WithField("If-Match").
			WithHint("ask again without If-Match, and use the ETag of the answer")
	case http.StatusRequestedRangeNotSatisfiable:
		h.Del("Etag")
		return workbench.E(workbench.CodeRangeInvalid, "the range asked for is not in the file, or malformed").WithField("Range").
			WithHint("the file's length stands in Content-Range; ask for bytes=first-last")
	}
	if guarded.err != nil {
		if c.w.status == 0 {
			return guarded.err
		}
		return c.w.cutOff(guarded.err)
	}
	if c.w.gone { // ServeContent does not tell
		return c.w.cutOff(nil)
	}
	return nil
}

// plainRanges has net/http read what it reads otherwise than RFC 9110: numbers
// beyond 64 bits are as good as the largest, and a suffix of no bytes is a range
// that no content satisfies, as one that begins behind every end is.
func plainRanges(ranges string) string {
	specs := strings.Split(ranges, ",")
	for i, spec := range specs {
		first, last, ok := strings.Cut(strings.TrimSpace(spec), "-")
		if !ok || strings.Trim(first+last, "0123456789") != "" {
			continue // net/http refuses it
		}
		first, last = cappedNumber(first), cappedNumber(last)
		if first == "" && last == "0" {
			first, last = maxOffset, ""
		}
		specs[i] = first + "-" + last
	}
	return strings.Join(specs, ",")
}

const maxOffset = "9223372036854775807"

// cappedNumber is a decimal number without leading zeros, at most maxOffset.
func cappedNumber(digits string) string {
	if digits == "" {
		return ""
	}
	digits = strings.TrimLeft(digits, "0")
	switch {
	case digits == "":
		return "0"
	case len(digits) > len(maxOffset) || len(digits) == len(maxOffset) && digits > maxOffset:
		return maxOffset
	}
	return digits
}

// rangeWriter holds back the answers 412 and 416, which are problems here.
type rangeWriter struct {
	*reply
	refused int // the status held back
}

func (w *rangeWriter) WriteHeader(status int) {
	if status == http.StatusRequestedRangeNotSatisfiable || status == http.StatusPreconditionFailed {
		w.refused = status
		return
	}
	w.reply.WriteHeader(status)
}

func (w *rangeWriter) Write(b []byte) (int, error) {
	if w.refused != 0 {
		return len(b), nil
	}
	return w.reply.Write(b)
}

// guardedContent remembers that the content itself could not be read: a
// damaged blob must not pass for a short file.
type guardedContent struct {
	io.ReadSeeker
	err error
}

func (g *guardedContent) Read(p []byte) (int, error) {
	n, err := g.ReadSeeker.Read(p)
	if err != nil && err != io.EOF { //nolint:errorlint // io.EOF is returned bare by contract
		g.err = err
	}
	return n, err
}

func (g *guardedContent) Seek(offset int64, whence int) (int64, error) {
	n, err := g.ReadSeeker.Seek(offset, whence)
	if err != nil {
		g.err = err
	}
	return n, err
}

// declaredType is the type a file was declared to have, if it is one.
func declaredType(mimeType string) string {
	parsed, params, err := mime.ParseMediaType(mimeType)
	if err != nil || !strings.Contains(parsed, "/") || strings.HasPrefix(parsed, "multipart/") {
		return octetStream
	}
	if formatted := mime.FormatMediaType(parsed, params); formatted != "" {
		return formatted
	}
	return octetStream
}

// Attachment is the Content-Disposition of a download: the name in ASCII for
// old clients, and exactly, percent-encoded once, as RFC 6266 and 8187 say.
func Attachment(name string) string {
	ascii := strings.Map(func(r rune) rune {
		switch {
		case r == '"' || r == '\\' || r == '%' || r == '/':
			return '_'
		case r < 0x20 || r > 0x7e:
			return '_'
		}
		return r
	}, name)
	disposition := `attachment; filename="` + ascii + `"`
	if ascii != name {
		disposition += "; filename*=UTF-8''" + encodeExtended(name)
	}
	return disposition
}

// encodeExtended percent-encodes all but RFC 8187's attr-char.
func encodeExtended(s string) string {
	const plain = "!#$&+-.^_`|~"
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || strings.IndexByte(plain, c) >= 0:
			b.WriteByte(c)
		default:
			const hex = "0123456789ABCDEF"
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}
