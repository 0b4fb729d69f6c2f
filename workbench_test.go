package workbench_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/workbenchdev/workbench"
)

func TestIDsAreTypedSortedAndParsed(t *testing.T) {
	first := workbench.NewID(workbench.KindRun)
	time.Sleep(2 * time.Millisecond)
	second := workbench.NewID(workbench.KindRun)
	if !strings.HasPrefix(first, "run_") || len(first) != 30 || first >= second {
		t.Fatalf("ids %q, %q", first, second)
	}
	if err := workbench.ParseID(workbench.KindRun, first); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "run_", first[:29], first + "0", "ses_" + first[4:], strings.ToUpper(first), "run_" + strings.Repeat("!", 26)} {
		if err := workbench.ParseID(workbench.KindRun, bad); !workbench.HasCode(err, "invalid_request") {
			t.Errorf("ParseID(%q) = %v", bad, err)
		}
	}
}

func TestErrorTableHasEveryCodeOnce(t *testing.T) {
	seen := map[workbench.Code]bool{}
	for _, c := range workbench.ErrorTable() {
		if seen[c.Code] {
			t.Errorf("%s is there twice", c.Code)
		}
		seen[c.Code] = true
		if c.HTTP < 400 || c.HTTP > 599 || c.Exit < 1 || c.Exit > 10 || c.Title == "" {
			t.Errorf("%+v is not a class", c)
		}
		if c.HTTP == 503 && !c.Retryable {
			t.Errorf("%s is 503 and says it is final", c.Code)
		}
	}
	if got := workbench.ClassOf("no-such-code").Code; got != "internal" {
		t.Errorf("an unknown code is %s", got)
	}
}

func TestErrorKeepsItsCausePrivate(t *testing.T) {
	cause := errors.New("password=hunter2")
	err := workbench.E(workbench.CodeUnavailable, "the database does not answer").WithHint("try again").WithField("database").Caused(cause)
	if !errors.Is(err, cause) {
		t.Error("the cause is lost")
	}
	if strings.Contains(err.Detail+err.Hint+err.Field, "hunter2") {
		t.Error("the cause shows in public text")
	}
	if got := workbench.AsError(cause); got.Code != "internal" || strings.Contains(got.Detail, "hunter2") {
		t.Errorf("a foreign error became %+v", got)
	}
}

func TestCleanPath(t *testing.T) {
	good := map[string]string{
		"a.txt": "a.txt", "./a.txt": "a.txt", "/mnt/files/d/a.txt": "d/a.txt", "a; touch pwned .txt": "a; touch pwned .txt",
		"résumé 報告 #1?%20.txt": "résumé 報告 #1?%20.txt", "e\u0301": "e\u0301", "...": "...",
	}
	for in, want := range good {
		if got, err := workbench.CleanPath("path", in); err != nil || got != want {
			t.Errorf("CleanPath(%q) = %q, %v", in, got, err)
		}
	}
	bad := []string{"", "/", "/etc/passwd", "..", "a/../b", "a//b", "a/./b", "a/", "a\x00b", "a\nb", "\xff", strings.Repeat("x", 256),
		strings.Repeat("a/", 33) + "b", "/mnt/files/", "/mnt/files/../etc", "./../x"}
	for _, in := range bad {
		_, err := workbench.CleanPath("path", in)
		var e *workbench.Error
		if !errors.As(err, &e) || e.Code != "path_invalid" || e.Field != "path" || e.Hint == "" {
			t.Errorf("CleanPath(%q) = %v", in, err)
		}
	}
}

func TestWorkspaceDirectory(t *testing.T) {
	for in, want := range map[string]string{"": "", ".": "", "./": "", "/": "", "/mnt/files": "", "/mnt/files/": "", "d": "d", "d/": "d", "./d/e/": "d/e", "/mnt/files/d": "d"} {
		if got, err := workbench.WorkspaceDirectory("path", in, ""); err != nil || got != want {
			t.Errorf("WorkspaceDirectory(%q) = %q, %v", in, got, err)
		}
	}
	if got, err := workbench.WorkspaceDirectory("path", "", "/w=="); err != nil || got != "\xff" {
		t.Errorf("in base64: %q, %v", got, err)
	}
	for _, in := range []string{"//", "..", "../", "/etc", "d//", "./.", "/mnt/files/..", "/mnt", "d/../e"} {
		_, err := workbench.WorkspaceDirectory("path", in, "")
		var e *workbench.Error
		if !errors.As(err, &e) || e.Code != "path_invalid" || e.Field != "path" || !strings.Contains(e.Hint, "leave path out") {
			t.Errorf("WorkspaceDirectory(%q) = %+v", in, err)
		}
	}
}

