package api

import (
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
)

// maxFormValue bounds the text parts of a multipart upload, in bytes.
const maxFormValue = 4096

// formType is what curl and others send with a raw body if they are told
// nothing. It says nothing about a file.
const formType = "application/x-www-form-urlencoded"

// uploadArtifact streams a file into the artifact service, which enforces the
// session's limits and makes it visible only when it is whole.
func uploadArtifact(c *call) error {
	r := UploadRequest{Name: c.q.text("name"), Path: c.q.text("path"), Size: -1}
	if c.r.ContentLength > c.s.o.MaxUploadBytes {
		return c.fileTooLarge()
	}
	c.r.Body = &progressBody{ReadCloser: http.MaxBytesReader(c.w, c.r.Body, c.s.o.MaxUploadBytes), w: c.w, stall: c.s.o.ReadTimeout}
	contentType := c.r.Header.Get("Content-Type")
	mediaType, _, err := mime.ParseMediaType(contentType)
	if contentType != "" && (err != nil || !strings.Contains(mediaType, "/")) {
		return workbench.E(workbench.CodeUnsupportedMedia, "Content-Type is malformed").WithField("Content-Type").
			WithHint("send the file's type, such as text/csv, or application/octet-stream")
	}
	var content io.Reader = c.r.Body
	if mediaType == "multipart/form-data" {
		if content, err = openForm(c.r, &r); err != nil {
			return c.uploadError(err)
		}
	} else {
		r.MimeType, r.Size = contentType, c.r.ContentLength
	}
	if mediaType == formType {
		r.MimeType = "" // guessed from the name
	}
	if r.Name == "" && r.Path == "" {
		return invalid("name", "the file needs a name").WithHint("send ?name=, ?path=, or a multipart part \"file\" with a file name")
	}
	defer c.s.o.Engine.Active(c.id)()
	a, err := c.s.o.Artifacts.Upload(c.ctx, c.p, c.id, r, content)
	if err != nil {
		return c.uploadError(err)
	}
	c.target = a.ID
	c.w.Header().Set("Location", base+"/artifacts/"+a.ID)
	return c.artifact(http.StatusCreated, a)
}

func (c *call) fileTooLarge() error {
	return workbench.E(workbench.CodeFileTooLarge, "the upload is larger than %d bytes", c.s.o.MaxUploadBytes).
		WithHint("send a smaller file")
}

// uploadError finds the caller's own mistakes in what reading the body gave.
func (c *call) uploadError(err error) error {
	var over *http.MaxBytesError
	var own *workbench.Error
	switch {
	case errors.As(err, &over):
		return c.fileTooLarge()
	case errors.As(err, &own) && own.Code != workbench.CodeInternal:
		return err
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errBody):
		return invalid("", "the body ended early or could not be read").WithHint("send it again").Caused(err)
	}
	return err
}

var errBody = errors.New("reading the body")

// openForm reads a multipart body up to its file: optional parts "name" and
// "path", then one part "file", which must be the last.
func openForm(r *http.Request, into *UploadRequest) (io.Reader, error) {
	form, err := r.MultipartReader()
	if err != nil {
		return nil, invalid("Content-Type", "the multipart body has no usable boundary").WithHint("let the client set Content-Type: curl -F file=@NAME does").Caused(err)
	}
	for {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			return nil, invalid("file", `the form has no part "file"`).WithHint("curl -F file=@NAME sends one")
		}
		if err != nil {
			return nil, formError(err)
		}
		switch part.FormName() {
		case "file":
			into.MimeType = part.Header.Get("Content-Type")
			if into.Name == "" {
				into.Name = part.FileName()
			}
			return &lastPart{part: part, form: form}, nil
		case "name":
			err = formValue(part, "name", &into.Name)
		case "path":
			err = formValue(part, "path", &into.Path)
		default:
			name := fieldName(part.FormName())
			return nil, workbench.E(workbench.CodeUnknownField, "the form has an unknown part %q", name).WithField(name).
				WithHint(`parts are "name", "path" and, last, "file"`)
		}
		if err != nil {
			return nil, err
		}
	}
}

func formError(err error) error {
	var over *http.MaxBytesError
	if errors.As(err, &over) {
		return err
	}
	return invalid("", "the multipart body is malformed or ended early").WithHint("send it again").Caused(errors.Join(errBody, err))
}

func formValue(part *multipart.Part, field string, into *string) error {
	value, err := io.ReadAll(io.LimitReader(part, maxFormValue+1))
	if err != nil {
		return formError(err)
	}
	if len(value) > maxFormValue {
		return invalid(field, "the part %s is longer than %d bytes", field, maxFormValue).WithHint("shorten it")
	}
	if *into != "" {
		return invalid(field, "%s is given more than once", field).WithHint("send it once, as a part or as a parameter")
	}
	*into = string(value)
	return nil
}

// lastPart reads a file part and, before it says that the file is whole, makes
// sure that nothing follows it: a second file would be lost silently.
type lastPart struct {
	part *multipart.Part
	form *multipart.Reader
}

func (l *lastPart) Read(p []byte) (int, error) {
	n, err := l.part.Read(p)
	if err == nil || !errors.Is(err, io.EOF) {
		if err != nil {
			err = formError(err)
		}
		return n, err
	}
	if _, err := l.form.NextPart(); err == nil {
		return n, invalid("file", `the part "file" must be the last one`).WithHint(`put "name" and "path" before "file", and leave other parts out; send one file per request`)
	} else if !errors.Is(err, io.EOF) {
		return n, formError(err)
	}
	return n, io.EOF
}

// progressBody lets an upload take as long as it needs, as long as it moves.
type progressBody struct {
	io.ReadCloser
	w     *reply
	stall time.Duration // how long a client may send nothing
}

func (b *progressBody) Read(p []byte) (int, error) {
	b.w.readDeadline(b.stall)
	n, err := b.ReadCloser.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		b.w.readDeadline(0)
	case err != nil:
		err = errors.Join(errBody, err)
	}
	return n, err
}
