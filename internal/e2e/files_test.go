package e2e_test

import (
	"bytes"
	"encoding/base64"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

func TestOutputBeyondTheCapGoesToAFile(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	r := s.mustPython(`print("x" * 3_000_000)`)
	wantEnd(t, r, workbench.StatusSucceeded, "")
	out := r.Outputs.Stdout
	if out.TotalBytes != 3_000_001 || out.CapturedBytes != 1<<20 || !out.Truncated || out.FileTruncated || out.FileID == "" {
		t.Fatalf("%+v", out)
	}
	whole := text(r.Stdout) + s.mustRead(out.FileID)
	if whole != strings.Repeat("x", 3_000_000)+"\n" {
		t.Errorf("captured and file together have %d bytes", len(whole))
	}
	if got := r.LimitsHit; len(got) != 1 || got[0] != workbench.LimitOutput {
		t.Errorf("limitsHit %v", got)
	}
}

func TestCapEndsBetweenCharacters(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	limit := int64(10)
	r := s.mustRun(sdk.CreateRun{Language: workbench.Bash, Code: "printf '☕☕☕☕'", OutputBytes: &limit})
	wantOut(t, r, "☕☕☕")
	if got := s.mustRead(r.Outputs.Stdout.FileID); got != "☕" || r.Outputs.Stdout.TotalBytes != 12 {
		t.Errorf("file %q, total %d", got, r.Outputs.Stdout.TotalBytes)
	}
}

func TestFullQuotaNeverFailsARun(t *testing.T) {
	files := 1
	s := mustShared(t).mustSession(t, sdk.CreateSession{Limits: &workbench.LimitsRequest{SessionFiles: &files}})
	s.mustUpload("only.txt", "x")
	r := s.mustPython(`print("x" * 2_000_000)`)
	wantEnd(t, r, workbench.StatusSucceeded, "")
	if r.Outputs.Stdout.FileID != "" || !r.Outputs.Stdout.FileTruncated || r.Outputs.Stdout.TotalBytes != 2_000_001 {
		t.Errorf("%+v", r.Outputs.Stdout)
	}
}

func TestOutputPages(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	r := s.mustPython("import sys\nsys.stdout.buffer.write('aé☕😀'.encode() + b'ok\\xff\\xfeend\\n')")
	want, offset := []byte("aé☕😀ok\xff\xfeend\n"), int64(0)
	var got []byte
	for {
		page, err := s.c.Output(t.Context(), r.ID, workbench.OutputQuery{Offset: offset, Limit: 3, Encoding: workbench.EncodingBase64})
		if err != nil {
			t.Fatal(err)
		}
		b, err := base64.StdEncoding.DecodeString(page.Text)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, b...)
		if offset = page.NextOffset; page.Complete {
			break
		}
	}
	if !bytes.Equal(got, want) {
		t.Errorf("raw pages join to %q", got)
	}
	page, err := s.c.Output(t.Context(), r.ID, workbench.OutputQuery{Offset: 1, Limit: 4})
	if err != nil || page.Text != "é" || page.NextOffset != 3 || page.TotalBytes != 18 {
		t.Errorf("%+v, %v", page, err)
	}
	if page, err = s.c.Output(t.Context(), r.ID, workbench.OutputQuery{Offset: 10}); err != nil || page.Text != "ok\uFFFD\uFFFDend\n" {
		t.Errorf("%q, %v", page.Text, err)
	}
	for _, inside := range []int64{2, 4, 5, 7, 8, 9} {
		_, err := s.c.Output(t.Context(), r.ID, workbench.OutputQuery{Offset: inside})
		wantCode(t, err, workbench.CodeOffsetInvalid)
	}
	_, err = s.c.Output(t.Context(), r.ID, workbench.OutputQuery{Offset: 20})
	wantCode(t, err, workbench.CodeOffsetInvalid)
}

