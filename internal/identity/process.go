package identity

import (
	"context"
	"crypto/sha256"
	"sync"

	"github.com/workbenchdev/workbench"
)

// processKeys are the keys of the process that embeds the server. They live as
// long as it does and are in no database: nobody else could use them, and a
// list of them would be a list of commands that were run.
type processKeys struct {
	mu   sync.Mutex
	keys map[[sha256.Size]byte]workbench.Key
}

// maxProcessKeys bounds them; a process makes one or two.
const maxProcessKeys = 16

// localName is the user, and the tenant, that a process acts as when it embeds
// the server.
const localName = "local"

// LocalKey makes a key for the user "local" of the tenant "local", for the
// process that embeds the server. It ends with the process.
func (s *Service) LocalKey(ctx context.Context) (string, error) {
	return s.processKey(ctx, KeyRequest{Kind: workbench.KeyDirect, Name: "embedded process", Tenant: localName, User: localName})
}

// LocalAdminKey makes an admin key for the process that embeds the server:
// whoever may open the data directory may manage its keys. It ends with the
// process.
func (s *Service) LocalAdminKey(ctx context.Context) (string, error) {
	return s.processKey(ctx, KeyRequest{Kind: workbench.KeyAdmin, Name: "embedded process"})
}

func (s *Service) processKey(ctx context.Context, r KeyRequest) (string, error) {
	key, secret, err := s.newKey(ctx, workbench.SystemPrincipal(), r)
	if err != nil {
		return "", err
	}
	s.process.mu.Lock()
	defer s.process.mu.Unlock()
	if len(s.process.keys) >= maxProcessKeys {
		return "", workbench.E(workbench.CodeRateLimited, "this process has %d keys of its own already", maxProcessKeys).WithHint("use one of them")
	}
	if s.process.keys == nil {
		s.process.keys = map[[sha256.Size]byte]workbench.Key{}
	}
	s.process.keys[[sha256.Size]byte(key.SecretHash)] = key
	return secret, nil
}

func (p *processKeys) byHash(sum [sha256.Size]byte) (workbench.Key, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key, ok := p.keys[sum]
	return key, ok
}
