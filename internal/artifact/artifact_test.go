package artifact_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/artifact"
	"github.com/workbenchdev/workbench/internal/store"
)

func TestUploads(t *testing.T) {
	w := mustWorld(t)
	content := "month,total\nmay,12\n"
	a, err := w.files.Upload(t.Context(), w.ann, w.session.ID, artifact.UploadRequest{Path: "/mnt/files/reports/may.csv", Size: -1}, strings.NewReader(content))
	w.must(err)
	if a.Name != "may.csv" || a.Path != "reports/may.csv" || a.MimeType != "text/csv" || a.Size != 19 || a.Preview != content || a.Origin != workbench.OriginUpload ||
		a.SHA256 != "37e4b1d47f86e7b6ccbc0dbdf156f191dd95157fc27f2854db001be55ff9bc3b" ||
		a.DownloadPath != "/v1/workbench/artifacts/"+a.ID+"/content" || a.DerivedFrom == nil || a.Dependencies == nil ||
		a.SessionID != w.session.ID || a.UserID != w.ann.UserID || a.Revision != 1 || !a.ExpiresAt.Equal(w.clock.Now().Add(7*24*time.Hour)) {
		t.Errorf("%+v", a)
	}
	got, err := w.files.Get(t.Context(), w.ann, a.ID)
	w.must(err)
	if got.SHA256 != a.SHA256 || got.Preview != content || got.MimeType != "text/csv" || got.DownloadPath != a.DownloadPath {
		t.Errorf("%+v is not %+v", got, a)
	}
	if list := w.mustList(); len(list) != 1 || list[0].Preview != content || list[0].DownloadPath != a.DownloadPath {
		t.Errorf("%+v", list)
	}
	if got := w.mustRead(a.ID); got != content {
		t.Errorf("%q", got)
	}
	_, r, err := w.files.Open(t.Context(), w.ann, a.ID)
	w.must(err)
	defer r.Close()
	if err := iotest.TestReader(r, []byte(content)); err != nil {
		t.Error(err)
	}
}

func TestNames(t *testing.T) {
	w := mustWorld(t)
	for _, c := range []struct{ name, path, wantName, wantPath string }{
		{"a; touch pwned .txt", "", "a; touch pwned .txt", "a; touch pwned .txt"},
		{"résumé 報告 #1?%20.txt", "", "résumé 報告 #1?%20.txt", "résumé 報告 #1?%20.txt"},
		{"é", "", "é", "é"},
		{"e\u0301", "", "e\u0301", "e\u0301"},
		{"dir/x.csv", "", "x.csv", "dir/x.csv"},
		{"shown.csv", "dir/stored.csv", "shown.csv", "dir/stored.csv"},
		{"", "./d/x", "x", "d/x"},
	} {
		a, err := w.files.Upload(t.Context(), w.ann, w.session.ID, artifact.UploadRequest{Name: c.name, Path: c.path, Size: 1}, strings.NewReader("x"))
		if err != nil || a.Name != c.wantName || a.Path != c.wantPath {
			t.Errorf("%q %q became %q %q: %v", c.name, c.path, a.Name, a.Path, err)
			continue
		}
		if got, err := w.files.Get(t.Context(), w.ann, a.ID); err != nil || got.Name != c.wantName || got.Path != c.wantPath {
			t.Errorf("%q %q reads %q %q: %v", c.name, c.path, got.Name, got.Path, err)
		}
	}
	for _, c := range []struct{ name, path string }{{"", ""}, {"..", ""}, {"a\nb", ""}, {"a\x00", ""}, {"\xff", ""}, {"/etc/passwd", ""}, {"a/b", "c"}, {"ok", "../x"}, {"ok", "a//b"}, {strings.Repeat("n", 256), ""}} {
		_, err := w.files.Upload(t.Context(), w.ann, w.session.ID, artifact.UploadRequest{Name: c.name, Path: c.path, Size: 1}, strings.NewReader("x"))
		want(t, fmt.Sprintf("%q %q", c.name, c.path), err, workbench.CodePathInvalid)
	}
}

