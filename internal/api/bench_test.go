package api_test

import "testing"

// BenchmarkRequest is one request over a loopback connection: authentication,
// one read of the store, the answer. (The check against the document is in it.)
func BenchmarkRequest(b *testing.B) {
	w := MustWorld(b)
	key := w.Direct("", "acme", "ada")
	path := "/v1/workbench/sessions/" + w.MustSession(key)
	for b.Loop() {
		w.Do("GET", path, key, "").Want(200)
	}
}

// BenchmarkSubmit is one admission: one transaction.
func BenchmarkSubmit(b *testing.B) {
	w := MustWorld(b)
	key := w.Direct("", "acme", "ada")
	var session string
	n := 0
	for b.Loop() {
		if n%100 == 0 { // as many as may be queued
			session = w.MustSession(key)
		}
		n++
		w.MustSubmit(key, session)
	}
}
