package guest

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// place is a directory of an exec's or a context's own, with the socket that its
// code calls. One is made ahead of whoever will have it; until it is opened no
// code can reach what is in it, whatever its name.
type place struct {
	dir    string // below execsDir
	socket *brokerSocket
}

func newPlace() (*place, error) {
	var name [12]byte
	if _, err := rand.Read(name[:]); err != nil {
		return nil, err
	}
	dir := filepath.Join(execsDir, hex.EncodeToString(name[:]))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	socket, err := listenIn(dir)
	if err != nil {
		_ = os.Remove(dir)
		return nil, err
	}
	return &place{dir: dir, socket: socket}, nil
}

// open lets code search the directory.
func (p *place) open() error { return os.Chmod(p.dir, 0o711) }

// remove takes it away.
func (p *place) remove(log io.Writer) {
	p.socket.close()
	if err := os.RemoveAll(p.dir); err != nil {
		fmt.Fprintln(log, "guest: remove a directory for code:", err)
	}
}

// takePlace returns an open place that nobody has had, made ahead if one was.
func (p *spares) takePlace() (*place, error) {
	p.mu.Lock()
	pl := p.place
	p.place = nil
	p.mu.Unlock()
	if pl == nil {
		var err error
		if pl, err = newPlace(); err != nil {
			return nil, err
		}
	}
	if err := pl.open(); err != nil {
		pl.remove(p.s.log)
		return nil, err
	}
	return pl, nil
}

// renewPlace makes one ahead if there is none. The caller holds renewing.
func (p *spares) renewPlace() error {
	p.mu.Lock()
	there := p.place != nil
	p.mu.Unlock()
	if there {
		return nil
	}
	pl, err := newPlace()
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.place = pl
	p.mu.Unlock()
	return nil
}
