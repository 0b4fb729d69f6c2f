package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
)

// zygote is a Python that has loaded what programs usually import, and forks
// the interpreters that wait. It has the guest's identity and is in none of the
// groups: nothing of a user runs in it, and no code can reach it. See
// lib/zygote.py for what a fork gives up.
type zygote struct {
	s    *supervisor
	pid  int
	conn packetConn

	ready chan struct{} // closed once it forks, or never will
	ended chan struct{}
	bytes int64 // what it has as a process, and its forks from the beginning; valid once ready

	mu       sync.Mutex
	number   uint64
	waiting  map[uint64]*birth
	children map[uint64]*process // by their number outside of their group
	owes     map[uint64]bool     // forks that were asked for and given up, and not answered
	works    bool                // it has said that it is ready
	gone     bool
}

// birth is a fork that was asked for.
type birth struct {
	process *process
	failed  chan error
}

// What a zygote says: four big-endian uint64, the kind, and what belongs to it.
const (
	zygoteReady  = 1 // -
	zygoteForked = 2 // number of the request, process
	zygoteEnded  = 3 // process, status, most memory in bytes beyond what it had from the zygote
	zygoteFailed = 4 // number of the request, errno
)

const (
	zygoteHome   = runDir + "/zygote" // its HOME and TMPDIR, where no code can write
	preloadList  = "/opt/workbench/preload"
	maxPreload   = 64 << 10 // bytes of the list
	zygoteLoads  = 60 * time.Second
	zygoteForks  = 5 * time.Second // also on a busy machine
	pythonErrors = 1 << 16         // bytes of what it prints that are logged
)

// startZygote starts one for the binding. It is ready later, or ends.
func (s *supervisor) startZygote(b *binding) (*zygote, error) {
	settings, err := zygoteSettings(b, s.watch.own)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(zygoteHome, 0o700); err != nil {
		return nil, err
	}
	if err := copyTree(skelDir, zygoteHome); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	mine, its, err := packetPair()
	if err != nil {
		return nil, err
	}
	defer its.close()
	var inherited []int
	defer func() {
		for _, fd := range inherited {
			_ = unix.Close(fd)
		}
	}()
	z := &zygote{s: s, conn: mine, ready: make(chan struct{}), ended: make(chan struct{}), waiting: map[uint64]*birth{}, owes: map[uint64]bool{}, children: map[uint64]*process{}}
	// Pipes, as a fork's own streams are: what Python notes of them must fit.
	input, inFD, err := pipe(true)
	if err != nil {
		mine.close()
		return nil, err
	}
	inherited = append(inherited, inFD)
	input.Close()
	output, outFD, err := pipe(false)
	if err != nil {
		mine.close()
		return nil, err
	}
	inherited = append(inherited, outFD)
	feed, feedFD, err := pipe(true)
	if err != nil {
		mine.close()
		output.Close()
		return nil, err
	}
	inherited = append(inherited, feedFD)
	prog := interpreter(b, workbench.Python)
	env := append(toStrings(prog.Env), "HOME="+zygoteHome, "TMPDIR="+zygoteHome)
	attr := &syscall.ProcAttr{Dir: "/", Env: withoutRepeats(env), Files: []uintptr{uintptr(inFD), uintptr(outFD), uintptr(outFD), uintptr(its.fd), uintptr(feedFD)}}
	python := string(prog.Argv[0])
	z.pid, err = s.procs.start(python, []string{python, libDir + "/zygote.py"}, attr, func(exitStatus) { close(z.ended) })
	if err != nil {
		mine.close()
		output.Close()
		feed.Close()
		return nil, err
	}
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, io.TeeReader(io.LimitReader(output, pythonErrors), s.log))
		_, _ = io.Copy(io.Discard, output)
		output.Close()
	}()
	go z.follow() // ends with the process
	_ = feed.SetWriteDeadline(time.Now().Add(zygoteForks))
	_, err = feed.Write(settings)
	feed.Close()
	if err != nil {
		z.end()
		return nil, err
	}
	return z, nil
}

// withoutRepeats keeps the last of each variable.
func withoutRepeats(env []string) []string {
	last := map[string]int{}
	for i, e := range env {
		name, _, _ := strings.Cut(e, "=")
		last[name] = i
	}
	kept := env[:0:0]
	for i, e := range env {
		if name, _, _ := strings.Cut(e, "="); last[name] == i {
			kept = append(kept, e)
		}
	}
	return kept
}

// zygoteSettings is what it reads when it starts: counted strings, as a driver's
// control message.
func zygoteSettings(b *binding, own bool) ([]byte, error) {
	code, err := filter()
	if err != nil {
		return nil, err
	}
	var raw []byte
	num := func(n int) { raw = binary.BigEndian.AppendUint32(raw, uint32(n)) }
	str := func(s []byte) {
		num(len(s))
		raw = append(raw, s...)
	}
	modules := imports()
	copiesMuch := 0 // see share_pages: what a program forks of a fork would copy as much again
	if own {
		copiesMuch = 1
	}
	for _, n := range []int{b.limits.OpenFiles, b.nproc, unix.SYS_SECCOMP, userID, groupID, copiesMuch} {
		num(n)
	}
	var rules bytes.Buffer
	if err := binary.Write(&rules, binary.NativeEndian, code); err != nil {
		return nil, err
	}
	str(rules.Bytes())
	num(len(modules))
	for _, m := range modules {
		str([]byte(m))
	}
	env := map[string]string{"HOME": b.env["HOME"], "TMPDIR": b.env["TMPDIR"]}
	num(len(env))
	for k, v := range env {
		str([]byte(k))
		str([]byte(v))
	}
	return raw, nil
}

