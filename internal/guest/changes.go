package guest

import (
	"encoding/binary"
	"errors"
	"maps"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench/internal/guestwire"
)

// changes follows, by inotify, which names of the workspace may have changed.
// It only ever says too much: what it does not know for sure it gives up
// knowing, and the next scan looks at everything.
//
// A file is said to have changed when it was opened, for reading too: a mapping
// keeps its file open and makes no event when it is written, identical events
// in a row come as one, and the end of the last user need not be seen (a
// descriptor can be left in a socket). So an open file is one that may change
// until no code lives. Writing needs no event of its own then; truncating a
// file by its name does.
//
// A file can be written through a name that it gets and loses again, and then
// only that name is heard of. So files are watched as well: one that gets a name
// has its attributes changed.
type changes struct {
	mu    sync.Mutex
	fd    int                          // -1: nothing is followed
	dirs  map[int32]string             // watched directories: "" or a path with "/" at its end
	files map[int32]uint64             // watched files: their inodes
	known map[uint64]bool              // the same inodes
	blind bool                         // some files are not watched
	names map[guestwire.Path]happening // what may have changed since the last settled scan
	inner map[uint64]bool              // files whose attributes have, under whatever name
	buf   []byte
	held  bool // a scan looks, and makes events of its own
}

// happening is what may have happened to a name.
type happening uint8

const (
	touched  happening = 1 << iota
	appeared           // something has a name that it did not have before
	passed             // and something that had it has it no more
)

const (
	watchMask = unix.IN_OPEN | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW
	maxWatched = 1 << 13 // directories, and as many files
	maxChanged = 1 << 14 // names; beyond, looking at everything costs no more than what the code did
	// maxDrained bounds the bytes of events taken at once: code can make them
	// faster than they are read.
	maxDrained = 8 << 20
)

func newChanges() *changes { return &changes{fd: -1} }

// follow begins anew, with no directory watched.
func (c *changes) follow() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return
	}
	c.fd, c.dirs, c.files, c.known, c.blind = fd, map[int32]string{}, map[int32]uint64{}, map[uint64]bool{}, false
	c.names, c.inner = map[guestwire.Path]happening{}, map[uint64]bool{}
	if c.buf == nil {
		c.buf = make([]byte, 64<<10)
	}
}

// giveUp stops following, until follow.
func (c *changes) giveUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget()
}

func (c *changes) forget() {
	if c.fd >= 0 {
		_ = unix.Close(c.fd)
	}
	c.fd, c.dirs, c.files, c.known, c.names, c.inner = -1, nil, nil, nil, nil, nil
}

// watch follows what happens in a directory, "" for the workspace itself. No
// code may run: what happened there before is not known.
func (c *changes) watch(dir string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		return
	}
	path, prefix := workspaceDir, ""
	if dir != "" {
		path, prefix = workspaceDir+"/"+dir, dir+"/"
	}
	wd, err := unix.InotifyAddWatch(c.fd, path, watchMask)
	if err != nil || len(c.dirs) >= maxWatched {
		c.forget()
		return
	}
	c.dirs[int32(wd)] = prefix
}

// watchFile follows whether a file gets further names. No code may run. A file
// that code's identity may not read cannot be watched.
func (c *changes) watchFile(p guestwire.Path, inode uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 || c.known[inode] {
		return
	}
	if len(c.files) >= maxWatched {
		c.blind = true
		return
	}
	wd, err := unix.InotifyAddWatch(c.fd, workspaceDir+"/"+string(p), unix.IN_ATTRIB|unix.IN_DONT_FOLLOW)
	if err != nil {
		c.blind = true
		return
	}
	c.files[int32(wd)], c.known[inode] = inode, true
}

// sees reports whether every known file is watched.
func (c *changes) sees() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.blind
}

// drain takes up what has happened so far, so that it does not pile up in the
// kernel while code runs.
func (c *changes) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.held {
		c.read(c.note)
	}
}

// none reports whether nothing has happened since the last scan, for certain.
func (c *changes) none() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held {
		return false
	}
	c.read(c.note)
	return c.fd >= 0 && len(c.names) == 0 && len(c.inner) == 0
}

// happened gives the names that may have changed since settle, or ok false when
// others may have, too; of gives the names of a file that had some then. A scan
// that looks at them calls settle or release when it is done, before code goes
// on.
func (c *changes) happened(of func(inode uint64) []guestwire.Path) (names map[guestwire.Path]happening, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read(c.note)
	c.held = true
	names = maps.Clone(c.names)
	for inode := range c.inner {
		for _, p := range of(inode) {
			names[p] |= touched
		}
	}
	return names, c.fd >= 0
}

// settle forgets what has happened: a scan has seen it. Files that were opened
// since known was called, and modes that changed, are the scan's own doing.
func (c *changes) settle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd >= 0 {
		c.names, c.inner = map[guestwire.Path]happening{}, map[uint64]bool{}
	}
	c.read(func(wd int32, mask uint32, name string) bool {
		if mask&(unix.IN_OPEN|unix.IN_ATTRIB|unix.IN_Q_OVERFLOW) != 0 {
			return true
		}
		return c.note(wd, mask, name)
	})
	c.held = false
}

// release ends a scan that did not come to its end.
func (c *changes) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = false
}

// read passes on every event there is. It gives up when there is no end of
// them or f returns false.
func (c *changes) read(f func(wd int32, mask uint32, name string) bool) {
	for taken := 0; c.fd >= 0; {
		n, err := unix.Read(c.fd, c.buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EAGAIN) {
			return
		}
		if taken += n; err != nil || n <= 0 || taken > maxDrained || !events(c.buf[:n], f) {
			c.forget()
			return
		}
	}
}

// events parses what the kernel wrote: struct inotify_event, each with its name
// padded by NULs.
func events(b []byte, f func(wd int32, mask uint32, name string) bool) bool {
	for len(b) > 0 {
		if len(b) < unix.SizeofInotifyEvent {
			return false
		}
		wd, mask := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
		if end > len(b) {
			return false
		}
		name, _, _ := strings.Cut(string(b[unix.SizeofInotifyEvent:end]), "\x00")
		if !f(wd, mask, name) {
			return false
		}
		b = b[end:]
	}
	return true
}

// note remembers one event. It returns false when names are not enough to say
// what has changed.
func (c *changes) note(wd int32, mask uint32, name string) bool {
	const moved = unix.IN_MOVED_FROM | unix.IN_MOVED_TO
	isDir := mask&unix.IN_ISDIR != 0
	switch {
	case mask&(unix.IN_Q_OVERFLOW|unix.IN_UNMOUNT) != 0, isDir && mask&moved != 0:
		return false // a moved directory takes watches and open files along
	case mask&unix.IN_IGNORED != 0:
		delete(c.known, c.files[wd])
		delete(c.files, wd)
		delete(c.dirs, wd)
		return true
	case c.files[wd] != 0:
		c.inner[c.files[wd]] = true
		return len(c.inner) <= maxChanged
	case name == "", isDir && mask&unix.IN_OPEN != 0:
		return true // a directory's own changes come by its name, too
	}
	prefix, ok := c.dirs[wd]
	if !ok {
		return false
	}
	p := guestwire.Path(prefix + name)
	h := touched
	if mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0 {
		h |= appeared
	}
	if mask&(unix.IN_CREATE|unix.IN_DELETE|moved) != 0 && c.names[p]&appeared != 0 {
		h |= passed
	}
	c.names[p] |= h
	return len(c.names) <= maxChanged
}
