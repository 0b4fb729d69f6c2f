package powercut

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// SQLite reaches files through a VFS: a table of functions. Ours is a copy of
// the usual one with another xDelete, whose files have another xSync.

// watcher is told what becomes durable. sync is called in place of each fsync
// of a database's file, and does it by calling real, which syncs the directory
// too if so said. removed is called after a file was removed and its directory
// synced.
type watcher interface {
	sync(path string, directory bool, real func() error) error
	removed(path string)
}

type openFile struct {
	path    string
	watcher watcher
	// created: the first fsync of a journal or log syncs its directory too
	// (os_unix.c, UNIXFILE_DIRSYNC).
	created bool
	methods *sqlite3.Tsqlite3_io_methods // the usual ones
}

var (
	vfsMu   sync.Mutex
	vfsOf   = map[uintptr]watcher{}  // VFS → who is asked
	files   = map[uintptr]openFile{} // sqlite3_file → what it is
	patched = map[uintptr]uintptr{}  // usual methods → ours
	vfsID   atomic.Int64
)

// registerVFS makes a VFS and returns its name. SQLite keeps it for as long as
// the process lives.
func registerVFS(w watcher) (string, error) {
	tls := libc.NewTLS()
	defer tls.Close()
	usual := sqlite3.Xsqlite3_vfs_find(tls, 0)
	if usual == 0 {
		return "", errors.New("SQLite has no VFS")
	}
	name := fmt.Sprintf("powercut%d", vfsID.Add(1))
	cname, err := libc.CString(name)
	if err != nil {
		return "", err
	}
	ours := libc.Xmalloc(tls, libc.Tsize_t(unsafe.Sizeof(sqlite3.Tsqlite3_vfs{})))
	if ours == 0 {
		return "", errors.New("out of memory")
	}
	vfs := at[sqlite3.Tsqlite3_vfs](ours)
	*vfs = *at[sqlite3.Tsqlite3_vfs](usual)
	vfs.FpNext, vfs.FzName = 0, cname
	vfs.FxOpen, vfs.FxDelete = address(open), address(remove)
	vfsMu.Lock()
	vfsOf[ours] = w
	vfsMu.Unlock()
	if rc := sqlite3.Xsqlite3_vfs_register(tls, ours, 0); rc != sqlite3.SQLITE_OK {
		return "", fmt.Errorf("SQLite does not take the VFS: %d", rc)
	}
	return name, nil
}

type (
	openFunc   = func(tls *libc.TLS, vfs, name, file uintptr, flags int32, outFlags uintptr) int32
	removeFunc = func(tls *libc.TLS, vfs, name uintptr, syncDirectory int32) int32
	syncFunc   = func(tls *libc.TLS, file uintptr, flags int32) int32
	closeFunc  = func(tls *libc.TLS, file uintptr) int32
)

func open(tls *libc.TLS, vfs, name, file uintptr, flags int32, outFlags uintptr) int32 {
	usual := at[sqlite3.Tsqlite3_vfs](sqlite3.Xsqlite3_vfs_find(tls, 0))
	rc := function[openFunc](usual.FxOpen)(tls, vfs, name, file, flags, outFlags)
	methods := &at[sqlite3.Tsqlite3_file](file).FpMethods
	if rc != sqlite3.SQLITE_OK || *methods == 0 || name == 0 {
		return rc
	}
	vfsMu.Lock()
	defer vfsMu.Unlock()
	journal := flags&(sqlite3.SQLITE_OPEN_MAIN_JOURNAL|sqlite3.SQLITE_OPEN_WAL) != 0
	files[file] = openFile{path: libc.GoString(name), watcher: vfsOf[vfs], created: journal && flags&sqlite3.SQLITE_OPEN_CREATE != 0, methods: at[sqlite3.Tsqlite3_io_methods](*methods)}
	ours, ok := patched[*methods]
	if !ok {
		ours = libc.Xmalloc(tls, libc.Tsize_t(unsafe.Sizeof(sqlite3.Tsqlite3_io_methods{})))
		if ours == 0 {
			return sqlite3.SQLITE_NOMEM
		}
		*at[sqlite3.Tsqlite3_io_methods](ours) = *at[sqlite3.Tsqlite3_io_methods](*methods)
		at[sqlite3.Tsqlite3_io_methods](ours).FxSync = address(syncFile)
		at[sqlite3.Tsqlite3_io_methods](ours).FxClose = address(closeFile)
		patched[*methods] = ours
	}
	*methods = ours
	return rc
}

func remove(tls *libc.TLS, vfs, name uintptr, syncDirectory int32) int32 {
	usual := at[sqlite3.Tsqlite3_vfs](sqlite3.Xsqlite3_vfs_find(tls, 0))
	rc := function[removeFunc](usual.FxDelete)(tls, vfs, name, syncDirectory)
	if rc == sqlite3.SQLITE_OK && syncDirectory != 0 {
		vfsMu.Lock()
		w := vfsOf[vfs]
		vfsMu.Unlock()
		w.removed(libc.GoString(name))
	}
	return rc
}

func syncFile(tls *libc.TLS, file uintptr, flags int32) int32 {
	vfsMu.Lock()
	f := files[file]
	later := f
	later.created = false
	files[file] = later
	vfsMu.Unlock()
	rc := int32(sqlite3.SQLITE_OK)
	err := f.watcher.sync(f.path, f.created, func() error {
		if rc = function[syncFunc](f.methods.FxSync)(tls, file, flags); rc != sqlite3.SQLITE_OK {
			return fmt.Errorf("SQLite's fsync: %d", rc)
		}
		return nil
	})
	if err != nil && rc == sqlite3.SQLITE_OK {
		rc = sqlite3.SQLITE_IOERR_FSYNC
	}
	return rc
}

func closeFile(tls *libc.TLS, file uintptr) int32 {
	vfsMu.Lock()
	f := files[file]
	delete(files, file)
	vfsMu.Unlock()
	return function[closeFunc](f.methods.FxClose)(tls, file)
}

// at is what lies at an address of SQLite's own memory, which Go's collector
// neither moves nor frees.
func at[T any](address uintptr) *T { return (*T)(*(*unsafe.Pointer)(unsafe.Pointer(&address))) }

// address is how SQLite's translated code holds a function, function its
// inverse.
func address(f any) uintptr { return (*[2]uintptr)(unsafe.Pointer(&f))[1] }

func function[F any](address uintptr) F {
	return *(*F)(unsafe.Pointer(&address))
}
