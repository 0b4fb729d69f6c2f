package server

import (
	"context"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/identity"
)

// localAdminTTL bounds a key whose process was killed before it could revoke
// it.
const localAdminTTL = 10 * time.Minute

// LocalAdminKey makes an admin key for the process that embeds the server:
// whoever may open the data directory may manage its keys. revoke ends it.
func (s *Server) LocalAdminKey(ctx context.Context) (secret string, revoke func(context.Context) error, err error) {
	until := time.Now().Add(localAdminTTL)
	key, secret, err := s.identity.CreateKey(ctx, workbench.SystemPrincipal(), identity.KeyRequest{
		Kind: workbench.KeyAdmin, Name: "local command line", ExpiresAt: &until,
	})
	if err != nil {
		return "", nil, err
	}
	return secret, func(ctx context.Context) error {
		_, err := s.identity.RevokeKey(ctx, workbench.SystemPrincipal(), key.ID, true)
		return err
	}, nil
}

// ProcessAdminKey makes an admin key for the process that embeds the server.
// It is in no database and ends with the process.
func (s *Server) ProcessAdminKey(ctx context.Context) (string, error) {
	return s.identity.LocalAdminKey(ctx)
}