func TestLimitsAreLoweredNeverClamped(t *testing.T) {
	standard := workbench.DefaultLimits()
	v := func(n int64) *int64 { return &n }
	n := func(n int) *int { return &n }
	lowered, err := standard.Lower(&workbench.LimitsRequest{MemoryBytes: v(64 << 20), TimeoutMs: v(5000), SessionFiles: n(3)})
	if err != nil || lowered.MemoryBytes != 64<<20 || lowered.TimeoutMs != 5000 || lowered.SessionFiles != 3 || lowered.Tasks != 64 {
		t.Fatalf("%+v, %v", lowered, err)
	}
	for field, req := range map[string]workbench.LimitsRequest{
		"limits.memoryBytes":  {MemoryBytes: v(256<<20 + 1)},
		"limits.tasks":        {Tasks: n(65)},
		"limits.timeoutMs":    {TimeoutMs: v(180_001)},
		"limits.outputBytes":  {OutputBytes: v(2<<20 + 1)},
		"limits.fileBytes":    {FileBytes: v(0)},
		"limits.sessionFiles": {SessionFiles: n(-1)},
		"limits.toolCalls":    {ToolCalls: n(26)},
	} {
		_, err := standard.Lower(&req)
		var e *workbench.Error
		if !errors.As(err, &e) || e.Code != "limit_out_of_range" || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	short, err := standard.Lower(&workbench.LimitsRequest{MaxTimeoutMs: v(1000)})
	if err != nil || short.TimeoutMs != 1000 {
		t.Errorf("a lower ceiling lowers the default: %+v, %v", short, err)
	}
}

func TestLimitsThatARequestDoesNotNameStay(t *testing.T) {
	size := workbench.DefaultLimits()
	v := func(n int64) *int64 { return &n }
	n := func(n int) *int { return &n }
	l, err := size.Lower(&workbench.LimitsRequest{MemoryBytes: v(64 << 20), MaxTimeoutMs: v(5000)})
	if err != nil {
		t.Fatal(err)
	}
	if l, err = l.Within(size, &workbench.LimitsRequest{Tasks: n(32)}); err != nil || l.Tasks != 32 || l.MemoryBytes != 64<<20 || l.MaxTimeoutMs != 5000 || l.TimeoutMs != 5000 {
		t.Fatalf("%+v, %v", l, err)
	}
	if l, err = l.Within(size, &workbench.LimitsRequest{MemoryBytes: v(256 << 20)}); err != nil || l.MemoryBytes != 256<<20 || l.Tasks != 32 {
		t.Errorf("back up to the size's: %+v, %v", l, err)
	}
	if _, err := l.Within(size, &workbench.LimitsRequest{Tasks: n(65)}); !workbench.HasCode(err, "limit_out_of_range") {
		t.Errorf("above the size's: %v", err)
	}
	_, err = l.Within(size, &workbench.LimitsRequest{TimeoutMs: v(6000)})
	if e := workbench.AsError(err); e == nil || e.Field != "limits.timeoutMs" || !strings.Contains(e.Hint, "limits.maxTimeoutMs") {
		t.Errorf("a default above the longest: %v", err)
	}
	if l, err = l.Within(size, &workbench.LimitsRequest{TimeoutMs: v(6000), MaxTimeoutMs: v(7000)}); err != nil || l.TimeoutMs != 6000 || l.MaxTimeoutMs != 7000 {
		t.Errorf("both together: %+v, %v", l, err)
	}
}

func TestFingerprint(t *testing.T) {
	d := workbench.DefaultLimits()
	base := workbench.RunSpec{Language: "python", Code: "print(1)"}
	// Version 1 must never change: what a stored key means depends on it.
	const want = "e7f01b10a2bcc1957293e3eba3e7cc38f029e6e06b160cfbc2b4638e2843ffc0"
	got := workbench.Fingerprint(base, nil, d)
	if got != want {
		t.Errorf("fingerprint v1 of the base is %s", got)
	}
	same := base
	same.TimeoutMs, same.OutputBytes = 30_000, 1<<20
	if workbench.Fingerprint(same, nil, d) != got {
		t.Error("a default that is written out makes another job")
	}
	for name, change := range map[string]func(*workbench.RunSpec){
		"language": func(s *workbench.RunSpec) { s.Language = "bash" },
		"code":     func(s *workbench.RunSpec) { s.Code += " " },
		"args":     func(s *workbench.RunSpec) { s.Args = []string{"a"} },
		"env":      func(s *workbench.RunSpec) { s.Env = map[string]string{"A": "1"} },
		"stdin":    func(s *workbench.RunSpec) { s.Stdin = "x" },
		"timeout":  func(s *workbench.RunSpec) { s.TimeoutMs = 1000 },
		"output":   func(s *workbench.RunSpec) { s.OutputBytes = 1000 },
		"keep":     func(s *workbench.RunSpec) { s.Keep = []string{"*"} },
	} {
		other := base
		change(&other)
		if workbench.Fingerprint(other, nil, d) == got {
			t.Errorf("another %s is the same job", name)
		}
	}
	ab := []workbench.SelectedContent{{SHA256: "1", Path: "a"}, {SHA256: "2", Path: "b"}}
	ba := []workbench.SelectedContent{ab[1], ab[0]}
	if workbench.Fingerprint(base, ab, d) != workbench.Fingerprint(base, ba, d) {
		t.Error("the order of selected files makes another job")
	}
	byID := base
	byID.Artifacts = []workbench.ArtifactSelect{{ID: "art_1", Path: "a"}}
	if workbench.Fingerprint(byID, nil, d) != got {
		t.Error("artifact ids count; only contents and paths may")
	}
}

func TestTextOutput(t *testing.T) {
	if got := workbench.TextOf([]byte("ok\xff\xfeend\n")); got != "ok\uFFFD\uFFFDend\n" {
		t.Errorf("%q", got)
	}
	if got := workbench.TextOf([]byte("a\xe2\x98")); got != "a\uFFFD\uFFFD" {
		t.Errorf("a cut character shows one mark per byte: %q", got)
	}
}

// Pages of any bytes at any sizes join to exactly those bytes, and every page
// boundary is one that a reader may ask for.
func TestPagesJoinToTheBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pieces := rapid.SliceOf(rapid.SampledFrom([]string{"a", "é", "☕", "漢", "😀", "\xff", "\xe2\x98", "\xf0\x9f", "\x80"})).Draw(t, "pieces")
		all := []byte(strings.Join(pieces, ""))
		offset, text := 0, ""
		for offset < len(all) {
			limit := rapid.IntRange(1, 9).Draw(t, "limit")
			if workbench.InsideCharacter(all[:offset], all[offset:], true) {
				t.Fatalf("page boundary %d is inside a character of %q", offset, all)
			}
			n := workbench.CutText(all[offset:], limit, true)
			if n < 1 || n > max(limit, 4) {
				t.Fatalf("a page of %d bytes for a limit of %d", n, limit)
			}
			text += workbench.TextOf(all[offset : offset+n])
			offset += n
		}
		if text != workbench.TextOf(all) {
			t.Fatalf("pages join to %q, not to %q", text, workbench.TextOf(all))
		}
	})
}