func TestSaveFromEachLanguage(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	for name, run := range map[string]sdk.CreateRun{
		"python":     {Language: workbench.Python, Code: "r = arc0.save('summary.txt', 'Reviewed output')\nprint(r['name'], r.size, r['status'])"},
		"javascript": {Language: workbench.JavaScript, Code: "arc0.save('summary.txt', 'Reviewed output')"},
		"typescript": {Language: workbench.TypeScript, Code: "const r: any = await workbench.save('summary.txt', 'Reviewed output'); console.log(r.name, r.size, r.status)"},
		"bash":       {Language: workbench.Bash, Code: "printf 'Reviewed output' > summary.txt; workbench save summary.txt >/dev/null"},
	} {
		t.Run(name, func(t *testing.T) {
			r := s.mustRun(run)
			wantEnd(t, r, workbench.StatusSucceeded, "")
			if len(r.Artifacts) != 1 || r.Artifacts[0].Name != "summary.txt" || r.Artifacts[0].Origin != workbench.OriginSave || r.Artifacts[0].RunID != r.ID {
				t.Fatalf("artifacts %+v", r.Artifacts)
			}
			if got := s.mustRead(r.Artifacts[0].ID); got != "Reviewed output" {
				t.Errorf("contents %q", got)
			}
			if name == "python" || name == "typescript" {
				wantOut(t, r, "summary.txt 15 saved\n")
			}
		})
	}
}

func TestSaveRefusesWhatIsNoFile(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	r := s.mustPython(`
import os, socket
os.symlink('/etc/passwd', 'link'); os.symlink('/', 'rootdir'); os.mkfifo('fifo'); os.mkdir('dir')
socket.socket(socket.AF_UNIX).bind('sock')
for name in ['link', 'rootdir/etc/hostname', 'fifo', 'dir', 'sock', 'absent', '../x', '/etc/passwd', '/proc/self/environ']:
    try:
        workbench.save(name); print(name, 'KEPT')
    except Exception as e:
        print(name, 'refused', bool(getattr(e, 'code', None)))
`)
	wantEnd(t, r, workbench.StatusSucceeded, "")
	for _, line := range strings.Split(strings.TrimSpace(text(r.Stdout)), "\n") {
		if !strings.HasSuffix(line, "refused True") {
			t.Error(line)
		}
	}
	if len(r.Artifacts) != 0 {
		t.Errorf("kept %+v", r.Artifacts)
	}
}

func TestStructuredResult(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	r := s.mustPython("workbench.result({'rows': 1}); workbench.result({'rows': 3, 'ok': True})")
	if string(r.Result) != `{"rows":3,"ok":true}` && string(r.Result) != `{"rows": 3, "ok": true}` {
		t.Errorf("result %s", r.Result)
	}
	if r = s.mustRun(sdk.CreateRun{Language: workbench.JavaScript, Code: "workbench.result([1, 2])"}); string(r.Result) != "[1,2]" {
		t.Errorf("result %s", r.Result)
	}
}

// Code that sets its result without end fills nothing: the last one counts.
func TestResultsWithoutEnd(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	r := s.mustPython("import workbench\nfor i in range(200):\n    workbench.result({'n': i, 'pad': 'x' * 100000})\nprint('done')")
	wantOut(t, r, "done\n")
	if got := string(r.Result); !strings.HasPrefix(got, `{"n":199,`) && !strings.HasPrefix(got, `{"n": 199,`) {
		t.Errorf("the result begins with %.40q", got)
	}
	results := 0
	for e, err := range s.c.Events(t.Context(), r.ID, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == workbench.LogResult {
			results++
		}
	}
	if results == 0 || results > 17 {
		t.Errorf("%d results are in the log", results)
	}
}

