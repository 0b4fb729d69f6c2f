package verify

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// Rows about the workspace as the host sees it.

func request(script string) guestwire.ExecRequest {
	return guestwire.ExecRequest{Argv: []string{"/bin/bash", "-c", script}, Timeout: 30 * time.Second}
}

// scanOf runs a script in a fresh sandbox and scans what it left.
func (s *scene) scanOf(ctx context.Context, script string) (guestwire.ScanResult, []guestwire.Entry, time.Duration, error) {
	b, err := s.start(ctx, s.class())
	if err != nil {
		return guestwire.ScanResult{}, nil, 0, err
	}
	defer b.discard(ctx)
	out, err := b.exec(ctx, request(script))
	if err != nil {
		return guestwire.ScanResult{}, nil, 0, err
	}
	if out.ExitCode != 0 {
		return guestwire.ScanResult{}, nil, 0, fmt.Errorf("the script ended with %d: %s", out.ExitCode, lastBytes(out.stderr, 300))
	}
	began := time.Now()
	var sink countingSink
	result, err := b.client.Scan(ctx, guestwire.ScanRequest{}, &sink)
	return result, sink.entries, time.Since(began), err
}

// checkOddEntries: what is no file, directory or link is named and left out, and
// nobody waits for it.
func checkOddEntries(what string) func(context.Context, *scene) finding {
	script := map[string]string{
		"FIFO":   "mkfifo /mnt/files/odd; echo x > /mnt/files/plain",
		"socket": `python3 -I -c "import socket; socket.socket(1).bind('/mnt/files/odd')"; mknod /mnt/files/dev c 1 1 2>/dev/null; echo x > /mnt/files/plain`,
	}[what]
	return func(ctx context.Context, s *scene) finding {
		result, entries, took, err := s.scanOf(ctx, script)
		if err != nil {
			return broke(err)
		}
		if took > 5*time.Second {
			return failed("the scan waited %v", took)
		}
		odd := slices.ContainsFunc(entries, func(e guestwire.Entry) bool { return e.Path == "odd" || e.Path == "dev" })
		plain := slices.ContainsFunc(entries, func(e guestwire.Entry) bool { return e.Path == "plain" })
		skipped := slices.ContainsFunc(result.Skipped, func(k guestwire.Skipped) bool { return k.Path == "odd" })
		if odd || !plain || !skipped {
			return failed("entries %v, skipped %v", entries, result.Skipped)
		}
		return proved("the %s is left out and named; the scan took %d ms", what, took.Milliseconds())
	}
}

// checkSavedLinks: saving what is no file of the workspace's own, or lies behind
// a link, is refused inside, and nothing of it reaches the host.
func checkSavedLinks(ctx context.Context, s *scene) finding {
	b, err := s.start(ctx, s.class())
	if err != nil {
		return broke(err)
	}
	defer b.discard(ctx)
	run, err := b.begin(ctx, request(`cd /mnt/files
ln -s /etc/passwd link; ln -s /proc/self/environ env; ln -s ../../etc/passwd up; ln -s /etc d; mkfifo fifo
for f in link env up d/passwd d fifo /etc/passwd ../../etc/passwd; do
  timeout 5 workbench save "$f" >/dev/null 2>&1; echo "$f $?"
done
echo own > plain; workbench save plain >/dev/null 2>&1; echo "plain $?"`))
	if err != nil {
		return broke(err)
	}
	out, err := run.wait(ctx)
	if err != nil {
		return broke(err)
	}
	lines := strings.Split(strings.TrimSpace(out.stdout), "\n")
	if len(lines) != 9 || lines[8] != "plain 0" {
		return errorf("the attempts printed %q %s", out.stdout, lastBytes(out.stderr, 300))
	}
	for _, l := range lines[:8] {
		if !strings.HasSuffix(l, " 1") {
			return failed("saving was not refused at once: %s", l)
		}
	}
	if len(run.heard.saved) != 1 || string(run.heard.saved[0]) != "own\n" {
		return failed("the host received %d files", len(run.heard.saved))
	}
	return proved("links, a file behind one, a directory, a FIFO and paths outside were refused at once; the host received the one plain file")
}

// checkReplay: the token of a run is worth nothing once the run has ended.
func checkReplay(ctx context.Context, s *scene) finding {
	a, b, err := s.pair(ctx)
	if err != nil {
		return broke(err)
	}
	v, _, err := a.probe(ctx, "H84", nil)
	if err != nil {
		return broke(err)
	}
	var old struct{ Socket, Token string }
	if err := json.Unmarshal(v.Data, &old); err != nil || old.Token == "" {
		return errorf("the run told no token (%v)", err)
	}
	params := map[string]any{"socket": old.Socket, "token": old.Token}
	return judgeAll(
		func() finding { return a.judge(ctx, "H84", params) },
		func() finding { return b.judge(ctx, "H84", params) },
	)
}

// oneFile is a source of one entry.
type oneFile struct {
	entry   guestwire.Entry
	content string
	given   bool
}

