package engine

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/image"
	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/sandbox/pool"
	"github.com/workbenchdev/workbench/internal/workspace"
)

// fitSizes marks the sizes this host cannot hold.
func fitSizes(sizes []workbench.Size, info sandbox.Info) []workbench.Size {
	var mem unix.Sysinfo_t
	total := int64(0)
	if unix.Sysinfo(&mem) == nil {
		total = int64(mem.Totalram) * int64(mem.Unit)
	}
	cpus := float64(runtime.NumCPU())
	out := make([]workbench.Size, len(sizes))
	for i, s := range sizes {
		s.Driver, s.Isolation = info.Driver, string(info.Strength)
		l := s.Limits
		need := l.MemoryBytes + l.WorkspaceBytes + l.ScratchBytes
		switch {
		case l.CPUs > cpus:
			s.Available, s.Reason = false, fmt.Sprintf("needs %g CPUs, this host has %g", l.CPUs, cpus)
		case total > 0 && need > total*9/10:
			s.Available, s.Reason = false, fmt.Sprintf("needs %d MiB of memory, this host has %d", need/workbench.MiB, total/workbench.MiB)
		}
		out[i] = s
	}
	return out
}

// size finds a size by name; the empty name is the default. Codes:
// invalid_request, size_unavailable.
func (e *Engine) size(name string) (workbench.Size, error) {
	if name == "" {
		name = workbench.DefaultSize
	}
	known := make([]string, len(e.sizes))
	for i, s := range e.sizes {
		known[i] = s.Name
		if s.Name != name {
			continue
		}
		if !s.Available {
			return workbench.Size{}, workbench.E(workbench.CodeSizeUnavailable, "size %s is not available: %s", name, s.Reason).
				WithField("size").WithHint("GET /v1/workbench/runtime-tiers lists what is")
		}
		return s, nil
	}
	return workbench.Size{}, workbench.E(workbench.CodeInvalidRequest, "size must be one of %s", strings.Join(known, ", ")).
		WithField("size").WithHint("GET /v1/workbench/runtime-tiers lists the sizes")
}

// resolveImage finds an image by name or id; the empty string is the server's
// default. Code: image_not_found.
func (e *Engine) resolveImage(ctx context.Context, want string) (image.Image, error) {
	if want == "" {
		want = e.o.DefaultImage
	}
	find := e.o.Images.Default
	if want != "" {
		find = func(ctx context.Context) (image.Image, error) { return e.o.Images.Get(ctx, want) }
	}
	img, err := find(ctx)
	if err != nil {
		return image.Image{}, workbench.AsError(err).WithField("image")
	}
	return img, nil
}

// speaks refuses a language that the session's image does not offer.
func (e *Engine) speaks(ctx context.Context, imageID string, l workbench.Language) error {
	img, err := e.o.Images.Get(ctx, imageID)
	if err != nil {
		return err
	}
	if img.Offers(l) {
		return nil
	}
	var has []string
	for _, have := range img.Languages {
		has = append(has, string(have.Name))
	}
	return workbench.E(workbench.CodeLanguageUnknown, "the image of this session offers %s", strings.Join(has, ", ")).
		WithField("language").WithHint("create a session with an image that offers the language")
}

// kind is what a session of the image, size and limits needs of its sandbox.
func (e *Engine) kind(ctx context.Context, imageID, size string, l workbench.Limits) (pool.Kind, error) {
	img, err := e.o.Images.Get(ctx, imageID)
	if err != nil {
		return pool.Kind{}, err
	}
	return pool.Kind{Limits: guestLimits(l), Class: sandbox.Class{
		Image: sandbox.Image{ID: img.ID, Rootfs: img.Root, Erofs: img.EROFS}, Tier: size, CPUs: l.CPUs,
		MemoryBytes: l.MemoryBytes, WorkspaceBytes: l.WorkspaceBytes, ScratchBytes: l.ScratchBytes,
		WorkspaceInodes: l.WorkspaceFiles, Tasks: l.Tasks,
	}}, nil
}

// checkWarm refuses sizes that do not exist, before anything starts.
func (e *Engine) checkWarm() error {
	for name, n := range e.o.Warm {
		known := slices.ContainsFunc(e.sizes, func(s workbench.Size) bool { return s.Name == name })
		if !known || n < 0 {
			var names []string
			for _, s := range e.sizes {
				names = append(names, s.Name)
			}
			return workbench.E(workbench.CodeInvalidRequest, "warm sandboxes are given as size=number, and %s=%d is none", name, n).
				WithField("warm").WithHint("the sizes are %s", strings.Join(names, ", "))
		}
	}
	return nil
}

// stock has the pool keep what sessions that name neither image nor limits
// need, as the image store has it now.
func (e *Engine) stock(ctx context.Context) {
	for _, s := range e.sizes {
		n := e.o.Warm[s.Name]
		if n == 0 || !s.Available {
			continue
		}
		img, err := e.resolveImage(ctx, "")
		if err != nil {
			return // there will be one
		}
		kind, err := e.kind(ctx, img.ID, s.Name, s.Limits)
		if err != nil {
			return
		}
		e.pool.Keep(s.Name, kind, n)
	}
}

// loadTree reads the workspace of a commit.
func (e *Engine) loadTree(ctx context.Context, commit workbench.Commit) (workspace.Tree, error) {
	tree, err := e.o.Workspace.Load(ctx, commit.TenantID, commit.ManifestID)
	if err != nil {
		return workspace.Tree{}, err
	}
	if tree.Root() != commit.Root {
		return workspace.Tree{}, workbench.E(workbench.CodeCorrupt, "the manifest of commit %s is not the tree it names", commit.ID)
	}
	return tree, nil
}
