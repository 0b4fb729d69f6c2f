package workbench

import "time"

// Receipt is a run as its caller reads it: the run, the captured output as
// text, and the session it belongs to. Invalid UTF-8 shows as one U+FFFD per
// byte; GET …/output with encoding=base64 returns the raw bytes.
type Receipt struct {
	Run
	Stdout  *string    `json:"stdout,omitempty"` // nil where the caller may not read contents, and in lists
	Stderr  *string    `json:"stderr,omitempty"`
	Results []Result   `json:"results,omitzero"` // in order; nil like Stdout
	Error   *CellError `json:"error,omitempty"`  // of a cell that raised: its result of type error in short; nil like Stdout
	Session SessionRef `json:"session"`
	// Withheld says why contents are not shown to who could read them before: they
	// may come from a tool that may not be used any more.
	Withheld *CallError `json:"withheld,omitempty"`
}

// Output is the captured standard output; "" where there is none or the caller
// may not read contents.
func (r Receipt) Output() string { return text(r.Stdout) }

// ErrorOutput is Output of standard error.
func (r Receipt) ErrorOutput() string { return text(r.Stderr) }

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// SessionRef is what replies about a session and what belongs to it carry.
type SessionRef struct {
	ID         string       `json:"id"`
	State      SessionState `json:"state"`
	Generation int64        `json:"generation"`
	Revision   int64        `json:"revision"`
	ExpiresAt  time.Time    `json:"expiresAt"`
}

// Ref is the session's reference.
func (s Session) Ref() SessionRef {
	return SessionRef{ID: s.ID, State: s.State, Generation: s.Generation, Revision: s.Revision, ExpiresAt: s.ExpiresAt}
}

// Encoding is how a page of output is written.
type Encoding string

// The encodings of a page.
const (
	EncodingUTF8   Encoding = "utf-8"
	EncodingBase64 Encoding = "base64"
)

// Bounds of a page of output, in raw bytes.
const (
	DefaultOutputPage = 16 * 1024
	MaxOutputPage     = 64 * 1024
)

// OutputQuery asks for one page of one stream.
type OutputQuery struct {
	Stream   Stream   // empty: stdout
	Offset   int64    // raw bytes
	Limit    int      // raw bytes; 0: DefaultOutputPage
	Encoding Encoding // empty: utf-8
}

// OutputPage is one page of one stream. Offsets and totals count raw bytes.
type OutputPage struct {
	Stream        Stream   `json:"stream"`
	Text          string   `json:"text"` // base64 when Encoding says so
	Encoding      Encoding `json:"encoding"`
	Offset        int64    `json:"offset"`
	NextOffset    int64    `json:"nextOffset"`
	TotalBytes    int64    `json:"totalBytes"`    // what the program wrote so far
	CapturedBytes int64    `json:"capturedBytes"` // what can be paged; the rest is in fileArtifactId
	Truncated     bool     `json:"truncated"`
	FileID        string   `json:"fileArtifactId,omitempty"`
	Complete      bool     `json:"complete"` // the run is terminal and nextOffset is its end
}
