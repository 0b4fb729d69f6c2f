package verify

import (
	"context"
	"fmt"
	"strings"
)

// table is every row, in the order of the list of abuse cases.
var table = []row{
	{id: "H01", name: "fork bomb", check: checkForkBomb},
	{id: "H03", name: "memory bomb", check: checkMemoryBomb("H03")},
	{id: "H04", name: "many small eaters", check: checkMemoryBomb("H04")},
	{id: "H06", name: "kernel memory", check: checkKernelMemory},
	{id: "H07", name: "swap", check: checkSwap},
	{id: "H08", name: "mlock and huge pages", check: probeIn(limitsSession, "H08")},
	{id: "H09", name: "CPU hog", check: checkHog(false)},
	{id: "H10", name: "priority", check: checkPriority},
	{id: "H11", name: "affinity", check: checkHog(true)},
	{id: "H12", name: "timer storm", check: checkTimerStorm},
	{id: "H13", name: "disk fill", check: checkDiskFill},
	{id: "H14", name: "inode fill", check: probeIn(limitsSession, "H14")},
	{id: "H15", name: "descriptor exhaustion", check: probeIn(limitsSession, "H15")},
	{id: "H17", name: "wide tree", check: checkWideTree},
	{id: "H19", name: "output flood", check: checkFlood},
	{id: "H20", name: "binary flood on both streams", check: checkBinaryFlood},
	{id: "H22", name: "zip bomb", untried: true, check: elsewhere("nothing in the server unpacks an upload; the limits of H03, H13 and H14 hold what code unpacks")},
	{id: "H23", name: "trojan decompressor", untried: true, check: elsewhere("no program of the sandbox is used on uploads; see H120 for the PATH of code")},
	{id: "H24", name: "sleeper", check: checkSleeper},
	{id: "H25", name: "ignores TERM", check: checkDeaf},
	{id: "H26", name: "unkillable I/O", check: probeIn(mainSession, "H26")},
	{id: "H27", name: "zombie storm", check: probeIn(limitsSession, "H27")},
	{id: "H29", name: "holds stdout", check: checkHeldStdout},
	{id: "H31", name: "server dies in a run", untried: true, check: elsewhere("the crash tests of the server kill it at every named point")},
	{id: "H32", name: "schedulers", check: probeIn(mainSession, "H32")},
	{id: "H34", name: "next run sees last run's process", check: checkNextRun},
	{id: "H35", name: "residue in world-writable directories", check: checkResidue},
	{id: "H36", name: "SysV and POSIX IPC residue", check: checkIPC},
	{id: "H37", name: "keyring residue", check: checkKeyring},
	{id: "H38", name: "lock channel", check: checkLockChannel},
	{id: "H39", name: "AF_VSOCK", check: probeIn(mainSession, "H39")},
	{id: "H40", name: "shared process view", check: checkSharedView},
	{id: "H41", name: "ptrace", check: probeIn(mainSession, "H41")},
	{id: "H43", name: "mount family", check: probeIn(mainSession, "H43")},
	{id: "H44", name: "new user namespace", check: probeIn(mainSession, "H44")},
	{id: "H45", name: "setns", check: probeIn(mainSession, "H45")},
	{id: "H46", name: "bpf", check: probeIn(mainSession, "H46")},
	{id: "H47", name: "io_uring", check: probeIn(mainSession, "H47")},
	{id: "H48", name: "keyrings", check: probeIn(mainSession, "H48")},
	{id: "H50", name: "userfaultfd", check: probeIn(mainSession, "H50")},
	{id: "H51", name: "AF_ALG (Copy Fail)", check: checkCopyFail},
	{id: "H52", name: "page-cache writers", check: checkPageCache},
	{id: "H53", name: "packet and raw sockets", check: probeIn(mainSession, "H53")},
	{id: "H54", name: "netlink and nftables", check: probeIn(mainSession, "H54")},
	{id: "H55", name: "modules", check: checkModules},
	{id: "H56", name: "host control", check: probeIn(mainSession, "H56")},
	{id: "H57", name: "clock", check: probeIn(mainSession, "H57")},
	{id: "H59", name: "other ABI", check: probeIn(mainSession, "H59")},
	{id: "H60", name: "terminal injection", check: probeIn(mainSession, "H60")},
	{id: "H61", name: "handle open", check: probeIn(mainSession, "H61")},
	{id: "H63", name: "setuid and capability files", check: probeIn(mainSession, "H63")},
	{id: "H64", name: "inheritable capabilities", check: probeIn(mainSession, "H64")},
	{id: "H65", name: "core dump", check: checkCoreDump},
	{id: "H66", name: "writable sysctl", check: probeIn(mainSession, "H66")},
	{id: "H67", name: "masked files", check: probeIn(mainSession, "H67")},
	{id: "H68", name: "root preparation race", check: checkPlantedRoot},
	{id: "H70", name: "leaked descriptors", check: checkDescriptors},
	{id: "H72", name: "others' environment", check: probeIn(mainSession, "H72")},
	{id: "H73", name: "process 1 leak", check: checkSecretWords("H73")},
	{id: "H74", name: "mountinfo leak", check: checkSecretWords("H74")},
	{id: "H75", name: "release_agent", check: probeIn(mainSession, "H75")},
	{id: "H76", name: "leave the cgroup", check: checkLeaveCgroup},
	{id: "H77", name: "sysfs writes", check: probeIn(mainSession, "H77")},
	{id: "H78", name: "dangerous devices", check: probeIn(mainSession, "H78")},
	{id: "H79", name: "LSM label", untried: true, check: checkLabel},
	{id: "H84", name: "token replay", check: checkReplay},
	{id: "H85", name: "tool-call flood", untried: true, check: elsewhere("a promise of the governed path: its tests make 1,000 calls at once, of which 25 leave")},
	{id: "H86", name: "symlink artifact", check: checkSavedLinks},
	{id: "H87", name: "trap at a host-written path", check: checkTraps},
	{id: "H89", name: "host removal through links", check: checkRemoval},
	{id: "H91", name: "FIFO artifact", check: checkOddEntries("FIFO")},
	{id: "H92", name: "socket or device artifact", check: checkOddEntries("socket")},
	{id: "H94", name: "name collisions", check: checkNames},
	{id: "H96", name: "mutate during hash", check: checkMutation},
	{id: "H97", name: "xattrs", check: checkXattrs},
	{id: "H98", name: "active content", untried: true, check: elsewhere("a promise of the download gate: tests of the API")},
	{id: "H99", name: "limits on files", untried: true, check: elsewhere("a promise of the API and the store: their tests race uploads at the limit")},
	{id: "H100", name: "no network", check: checkNetwork},
	{id: "H101", name: "host loopback", check: checkLoopback},
	{id: "H102", name: "metadata", check: checkMetadata},
	{id: "H103", name: "IPv6", check: checkIPv6},
	{id: "H104", name: "private ranges", check: checkPrivateRanges},
	{id: "H107", name: "abstract sockets", check: checkAbstract},
	{id: "H108", name: "control sockets", check: probeIn(mainSession, "H108")},
	{id: "H109", name: "neighbour", check: checkNeighbour},
	{id: "H110", name: "spoofing", check: probeIn(mainSession, "H110")},
	{id: "H111", name: "environment secrets", check: checkCanary},
	{id: "H112", name: "mounted secrets", check: probeIn(mainSession, "H112")},
	{id: "H113", name: "cloned state", check: checkClonedState},
	{id: "H114", name: "same layout", untried: true, check: elsewhere("a documented residual: the Pythons of one sandbox are forks, those of two sandboxes are not")},
	{id: "H116", name: "terminal escapes", untried: true, check: elsewhere("a promise of the command line: tests of package terminal")},
	{id: "H117", name: "language tricks", check: probeIn(mainSession, "H117")},
	{id: "H118", name: "Node tricks", check: checkNode},
	{id: "H120", name: "PATH hijack", check: checkPlanted("H120")},
	{id: "H121", name: "LD_PRELOAD", check: checkPlanted("H121")},
	{id: "H123", name: "side channels", untried: true, check: notTried("stated out of scope by the threat model; core scheduling is an option of the driver")},
	{id: "H124", name: "unsafe configuration", untried: true, check: notTried("no setting mounts a socket or a host directory, shares a namespace or adds a capability")},
	{id: "H125", name: "old runtime", check: checkVersions},
	{id: "H126", name: "cgroup memory of a dead parent", check: checkMemoryBomb("H126")},
}

func elsewhere(why string) func(context.Context, *scene) finding {
	return func(context.Context, *scene) finding { return notApplicable("covered elsewhere: %s", why) }
}

func notTried(why string) func(context.Context, *scene) finding {
	return func(context.Context, *scene) finding { return notApplicable("%s", why) }
}

// probeIn is a row whose probe says all there is to say.
func probeIn(name, probe string) func(context.Context, *scene) finding {
	return func(ctx context.Context, s *scene) finding {
		b, err := s.session(ctx, name)
		if err != nil {
			return broke(err)
		}
		return b.judge(ctx, probe, nil)
	}
}

// judge runs a probe and takes its verdict for the finding. The sandbox must
// still answer afterwards.
func (b *session) judge(ctx context.Context, probe string, params any) finding {
	v, _, err := b.probe(ctx, probe, params)
	if err != nil {
		return broke(err)
	}
	switch {
	case v.Untried:
		return notApplicable("%s", v.Why)
	case !v.OK:
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

// judgeAll takes findings one after the other, and stops at the first that does
// not hold.
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
