package redact_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench/internal/redact"
)

func BenchmarkPlain(b *testing.B) {
	r := redact.New("tok_"+strings.Repeat("abcdefghij", 15), "client-secret-value", "user:password")
	text := bytes.Repeat([]byte("The quick brown fox jumps over the lazy dog, 0123456789 deadbeef. "), 16000)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		r.Bytes(text)
	}
}

func BenchmarkEscapes(b *testing.B) {
	r := redact.New("tok_"+strings.Repeat("abcdefghij", 15), "client-secret-value", "user:password")
	text := bytes.Repeat([]byte(`{"u":"https:\/\/x.example\/a%20b?c=d&e=f","q":"&amp;\u0041"} `), 16000)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		r.Bytes(text)
	}
}
