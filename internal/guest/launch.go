package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// launchSpec is the descriptor on which a stage waits for its specification:
// until it is there, nothing of the user has run.
const launchSpec = 3

// program is what a stage becomes.
type program struct {
	Argv  [][]byte `json:"argv"` // Argv[0] is searched in PATH when it has no slash
	Env   [][]byte `json:"env"`
	Dir   []byte   `json:"dir"`
	Files int      `json:"files"` // RLIMIT_NOFILE
	Tasks int      `json:"tasks"` // RLIMIT_NPROC; 0 leaves it
	Keep  []int    `json:"keep"`  // descriptors besides 0 to 2 that the program gets
}

// launch is the stage between a group's first process and user code. It is
// user code's identity already; it takes the limits and the filter and then
// becomes the program. Its exit statuses 126 and 127 are a shell's.
func launch() error {
	lean()
	runtime.LockOSThread()
	for _, fd := range []int{launchSpec, controlFD, reportFD} {
		unix.CloseOnExec(fd)
	}
	raw, err := io.ReadAll(os.NewFile(launchSpec, "specification"))
	if err != nil || len(raw) == 0 {
		os.Exit(125) // the supervisor is gone, or gave it up
	}
	var p program
	if err := json.Unmarshal(raw, &p); err != nil {
		return err
	}
	if err := p.limit(); err != nil {
		return err
	}
	argv, env := toStrings(p.Argv), toStrings(p.Env)
	if err := unix.Chdir(string(p.Dir)); err != nil {
		fmt.Fprintf(os.Stderr, "workbench: cannot enter %s: %v\n", p.Dir, err)
		os.Exit(126)
	}
	path, err := lookPath(argv[0], env)
	if err != nil {
		fmt.Fprintf(os.Stderr, "workbench: %s: command not found\n", argv[0])
		os.Exit(127)
	}
	for _, fd := range p.Keep {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("keep descriptor %d: %w", fd, err)
		}
	}
	if weak(weakDescriptors) {
		leakDescriptor()
	}
	if !weak(weakFilter) {
		if err := installFilter(); err != nil {
			return err
		}
	}
	err = unix.Exec(path, argv, env)
	fmt.Fprintf(os.Stderr, "workbench: %s: %v\n", argv[0], err)
	os.Exit(126)
	return nil
}

// limit applies what is inherited by everything the program starts.
func (p program) limit() error {
	set := func(what int, v uint64) error {
		return unix.Setrlimit(what, &unix.Rlimit{Cur: v, Max: v})
	}
	if !weak(weakCores) {
		if err := set(unix.RLIMIT_CORE, 0); err != nil {
			return fmt.Errorf("limit cores: %w", err)
		}
	}
	if err := set(unix.RLIMIT_NOFILE, uint64(p.Files)); err != nil {
		return fmt.Errorf("limit open files: %w", err)
	}
	if p.Tasks > 0 {
		if err := set(unix.RLIMIT_NPROC, uint64(p.Tasks)); err != nil {
			return fmt.Errorf("limit tasks: %w", err)
		}
	}
	unix.Umask(0o022)
	// The first to go when memory runs out. A kernel without scores has none.
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("raise oom score: %w", err)
	}
	return nil
}

// lookPath finds a command in the PATH of its own environment.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for i := len(env) - 1; i >= 0; i-- {
		path, ok := strings.CutPrefix(env[i], "PATH=")
		if !ok {
			continue
		}
		for dir := range strings.SplitSeq(path, ":") {
			if dir == "" {
				continue
			}
			full := dir + "/" + name
			if info, err := os.Stat(full); err == nil && info.Mode().IsRegular() && unix.Access(full, unix.X_OK) == nil {
				return full, nil
			}
		}
		break
	}
	return "", os.ErrNotExist
}

func toStrings(b [][]byte) []string {
	out := make([]string, len(b))
	for i, v := range b {
		out[i] = string(v)
	}
	return out
}
