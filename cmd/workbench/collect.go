package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/outdir"
)

// savedFile is one file of a run, for the summary.
type savedFile struct {
	path   string
	bytes  int64  // -1: nothing that has a size
	origin string // why it is there: save, keep, overflow, added, modified
	id     string // of the retained file, "" for one that is only in the commit
	at     string // where it was written on this host; "" if it was not
	why    string // why it was not written
}

func (s savedFile) line() string {
	line := fmt.Sprintf("%-8s  %s", s.origin, s.path)
	if s.bytes >= 0 {
		line += "  " + size(s.bytes)
	}
	switch {
	case s.why != "":
		line += "  not written: " + s.why
	case s.at != "":
		line += "  → " + s.at
	case s.id != "":
		line += "  retained as " + s.id
	}
	return line
}

// openOut opens the directory for a run's results; none for "". It is opened
// before anything runs: results that have no place would be lost.
func openOut(name string) (*outdir.Dir, error) {
	if name == "" {
		return nil, nil
	}
	dir, err := outdir.Open(name)
	if err != nil {
		return nil, workbench.E(workbench.CodeInvalidRequest, "the directory for the results cannot be used: %s", name).WithField("out").
			WithHint("name a directory, or one that can be made; nothing was done").Caused(err)
	}
	return dir, nil
}

// collect writes what the run kept and changed into dir; without one it only
// lists what was kept. A kept file wins over a changed one at the same path, a
// later kept one over an earlier. Links are not written: where they lead is the
// program's choice. What cannot be written is reported and does not stop the
// rest.
func (a *app) collect(ctx context.Context, client *client, r workbench.Receipt, dir *outdir.Dir) ([]savedFile, error) {
	var all []savedFile
	if dir == nil {
		for _, f := range r.Artifacts {
			all = append(all, savedFile{path: f.Path, bytes: f.Size, origin: string(f.Origin), id: f.ID})
		}
		return all, nil
	}
	c := collector{ctx: ctx, client: client, dir: dir, taken: map[string]bool{}}
	err := errors.Join(c.artifacts(r.Artifacts), c.results(r), c.changes(r))
	if c.links > maxLinksShown {
		c.saved = append(c.saved, savedFile{origin: "…", path: "further links", bytes: -1, why: fmt.Sprintf("%d in all", c.links)})
	}
	return c.saved, err
}

type collector struct {
	ctx    context.Context
	client *client
	dir    *outdir.Dir
	taken  map[string]bool
	saved  []savedFile
	links  int // that the run made and are not written
}

// maxLinksShown bounds the links that are named one by one.
const maxLinksShown = 10

func (c *collector) artifacts(all []workbench.Artifact) error {
	for _, f := range all {
		err := c.write(savedFile{path: f.Path, bytes: f.Size, origin: string(f.Origin), id: f.ID}, func(w io.Writer) error {
			_, err := c.client.DownloadSessionArtifact(c.ctx, f.ID, w)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// results writes what the run showed beside text; forms that are retained files
// are there already.
func (c *collector) results(r workbench.Receipt) error {
	for _, shown := range r.Results {
		for _, t := range slices.Sorted(maps.Keys(shown.Data)) {
			ending, ok := resultEndings[t]
			if !ok {
				continue
			}
			name := fmt.Sprintf("results/%s.%d%s", r.ID, shown.Index, ending)
			err := c.write(savedFile{path: name, bytes: formBytes(t, shown.Data[t]), origin: "result"}, func(w io.Writer) error {
				_, err := c.client.DownloadResult(c.ctx, r.ID, shown.Index, t, w)
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *collector) changes(r workbench.Receipt) error {
	if r.Files.Total == 0 {
		return nil
	}
	page := workbench.Page{Limit: workbench.MaxPageLimit}
	for {
		list, err := c.client.RunFiles(c.ctx, r.ID, page)
		if err != nil {
			return err
		}
		for _, f := range list.Items {
			if f.Change == workbench.ChangeRemoved || c.taken[f.Path] {
				continue
			}
			if f.Type == "symlink" {
				c.link(f)
			}
			if f.Type != "file" {
				continue // directories are made as files need them
			}
			err := c.write(savedFile{path: f.Path, bytes: f.Size, origin: string(f.Change)}, func(w io.Writer) error {
				_, err := c.client.DownloadRunFile(c.ctx, r.ID, f.Path, w)
				return err
			})
			if err != nil {
				return err
			}
		}
		if list.NextCursor == "" {
			return nil
		}
		page.Cursor = list.NextCursor
	}
}

// link notes a symbolic link, which is not written.
func (c *collector) link(f workbench.ChangedFile) {
	if c.links++; c.links <= maxLinksShown {
		c.saved = append(c.saved, savedFile{path: f.Path, bytes: -1, origin: string(f.Change), why: "a symbolic link"})
	}
}

// write puts one file in its place. Only a lost server stops the rest.
func (c *collector) write(s savedFile, fill func(io.Writer) error) error {
	c.taken[s.path] = true
	err := c.dir.Write(s.path, fill)
	switch {
	case workbench.HasCode(err, workbench.CodeUnavailable) || workbench.HasCode(err, workbench.CodeUnauthenticated):
		return err
	case err != nil:
		s.why = workbench.AsError(err).Detail
		if workbench.HasCode(err, workbench.CodeInternal) {
			s.why = err.Error() // this host's own error
		}
		if strings.ContainsRune(s.path, utf8.RuneError) && workbench.HasCode(err, workbench.CodeNotFound) {
			s.why = "its name is not UTF-8; let the program rename it or pack it into an archive"
		}
	default:
		s.at = filepath.Join(c.dir.Name(), filepath.FromSlash(s.path))
	}
	c.saved = append(c.saved, s)
	return nil
}
