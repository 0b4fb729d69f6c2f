//go:build failpoint

package failpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Enabled reports whether this build has failpoints.
const Enabled = true

type point struct {
	action string
	nth    int // 0: every hit
	hits   int
}

var (
	mu     sync.Mutex
	points = parse(os.Getenv("WORKBENCH_FAILPOINTS"))
	logTo  = os.Getenv("WORKBENCH_FAILPOINT_LOG")
)

func parse(s string) map[string]*point {
	m := map[string]*point{}
	for _, item := range strings.Split(s, ",") {
		name, action, ok := strings.Cut(strings.TrimSpace(item), "=")
		if !ok {
			continue
		}
		p := &point{action: action, nth: 1}
		if a, n, ok := strings.Cut(action, "@"); ok {
			p.action = a
			if n == "*" {
				p.nth = 0
			} else if v, err := strconv.Atoi(n); err == nil {
				p.nth = v
			}
		}
		m[name] = p
	}
	return m
}

// Hit marks a place and does what WORKBENCH_FAILPOINTS says for its name. The
// error it returns is for the action "error" only.
func Hit(name string) error {
	mu.Lock()
	note(name)
	p := points[name]
	act := ""
	if p != nil {
		p.hits++
		if p.nth == 0 || p.hits == p.nth {
			act = p.action
		}
	}
	if act == "exit" { // nobody passes another place meanwhile
		note("exit " + name)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	mu.Unlock()
	switch {
	case act == "":
		return nil
	case act == "panic":
		panic("failpoint " + name)
	case strings.HasPrefix(act, "sleep:"):
		if d, err := time.ParseDuration(act[len("sleep:"):]); err == nil {
			time.Sleep(d)
		}
		return nil
	}
	return fmt.Errorf("failpoint %s", name)
}

func note(line string) {
	if logTo == "" {
		return
	}
	if f, err := os.OpenFile(logTo, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
		_, _ = f.WriteString(line + "\n")
		_ = f.Close()
	}
}
