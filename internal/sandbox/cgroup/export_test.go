package cgroup

// SetKernel replaces what makes and removes groups, for trees of plain files.
func (h *Hierarchy) SetKernel(mkdir, rmdir func(path string) error) { h.mkdir, h.rmdir = mkdir, rmdir }
