package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/image"
)

// peerEnv is the whole environment of what the bench starts.
var peerEnv = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}

// peerWithin bounds one run of a peer.
const peerWithin = time.Minute

// peerLanguages are what peers run; the arguments run its hello.
var peerLanguages = []struct {
	name string
	args []string
}{
	{"python", []string{"python3", "-c", hellos[workbench.Python]}},
	{"javascript", []string{"node", "-e", hellos[workbench.JavaScript]}},
}

// peers are the other ways to run a hello on this host.
type peers struct {
	dir        string
	image      image.Image
	all        []contender
	unmeasured []row
	versionOf  map[string][]string // program → command that prints its version
	docker     *dockerd
	count      atomic.Int64 // for names
}

// openPeers prepares whatever this host has. A peer that it lacks becomes a row
// that says so.
func openPeers(ctx context.Context, o options, images *image.Store, img image.Image, dir string) (*peers, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	p := &peers{dir: dir, image: img, versionOf: map[string][]string{}}
	p.bare()
	p.barePandas(ctx, images)
	p.bwrap()
	for _, add := range []func(options) error{p.runc, p.runsc} {
		if err := add(o); err != nil {
			return nil, err
		}
	}
	p.addDocker(ctx)
	return p, nil
}

func (p *peers) contenders() []contender { return p.all }

func (p *peers) close() error {
	if p.docker == nil {
		return nil
	}
	return p.docker.stop()
}

// missing notes a peer that cannot be measured.
func (p *peers) missing(name, why string) {
	progress("%s is not measured: %s", name, why)
	for _, l := range peerLanguages {
		p.unmeasured = append(p.unmeasured, row{Name: name, Language: l.name, NotMeasured: why})
	}
}

// hello runs a command that must print the hello, and times it.
func hello(ctx context.Context, args ...string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, peerWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = peerEnv
	took, err := timeHello(cmd)
	if ctx.Err() != nil {
		err = fmt.Errorf("no end within %v: %w", peerWithin, err)
	}
	return took, err
}

// timeHello times a command that must print the hello.
func timeHello(cmd *exec.Cmd) (time.Duration, error) {
	var out, problem bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problem
	began := time.Now()
	err := cmd.Run()
	took := time.Since(began)
	if err != nil || out.String() != helloText {
		return 0, fmt.Errorf("printed %q: %w; %s", out.String(), errors.Join(err), bytes.TrimSpace(problem.Bytes()))
	}
	return took, nil
}

// command adds a peer whose whole way is one command.
func (p *peers) command(name, language string, args func() []string) {
	p.all = append(p.all, contender{name: name, language: language, peer: true,
		run: func(ctx context.Context) (time.Duration, error) { return hello(ctx, args()...) }})
}

// oci adds a runtime's run of a bundle. What a failed run left is removed.
func (p *peers) oci(name, language, bundle string, runtime ...string) {
	p.all = append(p.all, contender{name: name, language: language, peer: true, run: func(ctx context.Context) (time.Duration, error) {
		id := p.name()
		took, err := hello(ctx, slices.Concat(runtime, []string{"run", "--bundle", bundle, id})...)
		if err != nil {
			remove := slices.Concat(runtime, []string{"delete", "--force", id})
			cmd := exec.CommandContext(ctx, remove[0], remove[1:]...)
			cmd.Env = peerEnv
			if removeErr := cmd.Run(); removeErr != nil {
				err = fmt.Errorf("%w; and it could not be removed: %w", err, removeErr)
			}
		}
		return took, err
	}})
}

// bare is the host's own interpreters. The distribution's come first: what a
// version manager puts before them is a shell script that costs more than it
// starts.
func (p *peers) bare() {
	for _, l := range peerLanguages {
		path := "/usr/bin/" + l.args[0]
		if _, err := os.Stat(path); err != nil {
			if path, err = exec.LookPath(l.args[0]); err != nil {
				p.unmeasured = append(p.unmeasured, row{Name: nameBare, Language: l.name, NotMeasured: "this host has no " + l.args[0]})
				continue
			}
		}
		p.versionOf[l.args[0]] = []string{path, "--version"}
		p.command(nameBare, l.name, func() []string { return append([]string{path}, l.args[1:]...) })
	}
}