func (o *oneFile) Next() (guestwire.Entry, io.Reader, error) {
	if o.given {
		return guestwire.Entry{}, nil, io.EOF
	}
	o.given = true
	return o.entry, strings.NewReader(o.content), nil
}

// checkTraps: what code put where the host writes a file is not followed,
// waited for or written through.
func checkTraps(ctx context.Context, s *scene) finding {
	b, err := s.start(ctx, s.class())
	if err != nil {
		return broke(err)
	}
	defer b.discard(ctx)
	out, err := b.exec(ctx, request("cd /mnt/files; ln -s /tmp/target link; ln -s /tmp dir; mkfifo fifo; mkdir directory; echo planted"))
	if err != nil {
		return broke(err)
	}
	if out.ExitCode != 0 {
		return errorf("traps could not be planted: %s", lastBytes(out.stderr, 300))
	}
	began := time.Now()
	const content = "from the host"
	sum := sha256.Sum256([]byte(content))
	for _, path := range []guestwire.Path{"link", "dir/target", "fifo", "directory"} {
		e := guestwire.Entry{Path: path, Type: guestwire.TypeFile, Mode: 0o644, Size: int64(len(content)), SHA256: sum[:], Content: true}
		writeCtx, cancel := context.WithTimeout(ctx, 10*time.Second)
		_, err := b.client.WriteFiles(writeCtx, &oneFile{entry: e, content: content})
		cancel()
		if workbench.CodeOf(err) != workbench.CodePathConflict {
			return failed("writing at %s: %v", path, err)
		}
	}
	took := time.Since(began)
	out, err = b.exec(ctx, request("ls -A /tmp | grep -c target; cd /mnt/files; test -L link && test -p fifo && test -d directory && echo same"))
	if err != nil {
		return broke(err)
	}
	if out.stdout != "0\nsame\n" {
		return failed("after the writes: %s", printable(out.stdout))
	}
	return proved("a link, a path through one, a FIFO and a directory were refused in %d ms; nothing was written through them", took.Milliseconds())
}

// checkNames: names that some systems take for one are two.
func checkNames(ctx context.Context, s *scene) finding {
	_, entries, _, err := s.scanOf(ctx, `cd /mnt/files && printf 1 > $'caf\xc3\xa9' && printf 2 > $'cafe\xcc\x81' && printf 3 > Report && printf 4 > report && printf 5 > $'bad\xff'`)
	if err != nil {
		return broke(err)
	}
	for _, want := range []guestwire.Path{"caf\xc3\xa9", "cafe\xcc\x81", "Report", "report", "bad\xff"} {
		if !slices.ContainsFunc(entries, func(e guestwire.Entry) bool { return e.Path == want && e.Size == 1 }) {
			return failed("%q is missing from the scan", string(want))
		}
	}
	return proved("composed and decomposed, upper and lower case, and a name that is no text: five files")
}

// checkMutation: while a program rewrites its files, what the host receives is
// what the guest says it is.
func checkMutation(ctx context.Context, s *scene) finding {
	b, err := s.start(ctx, s.class())
	if err != nil {
		return broke(err)
	}
	defer b.discard(ctx)
	run, err := b.begin(ctx, guestwire.ExecRequest{Timeout: 30 * time.Second, Argv: []string{"/usr/bin/python3", "-I", "-S", "-c", `
import os, time
print('writing', flush=True)
end = time.monotonic() + 20
n = 0
while time.monotonic() < end:
    n += 1
    for i in range(8):
        with open('/mnt/files/f%d' % i, 'r+b' if n > 1 else 'wb') as f:
            f.write(bytes([n % 256]) * 200_000)
            if n % 3 == 0:
                f.truncate(n * 997 % 200_000)
`}})
	if err != nil {
		return broke(err)
	}
	defer run.stop(ctx)
	if err := run.hears(ctx, "writing"); err != nil {
		return broke(err)
	}
	var sink hashingSink
	for range 5 {
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return broke(err)
		}
		if _, err := b.client.Scan(ctx, guestwire.ScanRequest{}, &sink); err != nil {
			return failed("a scan beside a writer: %v", err)
		}
	}
	if len(sink.wrong) > 0 {
		return failed("the content of %s is not what its digest says", strings.Join(sink.wrong, ", "))
	}
	if sink.files < 8 {
		return errorf("only %d files were received", sink.files)
	}
	return proved("%d files received in 5 scans beside a writer; every digest is that of the bytes", sink.files)
}

// checkXattrs: extended attributes are not taken along.
func checkXattrs(ctx context.Context, s *scene) finding {
	result, entries, _, err := s.scanOf(ctx, `python3 -I -c "
import os
open('/mnt/files/plain', 'w').write('x')
for n in ('user.big', 'trusted.x', 'security.x', 'system.posix_acl_access'):
    try: os.setxattr('/mnt/files/plain', n, b'x' * 60000)
    except OSError: pass
"`)
	if err != nil {
		return broke(err)
	}
	for _, e := range entries {
		if e.Path == "plain" && e.Size == 1 {
			return proved("the entry carries name, mode, time and one byte; %d bytes in all", result.Bytes)
		}
	}
	return failed("entries %v", entries)
}
