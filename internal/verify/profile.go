package verify

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/workbenchdev/workbench/internal/sandbox/oci"
)

// profile is a sandbox broken on purpose.
type profile struct {
	name   string
	breaks string // in words
	// bare: the sandbox of the runsc driver is made by runc, so that code meets
	// the host's kernel. Says nothing for runc.
	bare bool

	wide    bool              // limits far above the promised ones
	endless bool              // no wall time
	output  int64             // another bound on output
	env     map[string]string // of every exec

	guest []string // names for the guest's --weaken
	flags []string // for runsc
	spec  func(s *scene, kind oci.Kind, spec *specs.Spec)
	// wrap puts a program around each that a row starts by its path.
	wrap     func(argv []string) []string
	anyImage bool
	prepare  func(ctx context.Context, s *scene) (prepared, error)
	// started is called for each sandbox after its start.
	started func(s *scene, b *session) error
}

// prepared is what a profile put on the host before its sandboxes start.
type prepared struct {
	rootfs string // instead of the image's
	binary string // instead of the runtime
	dir    string // for spec
	end    func() error
}

// shipped is no profile: sandboxes as the server starts them.
var shipped = &profile{name: "as shipped"}

func joined(names []string) string { return strings.Join(names, ",") }

// allCapabilities are every capability there is.
var allCapabilities = []string{
	"CAP_AUDIT_CONTROL", "CAP_AUDIT_READ", "CAP_AUDIT_WRITE", "CAP_BLOCK_SUSPEND", "CAP_BPF", "CAP_CHECKPOINT_RESTORE", "CAP_CHOWN",
	"CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_KILL", "CAP_LEASE",
	"CAP_LINUX_IMMUTABLE", "CAP_MAC_ADMIN", "CAP_MAC_OVERRIDE", "CAP_MKNOD", "CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST",
	"CAP_NET_RAW", "CAP_PERFMON", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYSLOG", "CAP_SYS_ADMIN", "CAP_SYS_BOOT",
	"CAP_SYS_CHROOT", "CAP_SYS_MODULE", "CAP_SYS_NICE", "CAP_SYS_PACCT", "CAP_SYS_PTRACE", "CAP_SYS_RAWIO", "CAP_SYS_TIME",
	"CAP_SYS_TTY_CONFIG", "CAP_WAKE_ALARM",
}

func withoutNamespace(spec *specs.Spec, types ...specs.LinuxNamespaceType) {
	spec.Linux.Namespaces = slices.DeleteFunc(spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return slices.Contains(types, n.Type) })
	if slices.Contains(types, specs.UserNamespace) {
		spec.Linux.UIDMappings, spec.Linux.GIDMappings = nil, nil
		maps.DeleteFunc(spec.Linux.Sysctl, func(name, _ string) bool { return strings.HasPrefix(name, "user.") }) // would be the host's
	}
}

func keepCapabilities(spec *specs.Spec) {
	spec.Process.NoNewPrivileges = false
	spec.Process.Capabilities = &specs.LinuxCapabilities{
		Bounding: allCapabilities, Effective: allCapabilities, Permitted: allCapabilities, Inheritable: allCapabilities,
	}
}

func bind(spec *specs.Spec, from, to string, options ...string) {
	spec.Mounts = append(spec.Mounts, specs.Mount{Destination: to, Type: "bind", Source: from, Options: append([]string{"bind"}, options...)})
}
