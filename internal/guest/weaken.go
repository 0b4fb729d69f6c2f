package guest

import (
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// weakenFlag begins the argument with which `workbench verify` breaks a guest on
// purpose, to show that its checks notice: --weaken=filter,masks. It is read
// from the arguments of the sandbox's first process alone, which the driver
// sets and code inside cannot; what code starts with it is code's own process.
const weakenFlag = "--weaken="

// The defences that can be left out.
const (
	weakFilter      = "filter"      // no system call filter over user code
	weakPrivileges  = "privileges"  // the bounding set and set-user-id programs stay in effect
	weakCaps        = "caps"        // user code keeps the guest's capabilities (with privileges)
	weakIdentity    = "identity"    // user code is uid 0
	weakNamespaces  = "namespaces"  // groups share the supervisor's namespaces
	weakMasks       = "masks"       // nothing of /proc and /sys is hidden or frozen
	weakCores       = "cores"       // core files may be written
	weakDescriptors = "descriptors" // user code inherits an open directory
	weakEnvironment = "environment" // user code inherits the guest's environment
)

// weakened are the defences left out; none in every sandbox that serves a
// session.
var weakened []string

func takeWeakening(args []string) {
	for _, a := range args {
		if names, ok := strings.CutPrefix(a, weakenFlag); ok {
			weakened = strings.Split(names, ",")
		}
	}
}

func weak(name string) bool { return slices.Contains(weakened, name) }

// stageArgs are the arguments of a further stage of the guest.
func stageArgs(stage string) []string {
	args := []string{"guest", stage}
	if len(weakened) > 0 {
		args = append(args, weakenFlag+strings.Join(weakened, ","))
	}
	return args
}

// keptCaps are the capabilities that user code is given when weakened so.
func keptCaps() []uintptr {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return nil
	}
	var kept []uintptr
	for c := range uintptr(64) {
		if sets[c/32].Permitted&(1<<(c%32)) != 0 {
			kept = append(kept, c)
		}
	}
	return kept
}

// leakDescriptor leaves a directory open for the program.
func leakDescriptor() {
	if fd, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY, 0); err == nil {
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
	}
}

// ownEnv is the guest's environment but for what is set for user code anyway.
func ownEnv() map[string]string {
	env := map[string]string{}
	for _, e := range os.Environ() {
		if name, value, ok := strings.Cut(e, "="); ok && name != "PATH" {
			env[name] = value
		}
	}
	return env
}