// barePandas is Python without any isolation, over the root of the image that
// has pandas: the host's own, if it has some, is another build of another
// version.
func (p *peers) barePandas(ctx context.Context, images *image.Store) {
	img, err := images.Get(ctx, pandasImage)
	if err != nil {
		p.unmeasured = append(p.unmeasured, row{Name: nameChroot, Language: string(pandas), NotMeasured: "there is no image " + pandasImage})
		return
	}
	p.all = append(p.all, contender{name: nameChroot, language: string(pandas), peer: true, run: func(ctx context.Context) (time.Duration, error) {
		ctx, cancel := context.WithTimeout(ctx, peerWithin)
		defer cancel()
		cmd := exec.CommandContext(ctx, "/usr/bin/python3", "-c", pandasHello)
		cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Chroot: img.Root}
		cmd.Env = append(slices.Clone(peerEnv), "PYTHONDONTWRITEBYTECODE=1") // the root stays as it is
		return timeHello(cmd)
	}})
}

// bwrap is bubblewrap with every name space, over the image's root.
func (p *peers) bwrap() {
	path, err := exec.LookPath("bwrap")
	if err != nil {
		p.missing(nameBwrap, "bubblewrap is not installed")
		return
	}
	p.versionOf["bwrap"] = []string{path, "--version"}
	for _, l := range peerLanguages {
		p.command(nameBwrap, l.name, func() []string {
			return append([]string{path, "--unshare-all", "--die-with-parent", "--ro-bind", p.image.Root, "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"}, l.args...)
		})
	}
}

// runc is the runc that Workbench ships.
func (p *peers) runc(o options) error {
	binary, err := filepath.Abs(filepath.Join(o.bin, "runc"))
	if err != nil {
		return err
	}
	if _, err := os.Stat(binary); err != nil {
		p.missing(nameRunc, "runc is not built: make runtimes")
		return nil //nolint:nilerr // the row says so
	}
	p.versionOf["runc"] = []string{binary, "--version"}
	state := filepath.Join(p.dir, "runc")
	for _, l := range peerLanguages {
		bundle, err := p.bundle("runc-"+l.name, l.args, nil)
		if err != nil {
			return err
		}
		p.oci(nameRunc, l.name, bundle, binary, "--root", state)
	}
	return nil
}

// runsc is a cold start of the gVisor that Workbench ships, at its best: the
// root as an EROFS image, if there is one, as Workbench has it.
func (p *peers) runsc(o options) error {
	binary, err := filepath.Abs(filepath.Join(o.bin, "runsc"))
	if err != nil {
		return err
	}
	p.versionOf["runsc"] = []string{binary, "--version"}
	state := filepath.Join(p.dir, "runsc")
	var annotations map[string]string
	if p.image.EROFS != "" {
		annotations = map[string]string{"dev.gvisor.spec.rootfs.source": p.image.EROFS,
			"dev.gvisor.spec.rootfs.type": "erofs", "dev.gvisor.spec.rootfs.overlay": "memory"}
	}
	for _, l := range peerLanguages {
		bundle, err := p.bundle("runsc-"+l.name, l.args, annotations)
		if err != nil {
			return err
		}
		p.oci(nameRunsc, l.name, bundle, binary, "--root", state, "--platform", "systrap", "--network", "none")
	}
	return nil
}

// name is a container id that was not used before.
func (p *peers) name() string {
	return fmt.Sprintf("workbench-bench-%d-%d", os.Getpid(), p.count.Add(1))
}

// bundle writes a plain OCI bundle over the image's root.
func (p *peers) bundle(name string, args []string, annotations map[string]string) (string, error) {
	root, err := filepath.EvalSymlinks(p.image.Root)
	if err != nil {
		return "", err
	}
	if erofs := annotations["dev.gvisor.spec.rootfs.source"]; erofs != "" {
		if annotations["dev.gvisor.spec.rootfs.source"], err = filepath.EvalSymlinks(erofs); err != nil {
			return "", err
		}
	}
	spec := specs.Spec{
		Version: "1.0.2", Hostname: "bench", Annotations: annotations,
		Root: &specs.Root{Path: root, Readonly: true},
		Process: &specs.Process{Args: args, Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"}, Cwd: "/",
			NoNewPrivileges: true, Capabilities: &specs.LinuxCapabilities{}},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777"}},
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.MountNamespace},
			{Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.NetworkNamespace}}},
	}
	raw, err := json.Marshal(spec)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(p.dir, "bundle-"+name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o644)
}