// imports are the modules that the image wants loaded: one a line.
func imports() []string {
	f, err := os.Open(preloadList)
	if err != nil {
		return nil
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxPreload))
	if err != nil {
		return nil
	}
	var modules []string
	for line := range strings.SplitSeq(string(raw), "\n") {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line != "" && !slices.Contains(modules, line) {
			modules = append(modules, line)
		}
	}
	return modules
}

// follow reads what the zygote says until it ends.
func (z *zygote) follow() {
	for {
		var buf [33]byte
		n, err := unix.Read(z.conn.fd, buf[:])
		if err == unix.EINTR {
			continue
		}
		if n != 32 || err != nil {
			break
		}
		var v [4]uint64
		for i := range v {
			v[i] = binary.BigEndian.Uint64(buf[8*i:])
		}
		z.heard(v[0], v[1], v[2], v[3])
	}
	z.kill()
	<-z.ended
	z.conn.close()
	z.mu.Lock()
	defer z.mu.Unlock()
	z.gone = true
	if !z.works {
		close(z.ready)
	}
	for _, w := range z.waiting {
		w.failed <- errors.New("the zygote has ended")
	}
	for _, p := range z.children {
		// Nobody will hear how it ends.
		p.group.kill()
		go func() {
			<-p.group.ended
			p.exited(groupEvent{Status: uint32(unix.SIGKILL)})
		}()
	}
	z.waiting, z.children = nil, nil
}

func (z *zygote) heard(kind, number, a, b uint64) {
	z.mu.Lock()
	defer z.mu.Unlock()
	switch kind {
	case zygoteReady:
		if !z.works {
			z.works = true
			z.bytes = ofProcess(fmt.Sprint(z.pid))
			close(z.ready)
		}
	case zygoteForked: // one that was given up ends with its group
		delete(z.owes, number)
		if w := z.waiting[number]; w != nil {
			delete(z.waiting, number)
			z.children[a] = w.process
			w.process.outer, w.process.parent = int(a), z.pid
			w.failed <- nil
		}
	case zygoteFailed:
		delete(z.owes, number)
		if w := z.waiting[number]; w != nil {
			delete(z.waiting, number)
			w.failed <- fmt.Errorf("fork: %w", unix.Errno(a))
		}
	case zygoteEnded:
		if p := z.children[number]; p != nil {
			delete(z.children, number)
			p.exited(groupEvent{Status: uint32(a), MaxRSS: int64(b)})
		}
	}
}

// usable reports whether it forks: one that is slow does not until it has
// answered.
func (z *zygote) usable() bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.works && !z.gone && len(z.owes) == 0
}

// forks is how many of its processes there are.
func (z *zygote) forks() int {
	z.mu.Lock()
	defer z.mu.Unlock()
	return len(z.children)
}

// start has an interpreter forked into the group: it waits for its code. Until
// it is admitted it does not count as user code, which it may not run. A group
// into which a fork may still come is ended: nothing of a user may run there.
func (z *zygote) start(g *group, admitted bool) (*process, error) {
	p, its, err := newProcess(g, false)
	defer func() {
		for _, fd := range its {
			_ = unix.Close(fd)
		}
	}()
	if err != nil {
		p.closeAll()
		return nil, err
	}
	p.feeds.Go(p.follow)
	unborn, err := z.fork(p, its)
	if err == nil {
		err = p.awaitNamed(zygoteForks)
	}
	if err == nil && admitted {
		err = p.admit(z.s.spares.b)
	}
	if err != nil {
		if !unborn {
			g.kill()
		}
		_ = p.report.SetReadDeadline(time.Unix(1, 0))
		p.feeds.Wait()
		p.closeAll()
		return nil, err
	}
	return p, nil
}

// fork asks and waits for the answer. unborn says that no process came of it,
// and none will.
func (z *zygote) fork(p *process, its []int) (unborn bool, err error) {
	w := &birth{process: p, failed: make(chan error, 1)}
	z.mu.Lock()
	if z.gone || !z.works || len(z.owes) > 0 {
		z.mu.Unlock()
		return true, errors.New("no zygote")
	}
	z.number++
	number := z.number
	z.waiting[number] = w
	z.mu.Unlock()
	request := binary.BigEndian.AppendUint64(nil, number)
	err = p.group.enterable(func(spaces []int) error {
		rights := unix.UnixRights(append(slices.Clone(spaces), its...)...)
		return os.NewSyscallError("sendmsg", unix.Sendmsg(z.conn.fd, request, rights, nil, unix.MSG_NOSIGNAL))
	})
	if err != nil {
		z.mu.Lock()
		delete(z.waiting, number)
		z.mu.Unlock()
		return true, err
	}
	late := time.NewTimer(zygoteForks)
	defer late.Stop()
	select {
	case err := <-w.failed:
		return errors.As(err, new(unix.Errno)), err
	case <-late.C:
	}
	// Programs may be its forks, which end with it: it is only not asked again.
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.waiting[number] == nil { // answered at the last moment
		err := <-w.failed
		return errors.As(err, new(unix.Errno)), err
	}
	delete(z.waiting, number)
	z.owes[number] = true
	return false, errors.New("the zygote does not answer")
}

// signal sends to it.
func (z *zygote) signal(sig unix.Signal) {
	select {
	case <-z.ended:
	default:
		_ = unix.Kill(z.pid, sig) // not reaped while ended is open
	}
}

// kill ends it; what it forked for a run ends with its group.
func (z *zygote) kill() {
	z.signal(unix.SIGKILL)
}

// end ends it and waits until it is gone.
func (z *zygote) end() {
	z.kill()
	<-z.ended
}