func TestKeepGlobsAndChangedFiles(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	wantEnd(t, s.mustBash("mkdir out; echo 1 > out/a.csv; echo 1 > gone; echo 1 > same"), workbench.StatusSucceeded, "")
	r := s.mustRun(sdk.CreateRun{Language: workbench.Bash, Keep: []string{"out/*.csv"},
		Code: "echo 22 > out/a.csv; echo 3 > out/b.csv; echo 4 > out/c.txt; rm gone; ln -s /etc/passwd link; touch same"})
	wantEnd(t, r, workbench.StatusSucceeded, "")
	if len(r.Notices) != 0 {
		t.Errorf("notices %+v", r.Notices)
	}
	kept := map[string]string{}
	for _, a := range r.Artifacts {
		kept[a.Path] = s.mustRead(a.ID)
	}
	if len(kept) != 2 || kept["out/a.csv"] != "22\n" || kept["out/b.csv"] != "3\n" {
		t.Errorf("kept %v", kept)
	}
	changes := map[string]workbench.Change{}
	for _, f := range r.Files.Items {
		changes[f.Path] = f.Change
	}
	want := map[string]workbench.Change{"out/a.csv": "modified", "out/b.csv": "added", "out/c.txt": "added", "gone": "removed", "link": "added"}
	if len(changes) != len(want) {
		t.Errorf("changes %v", changes)
	}
	for path, change := range want {
		if changes[path] != change {
			t.Errorf("%s: %q, want %q", path, changes[path], change)
		}
	}
	if got, err := s.c.ReadRunFile(t.Context(), r.ID, "out/c.txt"); err != nil || string(got) != "4\n" {
		t.Errorf("%q, %v", got, err)
	}
	_, err := s.c.ReadRunFile(t.Context(), r.ID, "link")
	wantCode(t, err, workbench.CodePathConflict)
	_, err = s.c.ReadRunFile(t.Context(), r.ID, "gone")
	wantCode(t, err, workbench.CodeNotFound)
	wantEnd(t, s.mustBash("echo 5 > out/c.txt"), workbench.StatusSucceeded, "")
	if got, err := s.c.ReadRunFile(t.Context(), r.ID, "out/c.txt"); err != nil || string(got) != "4\n" {
		t.Errorf("an earlier run's file reads %q, %v", got, err)
	}
	if r.InputRoot == "" || r.OutputRoot == "" || r.InputRoot == r.OutputRoot || r.CommitID == "" {
		t.Errorf("roots %q → %q, commit %q", r.InputRoot, r.OutputRoot, r.CommitID)
	}
}

func TestExactNames(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	for _, name := range []string{"résumé 報告 #1?%20.txt", "a; touch pwned .txt", "e\u0301.txt", "\u00e9.txt"} {
		up := s.mustUpload(name, "x")
		if up.Name != name {
			t.Errorf("name %q became %q", name, up.Name)
		}
		r := s.mustRun(sdk.CreateRun{Language: workbench.Python, Code: "import os; print(sorted(os.listdir('.'))[0] if False else '\\n'.join(os.listdir('.')))",
			Artifacts: []workbench.ArtifactSelect{{ID: up.ID}}})
		if !strings.Contains("\n"+text(r.Stdout), "\n"+name+"\n") {
			t.Errorf("inside, %q is %q", name, text(r.Stdout))
		}
		if got := s.mustRead(up.ID); got != "x" {
			t.Errorf("%q reads %q", name, got)
		}
	}
	wantOut(t, s.mustBash("ls | wc -l; ls pwned 2>/dev/null || echo none"), "4\nnone\n")
}

func TestWorkspaceSurvivesALostSandbox(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	wantEnd(t, s.mustBash("echo committed > a.txt; ln -s a.txt l; mkdir -p d/e; chmod 600 a.txt"), workbench.StatusSucceeded, "")
	// The host kills the whole sandbox: its memory bound is passed by what the
	// guest cannot see coming, or the operator did it.
	r := s.mustBash("echo lost > b.txt; kill -9 -1; sleep 0.2; kill -9 1; sleep 5")
	if !r.Status.Terminal() {
		t.Fatal(r.Status)
	}
	wantOut(t, s.mustBash("cat a.txt; readlink l; stat -c %a a.txt; test -d d/e && echo dir"), "committed\na.txt\n600\ndir\n")
}

