package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/outdir"
)

// savedFile is one file of a run, for the summary.
type savedFile struct {
	path   string
	bytes  int64
	origin string // why it is there: save, keep, overflow, added, modified
	id     string // of the retained file, "" for one that is only in the commit
	at     string // where it was written on this host; "" if it was not
	why    string // why it was not written
}

func (s savedFile) line() string {
	line := fmt.Sprintf("%-8s  %s  %s", s.origin, s.path, size(s.bytes))
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

// collect writes what the run kept and changed below out; with an empty out it
// only lists what was kept. A kept file wins over a changed one at the same
// path, a later kept one over an earlier. A file that cannot be written is
// reported and does not stop the others.
func (a *app) collect(ctx context.Context, client *client, r workbench.Receipt, out string) ([]savedFile, error) {
	var all []savedFile
	if out == "" {
		for _, f := range r.Artifacts {
			all = append(all, savedFile{path: f.Path, bytes: f.Size, origin: string(f.Origin), id: f.ID})
		}
		return all, nil
	}
	dir, err := outdir.Open(out)
	if err != nil {
		return nil, workbench.E(workbench.CodeInvalidRequest, "the directory for the results cannot be used: %s", out).WithField("out").Caused(err)
	}
	c := collector{ctx: ctx, client: client, dir: dir, taken: map[string]bool{}}
	err = errors.Join(c.artifacts(r.Artifacts), c.changes(r), dir.Close())
	return c.saved, err
}

type collector struct {
	ctx    context.Context
	client *client
	dir    *outdir.Dir
	taken  map[string]bool
	saved  []savedFile
}

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
			if f.Change == workbench.ChangeRemoved || f.Type != "file" || c.taken[f.Path] {
				continue
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
	default:
		s.at = filepath.Join(c.dir.Name(), filepath.FromSlash(s.path))
	}
	c.saved = append(c.saved, s)
	return nil
}