func TestSizesToTheByte(t *testing.T) {
	w := mustWorld(t)
	limit := w.session.Limits.FileBytes
	if limit != 8<<20 {
		t.Fatalf("the limit is %d", limit)
	}
	for _, declared := range []bool{true, false} {
		for _, c := range []struct {
			size int64
			code workbench.Code
		}{{0, ""}, {limit, ""}, {limit + 1, workbench.CodeFileTooLarge}, {limit + 1<<20, workbench.CodeFileTooLarge}} {
			request := artifact.UploadRequest{Name: "f", Size: -1}
			if declared {
				request.Size = c.size
			}
			a, err := w.files.Upload(t.Context(), w.ann, w.session.ID, request, io.LimitReader(zeros{}, c.size))
			want(t, fmt.Sprintf("%d bytes, declared %v", c.size, declared), err, c.code)
			if err == nil && a.Size != c.size {
				t.Errorf("%d bytes of %d", a.Size, c.size)
			}
			if err != nil && !strings.Contains(err.Error(), "8388608") {
				t.Errorf("the limit is not named: %v", err)
			}
		}
	}
	for name, declared := range map[string]int64{"fewer": 6, "more": 4} {
		_, err := w.files.Upload(t.Context(), w.ann, w.session.ID, artifact.UploadRequest{Name: "f", Size: declared}, strings.NewReader("12345"))
		want(t, name+" bytes than declared", err, workbench.CodeInvalidRequest)
	}
	if use := w.mustUse(); use.SessionFiles != 4 || use.SessionBytes != 2*limit {
		t.Errorf("%+v", use)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestClientGoneMidUploadLeavesNothing(t *testing.T) {
	w := mustWorld(t)
	cause := errors.New("connection reset")
	_, err := w.files.Upload(t.Context(), w.ann, w.session.ID, artifact.UploadRequest{Name: "f", Size: 1 << 20}, io.MultiReader(io.LimitReader(zeros{}, 500_000), iotest.ErrReader(cause)))
	if !errors.Is(err, cause) {
		t.Errorf("the reader's error is lost: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = w.files.Upload(ctx, w.ann, w.session.ID, artifact.UploadRequest{Name: "f", Size: 1 << 20}, io.MultiReader(io.LimitReader(zeros{}, 500_000), stop{cancel}, io.LimitReader(zeros{}, 548_576)))
	want(t, "cancelled", err, workbench.CodeCancelled)
	if use := w.mustUse(); use != (store.QuotaUse{}) || len(w.mustList()) != 0 || len(w.mustBlobFiles()) != 0 {
		t.Errorf("%+v, %v", use, w.mustBlobFiles())
	}
}

type stop struct{ cancel func() }

func (s stop) Read([]byte) (int, error) { s.cancel(); return 0, io.EOF }

func TestQuotasHoldInARace(t *testing.T) {
	for name, c := range map[string]struct {
		lower func(*workbench.Limits)
		fits  int
	}{
		"files of the session": {func(l *workbench.Limits) { l.SessionFiles = 10 }, 10},
		"bytes of the session": {func(l *workbench.Limits) { l.SessionFilesBytes = 1000 * 13 }, 13},
		"bytes of the tenant":  {func(l *workbench.Limits) { l.TenantFilesBytes = 1000*7 + 999 }, 7},
	} {
		for _, declared := range []int64{1000, -1} {
			t.Run(fmt.Sprintf("%s, declared %d", name, declared), func(t *testing.T) {
				w := mustWorld(t)
				w.session = w.mustSession(w.ann, c.lower)
				var group sync.WaitGroup
				var mu sync.Mutex
				made := 0
				for i := range 100 {
					group.Go(func() {
						_, err := w.files.Upload(t.Context(), w.ann, w.session.ID, artifact.UploadRequest{Name: fmt.Sprint(i), Size: declared}, io.LimitReader(zeros{}, 1000))
						mu.Lock()
						defer mu.Unlock()
						if err == nil {
							made++
						} else if !workbench.HasCode(err, workbench.CodeQuotaExceeded) {
							t.Error(err)
						}
					})
				}
				group.Wait()
				if use := w.mustUse(); made != c.fits || use.SessionFiles != c.fits || use.SessionBytes != int64(c.fits)*1000 || len(w.mustList()) != c.fits {
					t.Errorf("%d were made, want %d: %+v", made, c.fits, use)
				}
			})
		}
	}
}

func TestTheHundredAndFirstFile(t *testing.T) {
	w := mustWorld(t)
	for i := range 100 {
		w.mustUpload(fmt.Sprint(i), "x")
	}
	_, err := w.upload("101", "x")
	want(t, "the 101st", err, workbench.CodeQuotaExceeded)
	list := w.mustList()
	if _, err := w.files.Delete(t.Context(), w.ann, list[0].ID); err != nil {
		t.Fatal(err)
	}
	w.mustUpload("101", "x")
}

func TestTheGate(t *testing.T) {
	var refused error
	w := mustWorld(t, artifact.WithAccess(func(_ context.Context, _ workbench.Principal, a workbench.Artifact) error {
		if a.Dependencies == nil {
			t.Error("dependencies are absent")
		}
		return refused
	}))
	a := w.mustUpload("f.txt", "secret content")
	with := func(change func(*workbench.Principal)) workbench.Principal { p := w.ann; change(&p); return p }
	for name, c := range map[string]struct {
		p           workbench.Principal
		meta, bytes workbench.Code
		preview     bool
	}{
		"the owner":                  {w.ann, "", "", true},
		"a key without read":         {with(func(p *workbench.Principal) { p.Scopes = []workbench.Scope{workbench.ScopeExecute} }), "", workbench.CodeForbidden, true},
		"a key of the session":       {with(func(p *workbench.Principal) { p.SessionID = w.session.ID }), "", "", true},
		"a key of another session":   {with(func(p *workbench.Principal) { p.SessionID = workbench.NewID(workbench.KindSession) }), workbench.CodeNotFound, workbench.CodeNotFound, false},
		"another user":               {w.mustPrincipal("acme", "bob"), workbench.CodeNotFound, workbench.CodeNotFound, false},
		"the same in another tenant": {w.mustPrincipal("blue", "ann"), workbench.CodeNotFound, workbench.CodeNotFound, false},
		"an admin":                   {with(func(p *workbench.Principal) { p.KeyKind, p.TenantID, p.UserID = workbench.KeyAdmin, "", "" }), "", workbench.CodeForbidden, false},
		"an admin with contents": {with(func(p *workbench.Principal) {
			p.KeyKind, p.TenantID, p.UserID, p.Contents = workbench.KeyAdmin, "", "", true
		}), "", "", true},
		"an admin of another project": {with(func(p *workbench.Principal) {
			p.KeyKind, p.TenantID, p.UserID, p.Contents, p.ProjectID = workbench.KeyAdmin, "", "", true, workbench.NewID(workbench.KindProject)
		}), workbench.CodeNotFound, workbench.CodeNotFound, false},
	} {
		meta, err := w.files.Get(t.Context(), c.p, a.ID)
		want(t, name+" reads metadata", err, c.meta)
		if (meta.Preview != "") != c.preview {
			t.Errorf("%s sees the preview %q", name, meta.Preview)
		}
		_, r, err := w.files.Open(t.Context(), c.p, a.ID)
		want(t, name+" reads contents", err, c.bytes)
		if err == nil {
			w.must(r.Close())
		}
	}
	admin := with(func(p *workbench.Principal) { p.KeyKind, p.Contents = workbench.KeyAdmin, true })
	_, err := w.files.Upload(t.Context(), admin, w.session.ID, artifact.UploadRequest{Name: "f", Size: 1}, strings.NewReader("x"))
	want(t, "an admin uploads", err, workbench.CodeForbidden)
	_, err = w.files.Upload(t.Context(), w.mustPrincipal("acme", "bob"), w.session.ID, artifact.UploadRequest{Name: "f", Size: 1}, strings.NewReader("x"))
	want(t, "another user uploads", err, workbench.CodeNotFound)

	refused = workbench.E(workbench.CodeForbidden, "the tool's access was removed")
	_, _, err = w.files.Open(t.Context(), w.ann, a.ID)
	want(t, "access removed", err, workbench.CodeForbidden)
}

func TestDeletedAndExpired(t *testing.T) {
	w := mustWorld(t)
	a := w.mustUpload("f", "content")
	gone, err := w.files.Delete(t.Context(), w.ann, a.ID)
	w.must(err)
	if gone.DeletedAt == nil || gone.Preview != "" {
		t.Errorf("%+v", gone)
	}
	_, err = w.files.Delete(t.Context(), w.ann, a.ID)
	want(t, "deleted again", err, workbench.CodeArtifactDeleted)
	_, err = w.files.Get(t.Context(), w.ann, a.ID)
	want(t, "metadata", err, workbench.CodeArtifactDeleted)
	_, _, err = w.files.Open(t.Context(), w.ann, a.ID)
	want(t, "contents", err, workbench.CodeArtifactDeleted)

	b := w.mustUpload("g", "content")
	w.clock.Add(7*24*time.Hour - time.Second)
	if got := w.mustRead(b.ID); got != "content" {
		t.Errorf("a second before its deadline: %q", got)
	}
	w.clock.Add(time.Second)
	for range 2 { // before and after the sweep
		_, _, err = w.files.Open(t.Context(), w.ann, b.ID)
		want(t, "expired", err, workbench.CodeArtifactExpired)
		_, err = w.files.Delete(t.Context(), w.ann, b.ID)
		want(t, "delete of an expired file", err, workbench.CodeArtifactExpired)
		w.must(w.files.Sweep(t.Context(), w.clock.Now()))
	}
	if list := w.mustList(); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	if files := w.mustBlobFiles(); len(files) != 0 {
		t.Errorf("left: %v", files)
	}
	if use := w.mustUse(); use != (store.QuotaUse{}) {
		t.Errorf("%+v", use)
	}
}

func TestClosedSessionsTakeNothingAndGiveWhatTheyHave(t *testing.T) {
	w := mustWorld(t)
	a := w.mustUpload("f", "content")
	_, err := w.db.EndSession(t.Context(), w.ann, w.session.ID, workbench.SessionClosed, w.clock.Now())
	w.must(err)
	_, err = w.upload("g", "late")
	want(t, "upload", err, workbench.CodeSessionClosed)
	_, err = w.files.Keep(t.Context(), w.keepRequest("late"), strings.NewReader("late"))
	want(t, "keep", err, workbench.CodeSessionClosed)
	if got := w.mustRead(a.ID); got != "content" {
		t.Errorf("%q", got)
	}
	_, err = w.files.Delete(t.Context(), w.ann, a.ID)
	want(t, "delete", err, "")

	w.session = w.mustSession(w.ann, nil)
	w.clock.Add(24 * time.Hour)
	_, err = w.upload("g", "late")
	want(t, "upload after the deadline", err, workbench.CodeSessionExpired)
}

func (w *world) keepRequest(path string) artifact.KeepRequest {
	return artifact.KeepRequest{Session: w.session, RunID: workbench.NewID(workbench.KindRun), Revision: 1, Generation: 1, Epoch: w.epoch, Path: path,
		Origin: workbench.OriginSave, Size: -1}
}

func TestKeptFilesCarryTheirLineage(t *testing.T) {
	w := mustWorld(t)
	in := w.mustUpload("in.csv", "x")
	r := w.keepRequest("/mnt/files/out/chart.png")
	r.DerivedFrom = []string{in.ID, in.ID}
	a, err := w.files.Keep(t.Context(), r, strings.NewReader("\x89PNG\r\n\x1a\n...."))
	w.must(err)
	if a.RunID != r.RunID || a.Origin != workbench.OriginSave || a.Path != "out/chart.png" || a.MimeType != "image/png" || a.Preview != "" ||
		len(a.DerivedFrom) != 1 || a.DerivedFrom[0] != in.ID || a.Dependencies == nil || a.Generation != 1 {
		t.Errorf("%+v", a)
	}
	for path, code := range map[string]workbench.Code{"../x": workbench.CodePathInvalid, "\xff": workbench.CodePathInvalid, "": workbench.CodePathInvalid, "a\x1b[2J": workbench.CodePathInvalid} {
		_, err := w.files.Keep(t.Context(), w.keepRequest(path), strings.NewReader("x"))
		want(t, path, err, code)
	}
}

// A late save of an older generation or engine is refused, also when it began
// before the session moved on.
func TestLateSavesAreFenced(t *testing.T) {
	w := mustWorld(t)
	r := w.keepRequest("f")
	moved := iotest.ErrReader(io.EOF)
	_, err := w.files.Keep(t.Context(), r, io.MultiReader(strings.NewReader("abc"), do(func() {
		_, err := w.db.BumpGeneration(t.Context(), workbench.SystemPrincipal(), w.session.ID, w.epoch, false)
		w.must(err)
	}), moved))
	want(t, "generation", err, workbench.CodeFenced)
	r.Generation = 2
	_, err = w.files.Keep(t.Context(), r, strings.NewReader("abc"))
	want(t, "the new generation", err, "")
	r.Epoch--
	_, err = w.files.Keep(t.Context(), r, strings.NewReader("abc"))
	want(t, "an older lease", err, workbench.CodeFenced)
	if use := w.mustUse(); use.SessionFiles != 1 {
		t.Errorf("%+v", use)
	}
}

type do func()

func (f do) Read([]byte) (int, error) { f(); return 0, io.EOF }

func TestLeft(t *testing.T) {
	w := mustWorld(t)
	w.session = w.mustSession(w.ann, func(l *workbench.Limits) { l.FileBytes, l.SessionFilesBytes, l.SessionFiles = 100, 150, 3 })
	left := func() int64 {
		n, err := w.files.Left(t.Context(), w.session)
		w.must(err)
		return n
	}
	if left() != 100 {
		t.Errorf("%d", left())
	}
	w.mustUpload("a", strings.Repeat("x", 70))
	if left() != 80 {
		t.Errorf("%d", left())
	}
	w.mustUpload("b", strings.Repeat("x", 80))
	if left() != 0 {
		t.Errorf("%d", left())
	}
	w.mustUpload("c", "")
	if left() != 0 {
		t.Errorf("%d", left())
	}
}

func TestPreviewsAndTypes(t *testing.T) {
	w := mustWorld(t)
	long := strings.Repeat("é", 600)
	for _, c := range []struct{ name, declared, content, mime, preview string }{
		{"a.txt", "", "hello\n\tworld", "text/plain; charset=utf-8", "hello\n\tworld"},
		{"a.txt", "", "a\r\nb", "text/plain; charset=utf-8", "a\nb"},
		{"a.txt", "", "esc \x1b[2J bell \a del \x7f c1 \u009b", "text/plain; charset=utf-8", "esc \ufffd[2J bell \ufffd del \ufffd c1 \ufffd"},
		{"a.txt", "", long, "text/plain; charset=utf-8", strings.Repeat("é", 512)},
		{"a.txt", "", "x" + long, "text/plain; charset=utf-8", "x" + strings.Repeat("é", 511)},
		{"a.bin", "", "a\x00b", "application/octet-stream", ""},
		{"a", "", "a\xffb", "text/plain; charset=utf-8", ""},
		{"empty", "", "", "application/octet-stream", ""},
		{"page", "", "<html><script>alert(1)</script>", "text/html; charset=utf-8", "<html><script>alert(1)</script>"},
		{"x.json", "", `{"a":1}`, "application/json", `{"a":1}`},
		{"x.dat", "text/CSV; charset=UTF-8", "1,2", "text/csv; charset=UTF-8", "1,2"},
		{"x.csv", "application/octet-stream", "1,2", "text/csv", "1,2"},
		{"x.csv", "nonsense\r\nX-Evil: 1", "1,2", "text/csv", "1,2"},
		{"x.csv", strings.Repeat("a", 300) + "/b", "1,2", "text/csv", "1,2"},
	} {
		a, err := w.files.Upload(t.Context(), w.ann, w.session.ID, artifact.UploadRequest{Name: c.name, MimeType: c.declared, Size: -1}, strings.NewReader(c.content))
		w.must(err)
		if a.MimeType != c.mime || a.Preview != c.preview {
			t.Errorf("%s %q %.20q: type %q, preview %q", c.name, c.declared, c.content, a.MimeType, a.Preview)
		}
	}
}

func TestNothingIsInTheClear(t *testing.T) {
	w := mustWorld(t)
	const canary = "canary-77e1"
	w.mustUpload("small.txt", canary)
	w.mustUpload("large.txt", strings.Repeat(canary, 200_000))
	_, err := w.files.Keep(t.Context(), w.keepRequest("kept.txt"), strings.NewReader(canary))
	w.must(err)
	check := func() {
		w.must(filepath.WalkDir(w.dir, func(path string, e os.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			b, err := os.ReadFile(path)
			if bytes.Contains(b, []byte(canary)) {
				t.Errorf("%s holds the canary", path)
			}
			return err
		}))
	}
	check()
	w.must(w.db.Close())
	check()
}

func TestDamageIsNoticed(t *testing.T) {
	w := mustWorld(t)
	a := w.mustUpload("f", strings.Repeat("x", 200_000))
	place := w.mustBlobFiles()[0]
	whole, err := os.ReadFile(place)
	w.must(err)
	read := func() error {
		_, r, err := w.files.Open(t.Context(), w.ann, a.ID)
		if err != nil {
			return err
		}
		defer r.Close()
		_, err = io.Copy(io.Discard, r)
		return err
	}
	flipped := bytes.Clone(whole)
	flipped[1000] ^= 1
	for name, content := range map[string][]byte{"flipped": flipped, "cut": whole[:100_000], "empty": {}} {
		w.must(os.WriteFile(place, content, 0o600))
		want(t, name, read(), workbench.CodeCorrupt)
	}
	w.must(os.Remove(place))
	want(t, "missing", read(), workbench.CodeCorrupt)
}

func BenchmarkUpload8MiB(b *testing.B) {
	w := mustWorld(b)
	w.session = w.mustSession(w.ann, func(l *workbench.Limits) { l.SessionFiles, l.SessionFilesBytes, l.TenantFilesBytes = 0, 0, 0 })
	content := make([]byte, 8<<20)
	b.SetBytes(8 << 20)
	n := byte(0)
	for b.Loop() {
		n++
		content[0], content[1] = n, content[1]+1
		if _, err := w.files.Upload(b.Context(), w.ann, w.session.ID, artifact.UploadRequest{Name: "f", Size: 8 << 20}, bytes.NewReader(content)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDownload8MiB(b *testing.B) {
	w := mustWorld(b)
	a, err := w.files.Upload(b.Context(), w.ann, w.session.ID, artifact.UploadRequest{Name: "f", Size: 8 << 20}, io.LimitReader(zeros{}, 8<<20))
	w.must(err)
	b.SetBytes(8 << 20)
	for b.Loop() {
		_, r, err := w.files.Open(b.Context(), w.ann, a.ID)
		w.must(err)
		if _, err := io.Copy(io.Discard, r); err != nil {
			b.Fatal(err)
		}
		w.must(r.Close())
	}
}

func BenchmarkUploadSmall(b *testing.B) {
	w := mustWorld(b)
	w.session = w.mustSession(w.ann, func(l *workbench.Limits) { l.SessionFiles = 0 })
	n := 0
	for b.Loop() {
		n++
		if _, err := w.upload("f", fmt.Sprint(n)); err != nil {
			b.Fatal(err)
		}
	}
}