func TestInsideCharacter(t *testing.T) {
	s := []byte("a☕b")
	for offset, want := range []bool{false, false, true, true, false, false} {
		if got := workbench.InsideCharacter(s[:offset], s[offset:], true); got != want {
			t.Errorf("offset %d: %v", offset, got)
		}
	}
	if !workbench.InsideCharacter([]byte("a\xe2"), nil, false) || workbench.InsideCharacter([]byte("a\xe2"), nil, true) {
		t.Error("an unfinished character is one until nothing can follow")
	}
}

func TestPrincipalSees(t *testing.T) {
	owner := workbench.Owner{ProjectID: "p", TenantID: "t", UserID: "u", SessionID: "s"}
	direct := workbench.Principal{ProjectID: "p", TenantID: "t", UserID: "u", KeyKind: "direct"}
	cases := []struct {
		name          string
		change        func(*workbench.Principal)
		see, contents bool
	}{
		{"the owner", func(*workbench.Principal) {}, true, true},
		{"another user", func(p *workbench.Principal) { p.UserID = "v" }, false, false},
		{"the same name in another tenant", func(p *workbench.Principal) { p.TenantID = "w" }, false, false},
		{"another project", func(p *workbench.Principal) { p.ProjectID = "q" }, false, false},
		{"a member of a group", func(p *workbench.Principal) { p.UserID, p.GroupID = "v", "g" }, false, false},
		{"a key narrowed to it", func(p *workbench.Principal) { p.SessionID = "s" }, true, true},
		{"a key narrowed elsewhere", func(p *workbench.Principal) { p.SessionID = "z" }, false, false},
		{"an admin", func(p *workbench.Principal) { p.KeyKind, p.TenantID, p.UserID = "admin", "", "" }, true, false},
		{"an admin with contents", func(p *workbench.Principal) { p.KeyKind, p.Contents = "admin", true }, true, true},
		{"an admin of another project", func(p *workbench.Principal) { p.KeyKind, p.Contents, p.ProjectID = "admin", true, "q" }, false, false},
	}
	for _, c := range cases {
		p := direct
		c.change(&p)
		if p.MaySee(owner) != c.see || p.MayReadContents(owner) != c.contents {
			t.Errorf("%s: sees %v, reads %v", c.name, p.MaySee(owner), p.MayReadContents(owner))
		}
	}
}
