package guest

import (
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The filter over user code answers each system call of the native ABI by its
// number: allowed, refused, or checked by its arguments; everything it does not
// know does not exist (ENOSYS, so that libraries fall back). It is a search
// tree over ranges of numbers, because under gVisor a filter is interpreted.

// Offsets into struct seccomp_data.
const (
	dataNumber = 0
	dataArch   = 4
	dataArgs   = 16 // 8 bytes each, low word first
)

const (
	retAllow = unix.SECCOMP_RET_ALLOW
	retEPERM = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
)

func retErrno(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }

type bpfCode = []unix.SockFilter

func stmt(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }

func ret(v uint32) bpfCode { return bpfCode{stmt(unix.BPF_RET|unix.BPF_K, v)} }

// arg loads the low word of an argument; the kernel looks at no more of those
// that are checked.
func arg(n uint32) unix.SockFilter {
	return stmt(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, dataArgs+8*n)
}

// branch jumps to yes when the comparison holds, else to no. Both may be long.
func branch(op uint16, k uint32, yes, no bpfCode) bpfCode {
	code := bpfCode{
		{Code: unix.BPF_JMP | op | unix.BPF_K, Jt: 0, Jf: 1, K: k},
		stmt(unix.BPF_JMP|unix.BPF_JA, uint32(len(no))),
	}
	return append(append(code, no...), yes...)
}

func equal(k uint32, yes, no bpfCode) bpfCode { return branch(unix.BPF_JEQ, k, yes, no) }

// anyBit checks an argument for bits that are refused.
func anyBit(n, mask uint32) bpfCode {
	return append(bpfCode{arg(n)}, branch(unix.BPF_JSET, mask, ret(retEPERM), ret(retAllow))...)
}

// oneOf allows the listed values of an argument.
func oneOf(n uint32, otherwise uint32, values ...uint32) bpfCode {
	code := ret(otherwise)
	for _, v := range values {
		code = equal(v, ret(retAllow), code)
	}
	return append(bpfCode{arg(n)}, code...)
}

const fSetSig = 10 // F_SETSIG: the signal for a descriptor that is ready

// notChosen refuses an operation that chooses a signal which the kernel sends
// later, if the signal is one of those listed: what stands still between two
// cells, or while the workspace is read, would have itself woken.
func notChosen(opArg, op, signalArg uint32, signals ...unix.Signal) bpfCode {
	code := ret(retAllow)
	for _, s := range signals {
		code = equal(uint32(s), ret(retEPERM), code)
	}
	return append(bpfCode{arg(opArg)}, equal(op, append(bpfCode{arg(signalArg)}, code...), ret(retAllow))...)
}

const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
	unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP

// checked are the system calls that depend on their arguments.
func checked() map[uintptr]bpfCode {
	// No raw or packet sockets; netlink only for reading routes, which
	// resolvers and interface lists do.
	kinds := append(bpfCode{arg(1), stmt(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, 0xf)},
		equal(unix.SOCK_STREAM, ret(retAllow), equal(unix.SOCK_DGRAM, ret(retAllow), equal(unix.SOCK_SEQPACKET, ret(retAllow), ret(retEPERM))))...)
	netlink := append(bpfCode{arg(2)}, equal(unix.NETLINK_ROUTE, ret(retAllow), ret(retErrno(unix.EPROTONOSUPPORT)))...)
	socket := append(bpfCode{arg(0)},
		equal(unix.AF_UNIX, kinds, equal(unix.AF_INET, kinds, equal(unix.AF_INET6, kinds, equal(unix.AF_NETLINK, netlink,
			ret(retErrno(unix.EAFNOSUPPORT))))))...)
	const tiocLinux = 0x541c
	// Nothing may have the kernel send SIGCONT: see notChosen. A descriptor that is
	// ready would also end a process that stands still, and whom that leaves alone
	// in its process group, the kernel continues.
	//
	// A child is its parent's: whoever is not the program's own could not be told
	// from what is nobody's.
	spaces := anyBit(0, newNamespaces|unix.CLONE_PARENT)
	// Who waits as in vfork takes no signal. That it is for a child which has
	// stopped can be seen only where the child is its own: see sweep.
	vfork := append(bpfCode{arg(0)}, branch(unix.BPF_JSET, unix.CLONE_VFORK, anyBit(0, unix.CLONE_PARENT|unix.CLONE_THREAD|newNamespaces), spaces)...)
	clone := append(bpfCode{arg(0), stmt(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, 0xff)}, // the signal at the child's end
		equal(uint32(unix.SIGCONT), ret(retEPERM), vfork)...)
	return map[uintptr]bpfCode{
		unix.SYS_CLONE:   clone,
		unix.SYS_UNSHARE: anyBit(0, newNamespaces|unix.CLONE_NEWTIME),
		unix.SYS_SOCKET:  socket,
		unix.SYS_IOCTL: append(bpfCode{arg(1)}, equal(unix.TIOCSTI, ret(retEPERM), equal(tiocLinux, ret(retEPERM),
			equal(unix.TIOCSETD, ret(retEPERM), ret(retAllow))))...),
		unix.SYS_FCNTL: notChosen(1, fSetSig, 2, unix.SIGCONT, unix.SIGKILL),
		unix.SYS_PRCTL: notChosen(0, unix.PR_SET_PDEATHSIG, 1, unix.SIGCONT),
		// Nor does it take one while a listener, which can be anybody's, has its call.
		unix.SYS_SECCOMP:     anyBit(1, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER),
		unix.SYS_PERSONALITY: oneOf(0, retEPERM, 0, 0x0008, 0x20000, 0x40000, 0x20008, 0xffffffff),
	}
}

// filter builds the program.
func filter() (bpfCode, error) {
	actions := map[uintptr]bpfCode{}
	for _, nr := range refusedCalls {
		actions[nr] = ret(retEPERM)
	}
	for _, nr := range append(allowedCalls, archAllowedCalls...) {
		actions[nr] = ret(retAllow)
	}
	for nr, code := range checked() {
		actions[nr] = code
	}
	numbers := make([]uintptr, 0, len(actions))
	for nr := range actions {
		numbers = append(numbers, nr)
	}
	slices.Sort(numbers)

	missing := ret(retErrno(unix.ENOSYS))
	ranges := []span{{0, missing}}
	add := func(from uint32, code bpfCode) {
		if last := &ranges[len(ranges)-1]; last.from == from {
			last.code = code
		} else {
			ranges = append(ranges, span{from, code})
		}
	}
	for i, nr := range numbers {
		if i == 0 || numbers[i-1] != nr-1 || !same(actions[nr], actions[numbers[i-1]]) {
			add(uint32(nr), actions[nr])
		}
		if i == len(numbers)-1 || numbers[i+1] != nr+1 {
			add(uint32(nr)+1, missing)
		}
	}
	native := append(bpfCode{stmt(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, dataNumber)}, searchTree(ranges)...)
	code := append(bpfCode{stmt(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, dataArch)},
		equal(auditArch, native, ret(unix.SECCOMP_RET_KILL_PROCESS))...)
	if len(code) > 4096 {
		return nil, fmt.Errorf("filter of %d instructions", len(code))
	}
	return code, nil
}

// span is a run of numbers from one on, up to the next span.
type span struct {
	from uint32
	code bpfCode
}

// same reports whether two actions are one plain answer.
func same(a, b bpfCode) bool { return len(a) == 1 && len(b) == 1 && a[0] == b[0] }

func searchTree(s []span) bpfCode {
	if len(s) == 1 {
		return s[0].code
	}
	m := len(s) / 2
	return branch(unix.BPF_JGE, s[m].from, searchTree(s[m:]), searchTree(s[:m]))
}

// installFilter puts every thread of the process under the filter, for good.
func installFilter() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	code, err := filter()
	if err != nil {
		return err
	}
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	r, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if e != 0 {
		return fmt.Errorf("install the system call filter: %w", e)
	}
	if r != 0 {
		return fmt.Errorf("install the system call filter: thread %d does not follow", r)
	}
	return nil
}
