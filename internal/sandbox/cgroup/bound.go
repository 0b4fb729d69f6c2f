package cgroup

import "path/filepath"

// Bound holds all groups of the instance together to limits, besides those of
// each. They end with the instance's own groups (Remove).
func (h *Hierarchy) Bound(l Limits) error {
	if h.mode == ModeV2 {
		root := h.trees[0].dir
		parent := filepath.Join(root, h.parent)
		if err := h.delegate(root); err != nil {
			return err
		}
		if err := h.ensure(parent); err != nil {
			return err
		}
		return apply(parent, settingsV2(l))
	}
	for _, c := range settingsV1(l) {
		t, ok := h.treeOf(c.controller)
		if !ok || len(c.values) == 0 {
			continue
		}
		parent := filepath.Join(t.dir, h.parent)
		if err := h.ensure(parent); err != nil {
			return err
		}
		if err := apply(parent, c.values); err != nil {
			return err
		}
	}
	return nil
}
