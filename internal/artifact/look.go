package artifact

import (
	"bytes"
	"mime"
	"net/http"
	"path"
	"strings"
	"unicode/utf8"
)

const (
	kindPreview = "preview"

	// previewBytes is how much of a text file shows in its metadata.
	previewBytes = 1024
	// headBytes is what is looked at: a preview, and the rest of a character.
	headBytes = previewBytes + utf8.UTFMax

	octetStream  = "application/octet-stream"
	maxMimeBytes = 255
)

// firstBytes remembers the first bytes written to it.
type firstBytes struct {
	limit int
	b     []byte
}

func (f *firstBytes) Write(p []byte) (int, error) {
	if n := min(len(p), f.limit-len(f.b)); n > 0 {
		f.b = append(f.b, p[:n]...)
	}
	return len(p), nil
}

// types are extensions that tell more than the bytes do, and that not every
// host's table has.
var types = map[string]string{
	".csv": "text/csv", ".tsv": "text/tab-separated-values", ".md": "text/markdown", ".txt": "text/plain; charset=utf-8", ".log": "text/plain; charset=utf-8",
	".json": "application/json", ".jsonl": "application/jsonl", ".ndjson": "application/x-ndjson", ".yaml": "application/yaml", ".yml": "application/yaml",
	".toml": "application/toml", ".xml": "application/xml", ".py": "text/x-python", ".ts": "text/x-typescript", ".sh": "application/x-sh", ".sql": "application/sql",
	".parquet": "application/vnd.apache.parquet", ".ipynb": "application/x-ipynb+json",
	".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
	".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
	".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
}

// mimeType is the type as declared, else guessed from the name, else from the
// first bytes. It is a label: nothing is decided by it.
func mimeType(declared, name string, head []byte) string {
	if len(declared) <= maxMimeBytes {
		if parsed, params, err := mime.ParseMediaType(declared); err == nil && strings.Contains(parsed, "/") && parsed != octetStream {
			if formatted := mime.FormatMediaType(parsed, params); formatted != "" && len(formatted) <= maxMimeBytes {
				return formatted
			}
		}
	}
	extension := strings.ToLower(path.Ext(name))
	if t := types[extension]; t != "" {
		return t
	}
	if t := mime.TypeByExtension(extension); t != "" && len(extension) > 1 {
		return t
	}
	if len(head) == 0 {
		return octetStream
	}
	return http.DetectContentType(head)
}

// previewOf is the beginning of a text file: at most 1024 bytes of valid UTF-8,
// control characters but newline and tab as U+FFFD. Anything else has none.
func previewOf(head []byte, size int64) string {
	text := head
	if len(text) > previewBytes || size > int64(len(text)) {
		text = text[:min(len(text), previewBytes)]
		for cut := 0; cut < utf8.UTFMax && len(text) > 0 && !utf8.Valid(text); cut++ {
			text = text[:len(text)-1] // the page may end inside a character
		}
	}
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	if !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0 {
		return ""
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r < 0x20 || r >= 0x7f && r < 0xa0:
			return utf8.RuneError
		}
		return r
	}, strings.ReplaceAll(string(text), "\r\n", "\n"))
}
