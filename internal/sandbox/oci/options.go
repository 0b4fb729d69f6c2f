package oci

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox/cgroup"
)

// Kind is which runtime a driver uses.
type Kind string

// The kinds of runtime.
const (
	Runsc Kind = "runsc" // gVisor: a kernel of its own for each sandbox
	Runc  Kind = "runc"  // namespaces and control groups of the host's kernel
)

// Options say what a driver is made of.
type Options struct {
	Kind Kind
	// Instance is the instance id of the data directory: [a-z0-9]{12}. Whoever
	// opens the driver holds that instance's exclusive lock.
	Instance string
	Binary   string // path of the runtime
	Guest    string // path of the static guest binary
	// Packages is a directory of sets of packages, which every sandbox can read, and
	// cannot list if its mode says so; "": none.
	Packages string
	// StateDir is for this instance alone and best in memory; it is made when
	// missing. Default: /run/workbench/<instance>. Runtimes put sockets below
	// it, so the path may have at most 49 bytes.
	StateDir string
	// CgroupRoot is where control groups are mounted; default /sys/fs/cgroup.
	CgroupRoot string
	// IDBase is the first host user and group id of the ranges that sandboxes
	// are mapped to, IDRanges how many ranges of 65536 ids follow. Nobody else
	// may use them. Default: 1879048192, above what systemd hands out, and 4096.
	IDBase   uint32
	IDRanges uint32
	// StartTimeout bounds one start; default 20 s.
	StartTimeout time.Duration
	// CheckpointTimeout bounds one checkpoint; default 2 min. gVisor writes some
	// hundred MiB a second.
	CheckpointTimeout time.Duration
	// CoreScheduling keeps a sandbox's threads from sharing a CPU core with
	// anyone else's (runsc, Linux 5.14 or newer).
	CoreScheduling bool
	// Weaken breaks sandboxes on purpose: see Weakening.
	Weaken *Weakening
	Log    *slog.Logger     // default: slog.Default()
	Clock  func() time.Time // default: time.Now
}

// Defaults of Options.
const (
	DefaultIDBase            = 1_879_048_192 // 0x70000000
	DefaultIDRanges          = 4096
	DefaultStartTimeout      = 20 * time.Second
	DefaultCheckpointTimeout = 2 * time.Minute
	idsPerRange              = 65_536
	maxStateDir              = 49 // "<it>/runsc/<sandbox id>/r/runsc-sandbox.sock" stays below 108
)

var instancePattern = regexp.MustCompile(`^[a-z0-9]{12}$`)

// complete fills in defaults and refuses what cannot work.
func (o Options) complete() (Options, error) {
	if o.Kind != Runsc && o.Kind != Runc {
		return o, fmt.Errorf("runtime kind %q is neither runsc nor runc", o.Kind)
	}
	if !instancePattern.MatchString(o.Instance) {
		return o, fmt.Errorf("instance id %q is not 12 of [a-z0-9]", o.Instance)
	}
	for _, p := range []*string{&o.Binary, &o.Guest} {
		if *p == "" {
			continue // checkHost names what is missing
		}
		abs, err := filepath.Abs(*p)
		if err != nil {
			return o, err
		}
		*p = abs
	}
	if o.StateDir == "" {
		o.StateDir = filepath.Join("/run/workbench", o.Instance)
	}
	if !filepath.IsAbs(o.StateDir) || len(o.StateDir) > maxStateDir {
		return o, fmt.Errorf("state directory %q must be absolute and at most %d bytes", o.StateDir, maxStateDir)
	}
	if o.CgroupRoot == "" {
		o.CgroupRoot = cgroup.DefaultRoot
	}
	if o.IDBase == 0 {
		o.IDBase = DefaultIDBase
	}
	if o.IDRanges == 0 {
		o.IDRanges = DefaultIDRanges
	}
	if uint64(o.IDBase)+uint64(o.IDRanges)*idsPerRange > 1<<31 || o.IDBase < idsPerRange {
		return o, fmt.Errorf("id ranges from %d must lie between %d and 2^31", o.IDBase, idsPerRange)
	}
	if o.StartTimeout <= 0 {
		o.StartTimeout = DefaultStartTimeout
	}
	if o.CheckpointTimeout <= 0 {
		o.CheckpointTimeout = DefaultCheckpointTimeout
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	return o, nil
}

// checkHost refuses hosts on which no sandbox can be started, naming what is
// missing.
func (o Options) checkHost() error {
	if os.Geteuid() != 0 {
		return workbench.E(workbench.CodeRuntimeUnavailable, "the %s driver needs root, and this process runs as user %d", o.Kind, os.Geteuid()).
			WithHint("run the server as root; sandboxes themselves run unprivileged")
	}
	if err := executable(o.Binary); err != nil {
		return workbench.E(workbench.CodeRuntimeUnavailable, "the runtime %s is not usable", o.Kind).
			WithHint("make setup builds it; or name another one in the configuration").Caused(err)
	}
	if err := executable(o.Guest); err != nil {
		return workbench.E(workbench.CodeRuntimeUnavailable, "the guest binary is not usable").
			WithHint("make build makes it").Caused(err)
	}
	if _, err := os.Stat("/proc/self/ns/user"); err != nil {
		return workbench.E(workbench.CodeRuntimeUnavailable, "this kernel has no user namespaces").
			WithHint("boot a kernel with CONFIG_USER_NS").Caused(err)
	}
	if raw, err := os.ReadFile("/proc/sys/user/max_user_namespaces"); err == nil && string(raw) == "0\n" {
		return workbench.E(workbench.CodeRuntimeUnavailable, "user namespaces are turned off on this host").
			WithHint("sysctl user.max_user_namespaces=10000")
	}
	return nil
}

func executable(path string) error {
	if path == "" {
		return fmt.Errorf("no path given")
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("%s is not an executable file", path)
	}
	return nil
}
