package workspace

import (
	"context"
	"slices"

	"github.com/workbenchdev/workbench"
)

// Refs lists, in order and each once, every blob that the tree needs: its
// manifests, packs and chunks. Who refers to them all in one transaction
// (store.DB.PutBlobRefs, or the refs of a commit) keeps the tree whatever
// becomes of the session that made it. Code: internal (the tree is not stored).
func (s *Store) Refs(_ context.Context, _ string, t Tree) ([]string, error) {
	refs := []string{}
	if t.root == nil && t.made.id == "" {
		return refs, nil
	}
	if t.made.id == "" {
		return nil, workbench.E(workbench.CodeInternal, "a tree that was never stored has no blobs")
	}
	for m := &t.made; m != nil; m = m.base {
		if m.id != EmptyManifest {
			refs = append(refs, m.id)
		}
	}
	seen := map[*object]bool{}
	t.root.walk("", func(_ string, it *item) bool {
		if it.kind != File {
			return true
		}
		for _, p := range it.stored() {
			if p.at != nil && !seen[p.at] {
				seen[p.at] = true
				refs = append(refs, p.at.id)
			}
		}
		return true
	})
	slices.Sort(refs)
	return slices.Compact(refs), nil
}
