package guest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// interpreters are the names of what runs each language, best first. They are
// looked for where the probe of an image looks.
var (
	interpreters = map[workbench.Language][]string{
		workbench.Python:     {"python3", "python"},
		workbench.JavaScript: {"node", "nodejs"},
		workbench.TypeScript: {"node", "nodejs"},
		workbench.Bash:       {"bash"},
	}
	interpreterDirs = []string{"/usr/local/bin", "/usr/bin", "/bin"}
)

// findInterpreter returns the path of what runs a language, "" if the image has
// none.
func findInterpreter(lang workbench.Language) string {
	for _, name := range interpreters[lang] {
		for _, dir := range interpreterDirs {
			path := dir + "/" + name
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o001 != 0 {
				return path
			}
		}
	}
	return ""
}

// Prepare implements guestwire.Guest: it mounts the workspace and the scratch
// space, settles the limits and has the first interpreters started.
func (s *supervisor) Prepare(_ context.Context, l guestwire.SandboxLimits) error {
	s.binds.Lock()
	defer s.binds.Unlock()
	if s.ready != nil {
		return workbench.E(workbench.CodeConflict, "the sandbox is prepared already")
	}
	return s.prepare(l)
}

func (s *supervisor) prepare(l guestwire.SandboxLimits) error {
	failed := func(what string, err error) error {
		fmt.Fprintf(s.log, "guest: prepare: %s: %v\n", what, err)
		return workbench.E(workbench.CodeSandboxStart, "the sandbox could not be set up: %s: %v", what, err)
	}
	if err := mountWorkspace(l); err != nil {
		return failed("workspace", err)
	}
	s.tree.begin()
	if err := mountScratch(l); err != nil {
		return failed("scratch", err)
	}
	b := &binding{limits: l, interpreters: map[workbench.Language]string{}}
	if err := b.limitTasks(); err != nil {
		return failed("tasks", err)
	}
	for _, l := range workbench.Languages() {
		if path := findInterpreter(l); path != "" {
			b.languages, b.interpreters[l] = append(b.languages, l), path
		}
	}
	b.env = baseEnv(l)
	s.watch.begin(b)
	s.ready = b
	s.spares.begin(b)
	return nil
}

// Bind implements guestwire.Guest. The server calls it once.
func (s *supervisor) Bind(_ context.Context, r guestwire.BindRequest) (guestwire.BindReply, error) {
	s.binds.Lock()
	defer s.binds.Unlock()
	if s.ready == nil {
		if err := s.prepare(r.Limits); err != nil {
			return guestwire.BindReply{}, err
		}
	}
	b := s.ready
	if b.limits != r.Limits {
		return guestwire.BindReply{}, workbench.E(workbench.CodeConflict, "the sandbox was prepared for other limits")
	}
	enforced := map[string]string{"workspace": "tmpfs", "scratch": "tmpfs", "memory": "watchdog", "openFiles": "rlimit", "tasks": "cgroup"}
	if b.nproc > 0 {
		enforced["tasks"] = "rlimit"
	}
	b.session = r.Env
	s.mu.Lock()
	s.bound = b
	s.mu.Unlock()
	return guestwire.BindReply{Languages: b.languages, Enforced: enforced, Token: s.tree.now()}, nil
}

func mountWorkspace(l guestwire.SandboxLimits) error {
	opts := fmt.Sprintf("size=%d,nr_inodes=%d,mode=0755,uid=%d,gid=%d", l.WorkspaceBytes, l.WorkspaceInodes+1, userID, groupID)
	return unix.Mount("workspace", workspaceDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, opts)
}

// mountScratch makes /tmp and /dev/shm parts of one bounded memory file system.
func mountScratch(l guestwire.SandboxLimits) error {
	if err := os.MkdirAll(scratchDir, 0o711); err != nil {
		return err
	}
	opts := fmt.Sprintf("size=%d,nr_inodes=%d,mode=0711", l.ScratchBytes, max(l.WorkspaceInodes, 1024))
	if err := unix.Mount("scratch", scratchDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		return err
	}
	for dir, target := range map[string]string{"tmp": "/tmp", "shm": "/dev/shm"} {
		from := filepath.Join(scratchDir, dir)
		if err := os.Mkdir(from, 0o777); err != nil {
			return err
		}
		if err := os.Chmod(from, 0o777|os.ModeSticky); err != nil {
			return err
		}
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(from, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("%s: %w", target, err)
		}
	}
	return asUser(func() error {
		if err := os.Mkdir(homeDir, 0o755); err != nil {
			return err
		}
		return copyTree(skelDir, homeDir)
	})
}

// copyTree copies directories and regular files; other things are left out.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if path == from && errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil || rel == "." {
			return err
		}
		target := filepath.Join(to, rel)
		if d.IsDir() {
			return os.Mkdir(target, 0o755)
		}
		if !d.Type().IsRegular() {
			return nil
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(target, raw, 0o644)
	})
}

// limitTasks finds what holds the limit of processes and threads: a control
// group inside the sandbox where its kernel offers one, else the user's own
// limit, which counts in this user namespace alone.
func (b *binding) limitTasks() error {
	if dir, err := mountCgroup(b.limits.Tasks); err == nil {
		fd, err := unix.Open(dir+"/cgroup.procs", unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		b.tasksFD, b.tasksDir = fd, dir
		return nil
	}
	fd, err := unix.Open("/dev/null", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	b.tasksFD, b.nproc = fd, b.limits.Tasks
	return nil
}

// mountCgroup mounts the sandbox's own cgroup2, if its kernel has one that
// counts tasks, and makes user code's group in it.
func mountCgroup(tasks int) (string, error) {
	if err := os.MkdirAll(cgroupDir, 0o700); err != nil {
		return "", err
	}
	if err := unix.Mount("none", cgroupDir, "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return "", err
	}
	_ = os.WriteFile(cgroupDir+"/cgroup.subtree_control", []byte("+pids"), 0)
	dir := cgroupDir + "/code"
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		_ = unix.Unmount(cgroupDir, unix.MNT_DETACH)
		return "", err
	}
	if err := os.WriteFile(dir+"/pids.max", []byte(strconv.Itoa(tasks)), 0); err != nil {
		_ = os.Remove(dir)
		_ = unix.Unmount(cgroupDir, unix.MNT_DETACH)
		return "", err
	}
	return dir, nil
}

// cpusOf is how many threads make sense in a sandbox of the limits.
func cpusOf(l guestwire.SandboxLimits) int { return max(1, int(l.CPUs)) }

// baseEnv is the environment of every exec before the session's and the
// request's own.
func baseEnv(l guestwire.SandboxLimits) map[string]string {
	cpus := strconv.Itoa(cpusOf(l))
	env := map[string]string{
		"PATH": binDir + ":/usr/local/bin:/usr/bin:/bin", "HOME": homeDir, "LANG": "C.UTF-8",
		"SHELL": "/bin/bash", "TMPDIR": "/tmp", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", "MPLBACKEND": "Agg",
		"OMP_NUM_THREADS": cpus, "OPENBLAS_NUM_THREADS": cpus, "MKL_NUM_THREADS": cpus, "NUMEXPR_MAX_THREADS": cpus,
		"NODE_PATH": libDir + "/js",
	}
	if weak(weakEnvironment) {
		maps.Copy(env, ownEnv())
	}
	return env
}
