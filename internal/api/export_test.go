package api

import (
	"encoding/base64"
	"reflect"

	"github.com/workbenchdev/workbench"
)

// ChunksOf runs the entries of one stream from number skip on through a
// textStream, as a resumed event stream does, and returns all chunks, with the
// end's last (empty or not).
func ChunksOf(entries [][]byte, skip int) []Chunk {
	t := &textStream{stream: workbench.Stdout, known: true}
	var before []byte
	for _, e := range entries[:skip] {
		before = append(before, e...)
	}
	if skip > 0 {
		t.resume(before[max(0, len(before)-3):], int64(len(before)))
	}
	var chunks []Chunk
	for _, e := range entries[skip:] {
		chunks = append(chunks, t.chunk(e))
	}
	end, _ := t.end()
	if end.Stream == "" {
		end.Offset = t.next
	}
	return append(chunks, end)
}

// RawOf is the bytes of a chunk.
func RawOf(c Chunk) []byte {
	if c.Base64 == "" {
		return []byte(c.Text)
	}
	raw, _ := base64.StdEncoding.DecodeString(c.Base64)
	return raw
}

// ParseStrict is parseStrict.
func ParseStrict(raw []byte) (any, error) { return parseStrict(raw, maxJSONDepth) }

// NearestRoute is nearestRoute over every route.
func NearestRoute(path string) string {
	var patterns []string
	for _, r := range routes() {
		patterns = append(patterns, r.Pattern)
	}
	return nearestRoute(path, patterns)
}

// Violation is what a submission is told that does not hold to its schema.
func Violation(tree any) error {
	registry := newRegistry()
	t := reflect.TypeFor[SubmitRunRequest]()
	b := &bodySchema{registry: registry, schema: registry.Schema(t, true, t.Name()), typ: t}
	return b.validate(tree)
}
