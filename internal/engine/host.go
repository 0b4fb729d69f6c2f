package engine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
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
// default. Codes: image_not_found, unavailable if there is no default, which is
// the operator's to mend.
func (e *Engine) resolveImage(ctx context.Context, want string) (image.Image, error) {
	named := want != ""
	if !named {
		want = e.o.DefaultImage
	}
	find := e.o.Images.Default
	if want != "" {
		find = func(ctx context.Context) (image.Image, error) { return e.o.Images.Get(ctx, want) }
	}
	img, err := find(ctx)
	if workbench.HasCode(err, workbench.CodeImageNotFound) && !named {
		return image.Image{}, workbench.E(workbench.CodeUnavailable, "this server has no sandbox image").
			WithHint("ask its operator to build one: workbench image build standard").
			Caused(fmt.Errorf("no image in %s: %w", e.o.Images.Dir(), err))
	}
	if err != nil {
		return image.Image{}, workbench.AsError(err).WithField("image")
	}
	return img, nil
}

// checkDefaultImage refuses a configured image that is not there, and warns of
// a folder without any.
func (e *Engine) checkDefaultImage(ctx context.Context) error {
	_, err := e.resolveImage(ctx, "")
	folder, missing := e.o.Images.Dir(), workbench.HasCode(err, workbench.CodeUnavailable)
	if err == nil {
		return nil
	}
	if !missing {
		e.log.Warn("the default image cannot be used", "images", folder, "err", err)
		return nil
	}
	if want := e.o.DefaultImage; want != "" {
		return workbench.E(workbench.CodeImageNotFound, "the default image %s is not in %s", strconv.Quote(want), folder).WithField("image").
			WithHint("workbench image list --images %s shows what there is; name one of these, or none for standard", folder)
	}
	e.log.Warn("there is no sandbox image: no session can be made until one is built", "images", folder,
		"run", "workbench image build standard --images "+folder)
	return nil
}

// speaks refuses a language that the session's image does not offer.
func (e *Engine) speaks(ctx context.Context, imageID string, l workbench.Language) error {
	img, err := e.imageOf(ctx, imageID)
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

// knownImages bounds the images that are remembered.
const knownImages = 64

// imageOf is the image of a session, by its id. What an id names does not
// change; whether it is still there shows when a sandbox starts.
func (e *Engine) imageOf(ctx context.Context, id string) (image.Image, error) {
	e.imagesMu.Lock()
	img, known := e.images[id]
	e.imagesMu.Unlock()
	if known {
		return img, nil
	}
	img, err := e.o.Images.Get(ctx, id)
	if err != nil || img.ID != id { // a name may be given to another
		return img, err
	}
	e.imagesMu.Lock()
	defer e.imagesMu.Unlock()
	if len(e.images) >= knownImages {
		clear(e.images)
	}
	e.images[id] = img
	return img, nil
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

// The sandbox in which the server itself installs packages: none of the sizes is
// made for that.
const (
	workshopCPUs      = 2
	workshopMemory    = workbench.GiB
	workshopWorkspace = 2 * workbench.GiB
	workshopFiles     = 200_000
	workshopScratch   = workbench.GiB
	workshopTasks     = 128
)

// Workshop starts a sandbox of an image for work of the server's own, which no
// session ever has; release ends it. Codes: image_not_found, capacity_exhausted,
// unavailable (the engine is stopping), and those of a start.
func (e *Engine) Workshop(ctx context.Context, imageID string) (wire *guestwire.Client, release func(), err error) {
	limits := workbench.DefaultLimits()
	limits.CPUs, limits.Tasks = min(workshopCPUs, float64(runtime.NumCPU())), workshopTasks
	limits.MemoryBytes, limits.WorkspaceBytes, limits.WorkspaceFiles, limits.ScratchBytes = workshopMemory, workshopWorkspace, workshopFiles, workshopScratch
	kind, err := e.kind(ctx, imageID, "workshop", limits)
	if err != nil {
		return nil, nil, err
	}
	if e.draining() {
		return nil, nil, errDraining()
	}
	if err := e.capacity.take(ctx); err != nil {
		return nil, nil, err
	}
	w, err := pool.Start(ctx, e.o.Driver, kind)
	if err != nil {
		e.capacity.give()
		return nil, nil, err
	}
	release = func() {
		_ = w.Wire.Close()
		kill, done := context.WithTimeout(context.WithoutCancel(ctx), killWithin)
		defer done()
		if err := w.Box.Kill(kill); err != nil { // the driver's reaper tries again
			e.log.Warn("workshop not fully removed", "sandbox", w.Box.ID(), "err", err)
		}
		e.capacity.give()
	}
	seed := make([]byte, 32)
	_, _ = rand.Read(seed) // never fails
	if _, err := w.Wire.Bind(ctx, guestwire.BindRequest{SessionNonce: hex.EncodeToString(seed[:8]), Seed: seed, Limits: kind.Limits}); err != nil {
		release()
		return nil, nil, err
	}
	return w.Wire, release, nil
}
