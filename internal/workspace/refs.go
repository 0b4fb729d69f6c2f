package workspace

import (
	"context"
	"slices"
)

// Refs are the blobs that a stored tree needs: its manifests and the objects
// that its contents lie in, each once. Codes: those of Load.
func (s *Store) Refs(ctx context.Context, tenantID string, t Tree) ([]string, error) {
	seen := map[string]bool{}
	for id := t.made.id; id != "" && id != EmptyManifest; {
		if seen[id] {
			return nil, damaged("its manifests do not end")
		}
		seen[id] = true
		m, err := s.readManifest(ctx, tenantID, id)
		if err != nil {
			return nil, err
		}
		id = m.base
	}
	t.root.walk("", func(_ string, it *item) bool {
		if it.kind == File && it.at != nil {
			seen[it.at.id] = true
		}
		return true
	})
	refs := make([]string, 0, len(seen))
	for id := range seen {
		refs = append(refs, id)
	}
	slices.Sort(refs)
	return refs, nil
}
