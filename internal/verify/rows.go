package verify

import (
	"context"
	"fmt"
	"strings"
)

// table is every row, in the order of the list of abuse cases.
var table = []row{
	{"H01", "fork bomb", checkForkBomb},
	{"H03", "memory bomb", checkMemoryBomb("H03")},
	{"H04", "many small eaters", checkMemoryBomb("H04")},
	{"H06", "kernel memory", checkKernelMemory},
	{"H07", "swap", checkSwap},
	{"H08", "mlock and huge pages", probeIn(limitsSession, "H08", nil)},
	{"H09", "CPU hog", checkHog(false)},
	{"H10", "priority", checkPriority},
	{"H11", "affinity", checkHog(true)},
	{"H12", "timer storm", checkTimerStorm},
	{"H13", "disk fill", checkDiskFill},
	{"H14", "inode fill", probeIn(limitsSession, "H14", nil)},
	{"H15", "descriptor exhaustion", probeIn(limitsSession, "H15", nil)},
	{"H17", "wide tree", checkWideTree},
	{"H19", "output flood", checkFlood},
	{"H20", "binary flood on both streams", checkBinaryFlood},
	{"H22", "zip bomb", elsewhere("nothing in the server unpacks an upload; the limits of H03, H13 and H14 hold what code unpacks")},
	{"H23", "trojan decompressor", elsewhere("no program of the sandbox is used on uploads; see H120 for the PATH of code")},
	{"H24", "sleeper", checkSleeper},
	{"H25", "ignores TERM", checkDeaf},
	{"H26", "unkillable I/O", probeIn(mainSession, "H26", nil)},
	{"H27", "zombie storm", probeIn(limitsSession, "H27", nil)},
	{"H29", "holds stdout", checkHeldStdout},
	{"H31", "server dies in a run", elsewhere("the crash tests of the server kill it at every named point")},
	{"H32", "schedulers", probeIn(mainSession, "H32", nil)},
	{"H34", "next run sees last run's process", checkNextRun},
	{"H35", "residue in world-writable directories", checkResidue},
	{"H36", "SysV and POSIX IPC residue", checkIPC},
	{"H37", "keyring residue", checkKeyring},
	{"H38", "lock channel", checkLockChannel},
	{"H39", "AF_VSOCK", probeIn(mainSession, "H39", nil)},
	{"H40", "shared process view", checkSharedView},
	{"H41", "ptrace", probeIn(mainSession, "H41", nil)},
	{"H43", "mount family", probeIn(mainSession, "H43", nil)},
	{"H44", "new user namespace", probeIn(mainSession, "H44", nil)},
	{"H45", "setns", probeIn(mainSession, "H45", nil)},
	{"H46", "bpf", probeIn(mainSession, "H46", nil)},
	{"H47", "io_uring", probeIn(mainSession, "H47", nil)},
	{"H48", "keyrings", probeIn(mainSession, "H48", nil)},
	{"H50", "userfaultfd", probeIn(mainSession, "H50", nil)},
	{"H51", "AF_ALG (Copy Fail)", checkCopyFail},
	{"H52", "page-cache writers", checkPageCache},
	{"H53", "packet and raw sockets", probeIn(mainSession, "H53", nil)},
	{"H54", "netlink and nftables", probeIn(mainSession, "H54", nil)},
	{"H55", "modules", checkModules},
	{"H56", "host control", probeIn(mainSession, "H56", nil)},
	{"H57", "clock", probeIn(mainSession, "H57", nil)},
	{"H59", "other ABI", probeIn(mainSession, "H59", nil)},
	{"H60", "terminal injection", probeIn(mainSession, "H60", nil)},
	{"H61", "handle open", probeIn(mainSession, "H61", nil)},
	{"H63", "setuid and capability files", probeIn(mainSession, "H63", nil)},
	{"H64", "inheritable capabilities", probeIn(mainSession, "H64", nil)},
	{"H65", "core dump", checkCoreDump},
	{"H66", "writable sysctl", probeIn(mainSession, "H66", nil)},
	{"H67", "masked files", probeIn(mainSession, "H67", nil)},
	{"H68", "root preparation race", checkPlantedRoot},
	{"H70", "leaked descriptors", checkDescriptors},
	{"H72", "others' environment", probeIn(mainSession, "H72", nil)},
	{"H73", "process 1 leak", checkSecretWords("H73")},
	{"H74", "mountinfo leak", checkSecretWords("H74")},
	{"H75", "release_agent", probeIn(mainSession, "H75", nil)},
	{"H76", "leave the cgroup", checkLeaveCgroup},
	{"H77", "sysfs writes", probeIn(mainSession, "H77", nil)},
	{"H78", "dangerous devices", probeIn(mainSession, "H78", nil)},
	{"H79", "LSM label", checkLabel},
	{"H84", "token replay", elsewhere("tools are not built; the token of a run is tested with the guest")},
	{"H85", "tool-call flood", elsewhere("tools are not built")},
	{"H86", "symlink artifact", elsewhere("tests of the guest and of artifacts save links; the guest opens beneath the workspace and follows none")},
	{"H87", "trap at a host-written path", elsewhere("tests of the guest write through planted links, FIFOs and directories")},
	{"H89", "host removal through links", checkRemoval},
	{"H91", "FIFO artifact", checkOddEntries("FIFO")},
	{"H92", "socket or device artifact", checkOddEntries("socket")},
	{"H94", "name collisions", checkNames},
	{"H96", "mutate during hash", checkMutation},
	{"H97", "xattrs", checkXattrs},
	{"H98", "active content", elsewhere("a promise of the download gate: tests of the API")},
	{"H99", "limits on files", elsewhere("a promise of the API and the store: their tests race uploads at the limit")},
	{"H100", "no network", checkNetwork},
	{"H101", "host loopback", checkLoopback},
	{"H102", "metadata", checkMetadata},
	{"H103", "IPv6", checkIPv6},
	{"H104", "private ranges", checkPrivateRanges},
	{"H107", "abstract sockets", checkAbstract},
	{"H108", "control sockets", probeIn(mainSession, "H108", nil)},
	{"H109", "neighbour", checkNeighbour},
	{"H110", "spoofing", probeIn(mainSession, "H110", nil)},
	{"H111", "environment secrets", checkCanary},
	{"H112", "mounted secrets", probeIn(mainSession, "H112", nil)},
	{"H113", "cloned state", checkClonedState},
	{"H114", "same layout", elsewhere("a documented residual of forked interpreters; each interpreter is executed, none is forked yet")},
	{"H116", "terminal escapes", elsewhere("a promise of the command line: tests of package terminal")},
	{"H117", "language tricks", probeIn(mainSession, "H117", nil)},
	{"H118", "Node tricks", checkNode},
	{"H120", "PATH hijack", checkPlanted("H120")},
	{"H121", "LD_PRELOAD", checkPlanted("H121")},
	{"H123", "side channels", notTried("stated out of scope by the threat model; core scheduling is an option of the driver")},
	{"H124", "unsafe configuration", notTried("no setting mounts a socket or a host directory, shares a namespace or adds a capability")},
	{"H125", "old runtime", checkVersions},
	{"H126", "cgroup memory of a dead parent", checkMemoryBomb("H126")},
}

