package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dockerd is a Docker daemon of the bench's own: its data, sockets and state
// are below one directory, and it touches no network of the host.
type dockerd struct {
	dir, client string
	cgroup      string // parent of its containers' groups
	daemon      *exec.Cmd
	ended       chan struct{}
}

// dockerStart and dockerStop bound the daemon's start and stop.
const (
	dockerStart = time.Minute
	dockerStop  = 30 * time.Second
)

const dockerImage = "workbench-bench"

// addDocker starts a daemon and gives it the image, or says why not.
func (p *peers) addDocker(ctx context.Context) {
	d, err := startDocker(ctx, filepath.Join(p.dir, "docker"))
	if err == nil {
		p.docker = d
		err = d.importRoot(ctx, p.image.Root)
	}
	if err != nil {
		p.missing(nameDocker, err.Error())
		return
	}
	p.versionOf["docker"] = d.args("version", "--format", "server {{.Server.Version}}, client {{.Client.Version}}")
	for _, l := range peerLanguages {
		p.all = append(p.all, contender{name: nameDocker, language: l.name, peer: true, run: func(ctx context.Context) (time.Duration, error) {
			// Its removal is not timed, though a one-shot run needs it.
			name := p.name()
			took, err := hello(ctx, d.args(append([]string{"run", "--network", "none", "--name", name, dockerImage}, l.args...)...)...)
			return took, errors.Join(err, d.do(ctx, "rm", "--force", name))
		}})
	}
}

func startDocker(ctx context.Context, dir string) (*dockerd, error) {
	daemon, err := exec.LookPath("dockerd")
	if err != nil {
		return nil, errors.New("no dockerd: install docker.io")
	}
	client, err := exec.LookPath("docker")
	if err != nil {
		return nil, errors.New("no docker client: install docker.io")
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	d := &dockerd{dir: dir, client: client, cgroup: fmt.Sprintf("workbench-bench-docker-%d", os.Getpid()), ended: make(chan struct{})}
	d.daemon = exec.CommandContext(context.WithoutCancel(ctx), daemon, "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--bridge=none", "--cgroup-parent", "/"+d.cgroup,
		"--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "run"), "--pidfile", filepath.Join(dir, "pid"),
		"--host", "unix://"+d.socket())
	d.daemon.Env, d.daemon.Stdout, d.daemon.Stderr = peerEnv, log, log
	// It goes with this process, however that ends.
	d.daemon.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	started := make(chan error, 1)
	go func() {
		defer close(d.ended)
		// The death signal comes when the thread that started the child ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := d.daemon.Start()
		started <- err
		if err == nil {
			_ = d.daemon.Wait() // how it ended does not matter here
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	if err := d.await(ctx); err != nil {
		return nil, errors.Join(err, d.stop())
	}
	return d, nil
}

func (d *dockerd) socket() string { return filepath.Join(d.dir, "sock") }

func (d *dockerd) args(args ...string) []string {
	return append([]string{d.client, "--host", "unix://" + d.socket()}, args...)
}

func (d *dockerd) do(ctx context.Context, args ...string) error {
	all := d.args(args...)
	cmd := exec.CommandContext(ctx, all[0], all[1:]...)
	cmd.Env = peerEnv
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("docker %s: %w: %s", args[0], err, bytes.TrimSpace(out))
	}
	return nil
}

// await returns once the daemon answers.
func (d *dockerd) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dockerStart)
	defer cancel()
	for {
		if d.do(ctx, "version") == nil {
			return nil
		}
		select {
		case <-d.ended:
			return errors.New("dockerd does not start here: " + d.lastWords())
		case <-ctx.Done():
			return errors.New("dockerd does not answer")
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// lastWords is the last error of the daemon's log, without paths of the bench.
func (d *dockerd) lastWords() string {
	raw, err := os.ReadFile(filepath.Join(d.dir, "log"))
	if err != nil {
		return "it left no log"
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	return strings.ReplaceAll(lines[len(lines)-1], d.dir, "…")
}

// importRoot makes an image of a root directory.
func (d *dockerd) importRoot(ctx context.Context, root string) error {
	tar := exec.CommandContext(ctx, "tar", "--create", "--directory", root, ".")
	load := d.args("import", "-", dockerImage)
	docker := exec.CommandContext(ctx, load[0], load[1:]...)
	tar.Env, docker.Env = peerEnv, peerEnv
	pipe, err := tar.StdoutPipe()
	if err != nil {
		return err
	}
	docker.Stdin = pipe
	var said bytes.Buffer
	docker.Stderr = &said
	if err := tar.Start(); err != nil {
		return err
	}
	if err := docker.Run(); err != nil {
		_ = tar.Process.Kill()
		_ = tar.Wait()
		return fmt.Errorf("docker import: %w: %s", err, strings.TrimSpace(said.String()))
	}
	return tar.Wait()
}

// stop ends the daemon and what it leaves mounted.
func (d *dockerd) stop() error {
	_ = d.daemon.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-d.ended:
	case <-time.After(dockerStop):
		_ = syscall.Kill(-d.daemon.Process.Pid, syscall.SIGKILL)
		<-d.ended
	}
	raw, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], d.dir+"/") {
			err = errors.Join(err, unix.Unmount(f[1], unix.MNT_DETACH))
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		groups, globErr := filepath.Glob(pattern + d.cgroup)
		err = errors.Join(err, globErr)
		for _, group := range groups {
			err = errors.Join(err, os.Remove(group))
		}
	}
	return err
}