// Code may take every right on its own workspace away: the files stay
// committed, and the next run finds them.
func TestWorkspaceWithoutRights(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	wantEnd(t, s.mustBash("mkdir -p d/e; echo a > a.txt; echo b > d/e/b.txt"), workbench.StatusSucceeded, "")
	for _, mode := range []string{"000", "200", "400", "600"} {
		r := s.mustBash("chmod " + mode + " /mnt/files")
		wantEnd(t, r, workbench.StatusSucceeded, "")
		if r.Files.Total != 0 || len(r.Notices) != 0 {
			t.Errorf("mode %s: changed %+v, notices %+v", mode, r.Files.Items, r.Notices)
		}
		wantOut(t, s.mustBash("cat a.txt d/e/b.txt"), "a\nb\n")
	}
}

// Nothing of a canary in code, stdin, arguments, environment, files, output or
// /tmp is found in what the server keeps.
func TestCanaryIsSealed(t *testing.T) {
	temporary := t.TempDir() // where the server would put temporary files, if it did
	t.Setenv("TMPDIR", temporary)
	w := mustWorld(t, nil)
	s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{})
	const canary = "c4nary-7f3e"
	up := s.mustUpload("input.txt", canary+"-upload")
	r := s.mustRun(sdk.CreateRun{Language: workbench.Bash, Args: []string{canary + "-arg"}, Stdin: canary + "-stdin",
		Env: map[string]string{"SECRET": canary + "-env"}, Artifacts: []workbench.ArtifactSelect{{ID: up.ID}}, Keep: []string{"*.out"},
		Code: "# " + canary + "-code\ncat input.txt; cat; echo $1 $SECRET; echo $1 >&2; echo " + canary + "-tmp > /tmp/t; echo " + canary + "-file > made.out; workbench result '\"" + canary + "-result\"'; head -c 2000000 /dev/zero | tr '\\0' x; echo " + canary + "-overflow"})
	wantEnd(t, r, workbench.StatusSucceeded, "")
	if !strings.Contains(text(r.Stdout), canary+"-stdin") || !strings.Contains(string(r.Result), canary) {
		t.Fatalf("the canary did not even come through: %.200q", text(r.Stdout))
	}
	searched := 0
	for _, dir := range []string{w.dir, temporary, "/run/workbench"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return nil //nolint:nilerr // it went away
			}
			raw, err := os.ReadFile(path)
			if err != nil {
				return nil //nolint:nilerr // it went away
			}
			searched++
			if bytes.Contains(raw, []byte(canary)) {
				t.Errorf("the canary is in %s", path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if searched < 5 {
		t.Errorf("only %d files were searched", searched)
	}
}

func TestKeepThatMatchesNothingIsTold(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	r := s.mustRun(sdk.CreateRun{Language: workbench.Bash, Code: "mkdir out; echo a > out/a.csv; echo b > b.txt",
		Keep: []string{"out/*.csv", "secret-*.png", "*", "out"}})
	wantEnd(t, r, workbench.StatusSucceeded, "")
	if len(r.Artifacts) != 2 || len(r.Notices) != 2 {
		t.Fatalf("kept %+v, notices %+v", r.Artifacts, r.Notices)
	}
	for i, glob := range []string{"keep[1]", "keep[3]"} {
		if n := r.Notices[i]; n.Code != "keep_nothing" || !strings.Contains(n.Detail, glob) || strings.Contains(n.Detail, "secret") {
			t.Errorf("notice %+v, want one for %s", n, glob)
		}
	}
}

// What save and keep could not retain shows in limitsHit.
func TestLimitOfRetainedFilesIsListed(t *testing.T) {
	one := 1
	for name, r := range map[string]sdk.CreateRun{
		"save": {Language: workbench.Bash, Code: "echo a > a; echo b > b; workbench save a; workbench save b || echo refused"},
		"keep": {Language: workbench.Bash, Code: "echo a > a; echo b > b; echo refused", Keep: []string{"*"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := mustShared(t).mustSession(t, sdk.CreateSession{Limits: &workbench.LimitsRequest{SessionFiles: &one}})
			got := s.mustRun(r)
			wantEnd(t, got, workbench.StatusSucceeded, "")
			if len(got.Artifacts) != 1 || len(got.LimitsHit) != 1 || got.LimitsHit[0] != workbench.LimitFiles || !strings.HasSuffix(text(got.Stdout), "refused\n") {
				t.Errorf("kept %d, limitsHit %v, stdout %q", len(got.Artifacts), got.LimitsHit, text(got.Stdout))
			}
		})
	}
}

// A selected file that cannot be where it should says which and why.
func TestSelectionInTheWayOfTheWorkspace(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	file := s.mustUpload("input.txt", "hello")
	s.mustBash("mkdir -p data/deep; echo f > plain; ln -s plain link")
	for path, want := range map[string]string{
		"data":         "artifactIds[0] cannot be put at data: something is there that is no regular file",
		"plain/in.txt": "artifactIds[0] cannot be put at plain/in.txt: plain in the workspace is no directory",
		"link/in.txt":  "artifactIds[0] cannot be put at link/in.txt: link in the workspace is no directory",
	} {
		r := s.mustRun(sdk.CreateRun{Language: workbench.Bash, Code: "echo ran", Artifacts: []workbench.ArtifactSelect{{ID: file.ID, Path: path}}})
		wantEnd(t, r, workbench.StatusFailed, workbench.ReasonSelection)
		if !strings.Contains(r.Message, want) || !strings.Contains(r.Message, "another path") || strings.Contains(r.Message, "submit again") {
			t.Errorf("%s: %q", path, r.Message)
		}
	}
	wantOut(t, s.mustBash("ls"), "data\nlink\nplain\n")
}

// Selected files that cannot be placed cost the session nothing: what was placed
// before is taken back, variables stay, and what runs beside goes on.
func TestSelectionThatFailsCostsNothing(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	file := s.mustUpload("input.txt", "hello")
	cell := sdk.CreateRun{Language: workbench.Bash, Code: "x=41; mkdir data; echo mine > old; echo $x", ContextID: "default"}
	before := s.mustRun(cell)
	wantOut(t, before, "41\n")
	misplaced := sdk.CreateRun{Language: workbench.Bash, Code: "echo ran", Artifacts: []workbench.ArtifactSelect{
		{ID: file.ID, Path: "new/in.txt"}, {ID: file.ID, Path: "old"}, {ID: file.ID, Path: "data"}}}
	wantEnd(t, s.mustRun(misplaced), workbench.StatusFailed, workbench.ReasonSelection)
	cell.Code = "echo $((x + 1)); cat old; ls"
	r := s.mustRun(cell)
	wantOut(t, r, "42\nmine\ndata\nold\n")
	if r.InputRoot != before.OutputRoot || r.Generation != 1 || len(r.Notices) > 0 {
		t.Errorf("input %s, want %s; generation %d, notices %+v", r.InputRoot, before.OutputRoot, r.Generation, r.Notices)
	}
	aside := s.mustSubmit(aside("echo begun; " + untilFile("stop") + "echo done"))
	mustSay(t, s, aside, "begun")
	wantEnd(t, s.mustRun(misplaced), workbench.StatusFailed, workbench.ReasonSelection)
	cell.Code = "echo $((x + 2)); touch stop"
	wantOut(t, s.mustRun(cell), "43\n")
	wantOut(t, s.mustWait(aside), "begun\ndone\n")
}
