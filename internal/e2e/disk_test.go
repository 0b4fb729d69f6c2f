package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// mustSmallDisk is a directory on a file system of its own.
func mustSmallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755,size="+size); err != nil {
		t.Fatalf("a file system of its own needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill takes all the room there is, and returns what gives it back.
func fill(t *testing.T, dir string) (empty func()) {
	t.Helper()
	path := filepath.Join(dir, "ballast")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, piece := range []int{1 << 20, 4096, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, piece))
		}
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// A full disk refuses what is new, truly and with a way out, takes nothing from
// what is there, and is over when there is room again: the run that was in
// flight ends as if nothing had been.
func TestFullDisk(t *testing.T) {
	dir := mustSmallDisk(t, "64m")
	w, err := open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	}()
	// One try a call: the answer is what is looked at.
	made, err := w.admin.CreateKey(t.Context(), sdk.CreateKey{Kind: workbench.KeyDirect, Name: "t", Tenant: "acme", User: "ada"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := sdk.New(sdk.Options{BaseURL: w.url, Key: made.Secret, Retries: -1})
	if err != nil {
		t.Fatal(err)
	}
	opened, err := c.CreateAgentSession(t.Context(), sdk.CreateSession{})
	if err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, c: c, id: opened.ID}
	wantOut(t, s.mustBash("echo one > f; cat f"), "one\n")
	kept := s.mustUpload("kept.txt", strings.Repeat("kept", 1000))
	run := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "echo begun; for i in $(seq 14); do echo line $i; sleep 1; done; echo two > g"})
	mustSay(t, s, run, "begun")

	empty := fill(t, dir)
	_, err = c.UploadSessionArtifact(t.Context(), s.id, sdk.Upload{Name: "new.bin"}, strings.NewReader(strings.Repeat("x", 1<<20)))
	wantCode(t, err, workbench.CodeUnavailable)
	job := sdk.CreateRun{Language: workbench.Bash, Code: "cat f g # " + strings.Repeat("x", 100_000), IdempotencyKey: "during"}
	_, err = c.CreateSessionRun(t.Context(), s.id, job)
	wantCode(t, err, workbench.CodeUnavailable)
	if got := s.mustRead(kept.ID); len(got) != 4000 {
		t.Errorf("%d bytes of the file are left", len(got))
	}
	ready := func() bool { return c.Ready(t.Context()) == nil }
	for end := time.Now().Add(12 * time.Second); ready(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the server says that it is ready, and cannot write")
		}
	}
	empty()
	for end := time.Now().Add(12 * time.Second); !ready(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the server is not ready, although there is room again")
		}
	}
	submitted, err := c.CreateSessionRun(t.Context(), s.id, job)
	if err != nil {
		t.Fatal(err)
	}
	r := s.mustWait(run)
	wantEnd(t, r, workbench.StatusSucceeded, "")
	if lines := strings.Count(text(r.Stdout), "\n"); lines != 15 {
		t.Errorf("%d lines of output, want 15", lines)
	}
	wantOut(t, s.mustWait(submitted.ID), "one\ntwo\n")
	files, err := c.ListSessionArtifacts(t.Context(), s.id, workbench.Page{})
	if err != nil || len(files.Items) != 1 {
		t.Errorf("%d files are listed, %v; want the one that was there", len(files.Items), err)
	}
}
