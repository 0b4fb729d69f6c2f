package workspace

import "github.com/workbenchdev/workbench"

// List gives what is in one directory of the tree, "" for its root, in order of
// the names' bytes. Links are not followed. Codes: not_found, path_invalid (no
// path, or no directory).
func (t Tree) List(dir string) ([]Entry, error) {
	n, prefix := t.root, ""
	if dir != "" {
		if err := CheckPath(dir); err != nil {
			return nil, err
		}
		it := t.root.lookup(dir)
		if it == nil {
			return nil, workbench.ErrNotFound("directory").WithHint("list the directory above it, or leave the path out for the whole workspace's")
		}
		if it.kind != Dir {
			return nil, workbench.E(workbench.CodePathInvalid, "the path is a %s, not a directory", it.kind)
		}
		n, prefix = it.dir, dir+"/"
	}
	entries := make([]Entry, 0, n.count())
	for _, it := range n.items() {
		entries = append(entries, it.entry(prefix+it.name))
	}
	return entries, nil
}