func elsewhere(why string) func(context.Context, *scene) finding {
	return func(context.Context, *scene) finding { return notApplicable("covered elsewhere: %s", why) }
}

func notTried(why string) func(context.Context, *scene) finding {
	return func(context.Context, *scene) finding { return notApplicable("%s", why) }
}

// probeIn is a row whose probe says all there is to say.
func probeIn(name, probe string, params any) func(context.Context, *scene) finding {
	return func(ctx context.Context, s *scene) finding {
		b, err := s.session(ctx, name)
		if err != nil {
			return broke(err)
		}
		return b.judge(ctx, probe, params)
	}
}

// judge runs a probe and takes its verdict for the finding. The sandbox must
// still answer afterwards.
func (b *session) judge(ctx context.Context, probe string, params any) finding {
	v, _, err := b.probe(ctx, probe, params)
	if err != nil {
		return broke(err)
	}
	if !v.OK {
		return failed("%s", v.Why)
	}
	if err := b.alive(ctx); err != nil {
		return failed("%v", err)
	}
	return proved("%s", shorter(v.Why))
}

// shorter keeps a report readable.
func shorter(s string) string {
	const limit = 160
	if len(s) <= limit {
		return s
	}
	at := strings.LastIndex(s[:limit], "; ")
	if at < limit/3 {
		at = limit
	}
	return s[:at] + " …"
}

// both runs probes one after the other, in sandboxes of their own name, and
// stops at the first that does not hold.
func judgeAll(fs ...func() finding) finding {
	var why []string
	for _, f := range fs {
		got := f()
		if got.outcome != Proved {
			return got
		}
		why = append(why, got.why)
	}
	return proved("%s", strings.Join(why, "; "))
}

func marker() string { return "workbench-verify-" + randomID() }

func errorf(format string, args ...any) finding { return broke(fmt.Errorf(format, args...)) }
