package guest_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
)

// A limit is listed when the program met it, and not because another one had, or
// because it came near.
func TestLimitsMet(t *testing.T) {
	files, tasks, scratch := []string{workbench.LimitOpenFiles}, []string{workbench.LimitTasks}, []string{workbench.LimitScratch}
	onEach(t, func(t *testing.T, s *session) {
		for _, c := range []struct {
			name string
			lang workbench.Language
			code string
			exit int
			want []string
		}{
			{"descriptors, and it goes on", workbench.Python, "import time\nl = []\ntry:\n  while True: l.append(open('/dev/null'))\nexcept OSError: time.sleep(HELD)", 0, files},
			{"descriptors of Node, and it fails later", workbench.JavaScript, "import fs from 'node:fs'\ntry { for (;;) fs.openSync('/dev/null') } catch (e) { setTimeout(() => { throw e }, 1000 * HELD) }", 1, files},
			{"descriptors of a child", workbench.Python, "import os, time\nif os.fork() == 0:\n  l = []\n  try:\n    while True: l.append(open('/dev/null'))\n  except OSError: time.sleep(HELD)\n  os._exit(0)\nos.wait()", 0, files},
			{"nearly all descriptors", workbench.Python, "import time\nl = []\nfor _ in range(200): l.append(open('/dev/null'))\ntime.sleep(0.1)\nraise SystemExit(1)", 1, nil},
			{"tasks, and it fails", workbench.Python, "import os, time\nwhile True:\n  if os.fork() == 0: time.sleep(20)", 1, tasks},
			{"threads, and it goes on", workbench.Python, "import os, threading, time\ntry:\n  while True: threading.Thread(target=time.sleep, args=(20,), daemon=True).start()\nexcept RuntimeError: time.sleep(HELD)\nos._exit(0)", 0, tasks},
			{"scratch space", workbench.Bash, "head -c 100000000 /dev/zero > /tmp/x", 1, scratch},
			{"nothing, while scratch space is full", workbench.Bash, "true", 0, nil},
			{"nothing, though it fails while scratch space is full", workbench.Bash, "exit 3", 3, nil},
			{"nothing, though Python fails while scratch space is full", workbench.Python, "1/0", 1, nil},
			{"no room for Python, when there was none before", workbench.Python, "open('/tmp/y', 'w').write('x' * 9999)", 1, scratch},
			{"no room for Node, when there was none before", workbench.JavaScript, "import fs from 'node:fs'; fs.writeFileSync('/tmp/y', 'x'.repeat(9999))", 1, scratch},
			{"no room, when there was none before", workbench.Bash, "echo x > /tmp/y", 1, scratch},
			{"descriptors, while scratch space is full", workbench.Python, "import time\nl = []\ntry:\n  while True: l.append(open('/dev/null'))\nexcept OSError: time.sleep(HELD)\nraise SystemExit(1)", 1, files},
			{"nothing, while scratch space is being emptied", workbench.Bash, "rm /tmp/x; sleep 0.1", 0, nil},
			{"nothing, though it fails", workbench.Bash, "exit 1", 1, nil},
		} {
			t.Run(c.name, func(t *testing.T) {
				o := s.holding(t, c.lang, c.code, c.want)
				if o.ExitCode != c.exit || !slices.Equal(o.LimitsHit, c.want) {
					t.Errorf("exit %d %s, limits %v; want exit %d, limits %v\n%s", o.ExitCode, o.Signal, o.LimitsHit, c.exit, c.want, clip(o.stderr))
				}
			})
		}
		if s.kind != oci.Runc {
			return // gVisor does not count them
		}
		o := s.holding(t, workbench.Python, "import os, time\ntry:\n  while True:\n    if os.fork() == 0: os._exit(0)\nexcept OSError:\n  time.sleep(HELD)", tasks)
		if o.ExitCode != 0 || !slices.Equal(o.LimitsHit, tasks) {
			t.Errorf("children that nobody collects: exit %d, limits %v", o.ExitCode, o.LimitsHit)
		}
	})
}

// holding runs a program that stays at a limit for a while, HELD in its source.
// The guest looks from time to time: when it has not seen what it should, it
// gets another chance, with more time.
func (s *session) holding(t *testing.T, lang workbench.Language, source string, want []string) (o outcome) {
	t.Helper()
	for _, held := range []string{"0.8", "4", "10"} {
		o = s.code(t, lang, strings.ReplaceAll(source, "HELD", held))
		if slices.Equal(o.LimitsHit, want) || !strings.Contains(source, "HELD") {
			break
		}
	}
	return o
}
