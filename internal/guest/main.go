package guest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
)

// Identities inside the sandbox.
const (
	userID  = 1000
	groupID = 1000
)

// Places inside the sandbox.
const (
	guestBinary  = "/opt/workbench/bin/guest"
	skelDir      = "/opt/workbench/skel"
	runDir       = "/run/workbench"
	libDir       = runDir + "/lib"
	binDir       = runDir + "/bin"
	execsDir     = runDir + "/x"      // one directory per exec: its source, its socket
	bindDir      = runDir + "/b"      // where sockets are made; the guest's alone
	cgroupDir    = runDir + "/cgroup" // hidden from groups
	scratchDir   = runDir + "/scratch"
	workspaceDir = "/mnt/files"
	homeDir      = "/tmp/home"
)

// Build names the guest in its hello; set at link time.
var Build = "dev"

// commandNames are those by which code calls the helper command.
var commandNames = []string{"workbench", "arc0"}

// Main runs the guest's subcommand and returns the exit status. The names are
// internal, except those of the helper command.
func Main(args []string) int {
	name := ""
	if len(args) > 0 {
		name = filepath.Base(args[0])
		args = args[1:]
	}
	if slices.Contains(commandNames, name) {
		return shellCommand(args)
	}
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	var err error
	switch name {
	case "supervise", "init", "launch":
		takeWeakening(args)
	}
	switch name {
	case "supervise":
		// Threads that take another identity end with it; the main one cannot.
		runtime.LockOSThread()
		err = supervise()
	case "init":
		err = runInit()
	case "launch":
		err = launch()
	case "transpile":
		return transpileMain()
	default:
		err = fmt.Errorf("unknown subcommand %q", name)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "guest "+name+": "+err.Error())
		return 1
	}
	return 0
}

// lean keeps a short-lived helper process small.
func lean() { debug.SetGCPercent(50) }
