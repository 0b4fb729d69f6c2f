package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox"
)

var (
	_ sandbox.Checkpointer = (*live)(nil)
	_ sandbox.Restorer     = (*Driver)(nil)
)

// Checkpoint implements sandbox.Checkpointer. Once begun it is carried out,
// also when its caller stops waiting. gVisor goes on running the sandbox after it
// has written it, so that a failure costs nothing; it is ended here once all is
// there.
func (l *live) Checkpoint(ctx context.Context, dir string) error {
	if !l.d.canCheckpoint() {
		return notCheckpointed(l.d)
	}
	if err := ctx.Err(); err != nil {
		return workbench.E(workbench.CodeCancelled, "the checkpoint was given up").Caused(err)
	}
	if err := emptyDirectory(dir); err != nil {
		return workbench.E(workbench.CodeInternal, "the directory for the checkpoint cannot be used").Caused(err)
	}
	l.checkpoints.Lock()
	defer l.checkpoints.Unlock()
	select {
	case <-l.done:
		return checkpointLost(nil)
	default:
	}
	if l.group.Frozen() {
		return workbench.E(workbench.CodeConflict, "the sandbox is paused").WithHint("resume it first")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.d.o.CheckpointTimeout)
	defer cancel()
	if err := l.writeImage(ctx, dir); err != nil {
		return l.checkpointFailed(ctx, dir, err)
	}
	killErr := l.Kill(ctx)
	select {
	case <-l.done: // what is left of it runs nothing, and is on record
	default:
		emptyOut(dir)
		return killErr
	}
	if err := describe(dir, image{Version: imageVersion, Runtime: l.d.runtimeVersion(ctx), Class: classOf(l.class), Likeness: l.likeness}); err != nil {
		emptyOut(dir)
		return checkpointLost(err)
	}
	return nil
}

// writeImage has the runtime write the sandbox into the directory. The pages of a
// directory in memory are charged to the sandbox, which writes them: it needs
// room for its memory twice.
func (l *live) writeImage(ctx context.Context, dir string) error {
	limits := l.d.limits(l.class)
	wide := limits
	wide.MemoryBytes = 2*limits.MemoryBytes + checkpointSpare
	if err := l.group.SetMemory(wide.MemoryBytes); err != nil {
		return fmt.Errorf("make room: %w", err)
	}
	at := l.d.site.layout(l.id)
	// Not compressed: whoever keeps it compresses better, and gVisor restores
	// fastest from pages in a file of their own.
	args := append(l.d.flags(at), "checkpoint", "--image-path", dir, "--leave-running", "--compression=none",
		"--exclude-committed-zero-pages", containerID)
	said, err := output(ctx, l.d.o.Binary, args...)
	if err != nil {
		return fmt.Errorf("%s: %w; it said: %q %q", exitText(err), err, said, tailOf(at.runtimeLog()))
	}
	return nil
}

// checkpointSpare is for the state beside the pages.
const checkpointSpare = 64 << 20

// checkpointFailed removes what was written. A sandbox whose runtime did not
// answer in time may be writing still, so it is ended.
func (l *live) checkpointFailed(ctx context.Context, dir string, cause error) error {
	if ctx.Err() != nil {
		_ = l.Kill(context.WithoutCancel(ctx)) // what stays is on record
	}
	emptyOut(dir)
	select {
	case <-l.done:
		return checkpointLost(cause)
	case <-time.After(20 * time.Millisecond): // an end is seen a moment later
	}
	if err := l.group.SetMemory(l.d.limits(l.class).MemoryBytes); err != nil {
		// Nothing bounds it any more as it was promised.
		_ = l.Kill(context.WithoutCancel(ctx))
		return checkpointLost(errors.Join(cause, err))
	}
	return workbench.E(workbench.CodeUnavailable, "the sandbox could not be checkpointed; it goes on").Caused(cause)
}

func checkpointLost(cause error) error {
	return workbench.E(workbench.CodeSandboxLost, "the sandbox ended before it was checkpointed").Caused(cause)
}

func notCheckpointed(d *Driver) error {
	return workbench.E(workbench.CodeNotBuilt, "live memory cannot be kept with this %s", d.Name()).
		WithHint("gVisor can (make setup builds it); without it a session keeps its files alone")
}

// Vessel implements sandbox.Restorer. The runtime's kernel is there and has read
// its configuration; what runs in it comes with the checkpoint.
func (d *Driver) Vessel(ctx context.Context, class sandbox.Class) (sandbox.Sandbox, error) {
	if !d.canCheckpoint() {
		return nil, notCheckpointed(d)
	}
	return d.launch(ctx, class, nil, true)
}

// Restore implements sandbox.Restorer.
func (d *Driver) Restore(ctx context.Context, class sandbox.Class, dir string, vessel sandbox.Sandbox) (sandbox.Sandbox, error) {
	box, err := d.restore(ctx, class, dir, vessel)
	if err != nil && vessel != nil {
		_ = vessel.Kill(context.WithoutCancel(ctx)) // what stays is on record
	}
	return box, err
}

func (d *Driver) restore(ctx context.Context, class sandbox.Class, dir string, vessel sandbox.Sandbox) (sandbox.Sandbox, error) {
	if !d.canCheckpoint() {
		return nil, notCheckpointed(d)
	}
	from, err := readImage(dir)
	if err != nil {
		return nil, damagedImage(err)
	}
	switch {
	case from.Class != classOf(class):
		return nil, notLike("of a sandbox of another size or image")
	case from.Runtime != d.runtimeVersion(ctx):
		return nil, notLike("made by another version of gVisor")
	}
	// The sums are checked beside the start: a sandbox made of damage is a sandbox
	// still, and ended.
	checked := make(chan error, 1)
	go func() { checked <- from.check() }()
	box, err := d.begin(ctx, class, from, vessel)
	if damage := <-checked; damage != nil {
		if err == nil {
			err = box.Kill(context.WithoutCancel(ctx))
		}
		return nil, damagedImage(errors.Join(damage, err))
	}
	return box, err
}

// begin starts what a checkpoint holds, in the vessel if that can be: one may have
// died unseen.
func (d *Driver) begin(ctx context.Context, class sandbox.Class, from *image, vessel sandbox.Sandbox) (sandbox.Sandbox, error) {
	if vessel != nil {
		box, err := d.fill(ctx, class, from, vessel)
		if err == nil {
			return box, nil
		}
		d.o.Log.Warn("a vessel was of no use", "sandbox", vessel.ID(), "error", err)
		if err := errors.Join(vessel.Kill(context.WithoutCancel(ctx)), from.check()); err != nil {
			return nil, err // the vessel may hold some of it, or nothing else can either
		}
	}
	return d.launch(ctx, class, from, false)
}

// fill has a vessel become what a checkpoint holds. Its caller ends one with which
// that fails.
func (d *Driver) fill(ctx context.Context, class sandbox.Class, from *image, vessel sandbox.Sandbox) (sandbox.Sandbox, error) {
	l, ok := vessel.(*live)
	if !ok || l.d != d || classOf(l.class) != classOf(class) || !l.use() {
		return nil, errors.New("not a vessel of the class")
	}
	if from.Likeness != l.likeness {
		return nil, notLike("made for another kind of sandbox")
	}
	d.mu.Lock()
	if err := d.isClosed(); err != nil {
		d.mu.Unlock()
		return nil, err
	}
	d.starts.Add(1)
	d.mu.Unlock()
	defer d.starts.Done()
	ctx, cancel := context.WithTimeout(ctx, d.o.StartTimeout)
	defer cancel()
	lent := l.lend()
	at := d.site.layout(l.id)
	args := append(d.flags(at), sameLikeness, "restore", "--image-path", from.dir, "--detach", containerID)
	said, err := output(ctx, d.o.Binary, args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; it said: %q %q", exitText(err), err, said, tailOf(at.runtimeLog()))
	}
	if lent {
		if err := l.takeBack(); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// use takes a vessel for the one restore that it is for.
func (l *live) use() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.vessel
	l.vessel = false
	return was
}

func damagedImage(cause error) error {
	return workbench.E(workbench.CodeCorrupt, "the checkpoint is damaged").
		WithHint("the session's files are in its last commit").Caused(cause)
}

// notLike refuses a checkpoint that is whole and cannot be used here.
func notLike(what string) error {
	return workbench.E(workbench.CodeSandboxStart, "the checkpoint is %s", what).
		WithHint("it stays so: start anew from the session's files")
}

// checkpoints reports whether live memory can be kept with a gVisor of that
// version: one at least as new as the one that the suite proves it with, and
// pages of 4 KiB, which it demands.
func checkpoints(version string) bool {
	_, old := oldRunsc(version)
	return !old && os.Getpagesize() == 4096
}

func (d *Driver) canCheckpoint() bool {
	return d.o.Kind == Runsc && checkpoints(d.runtimeVersion(context.Background()))
}

// runtimeVersion is what Info says, "" when the runtime does not say.
func (d *Driver) runtimeVersion(ctx context.Context) string {
	info, err := d.Info(ctx)
	if err != nil {
		return ""
	}
	return info.Version
}

// image is what the driver says of a checkpoint, in a file beside the runtime's
// own. Its sums find damage; that nobody changed it is for whoever keeps it to
// see to.
type image struct {
	Version  int        `json:"version"`
	Runtime  string     `json:"runtime"` // the version that made it
	Class    imageClass `json:"class"`
	Likeness string     `json:"likeness"`
	Files    []sum      `json:"files"` // in the order of imageFiles

	dir string
}

// imageClass is a class without its paths on the host and its label.
type imageClass struct {
	Image                                                      string
	CPUs                                                       float64
	MemoryBytes, WorkspaceBytes, ScratchBytes, WorkspaceInodes int64
	Tasks                                                      int
}

func classOf(c sandbox.Class) imageClass {
	return imageClass{Image: c.Image.ID, CPUs: c.CPUs, MemoryBytes: c.MemoryBytes, WorkspaceBytes: c.WorkspaceBytes,
		ScratchBytes: c.ScratchBytes, WorkspaceInodes: c.WorkspaceInodes, Tasks: c.Tasks}
}

// sum is one file's size and CRC-32C.
type sum struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	CRC  uint32 `json:"crc32c"`
}

const (
	imageVersion = 1
	imageFile    = "workbench.json"
	maxImageFile = 64 << 10
)

// imageFiles are what the runtime writes.
var imageFiles = []string{"checkpoint.img", "pages.img", "pages_meta.img"}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func sumOf(path string) (sum, error) {
	f, err := os.Open(path)
	if err != nil {
		return sum{}, err
	}
	defer func() { _ = f.Close() }()
	h := crc32.New(castagnoli)
	n, err := io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{f}, make([]byte, 256<<10))
	return sum{Name: filepath.Base(path), Size: n, CRC: h.Sum32()}, err
}

// describe writes the driver's own file into a checkpoint.
func describe(dir string, i image) error {
	for _, name := range imageFiles {
		path := filepath.Join(dir, name)
		if err := os.Chmod(path, 0o600); err != nil {
			return err
		}
		s, err := sumOf(path)
		if err != nil {
			return err
		}
		i.Files = append(i.Files, s)
	}
	raw, err := json.Marshal(i)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, imageFile), raw, 0o600)
}

// readImage reads what a checkpoint is, and checks all but its sums. A file that is not a checkpoint's is
// refused: some names make the runtime fetch it from elsewhere.
func readImage(dir string) (*image, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("%q is not absolute", dir)
	}
	if err := ownDirectory(dir); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || e.Name() != imageFile && !slices.Contains(imageFiles, e.Name()) {
			return nil, fmt.Errorf("it has %q", e.Name())
		}
	}
	f, err := os.Open(filepath.Join(dir, imageFile))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, maxImageFile))
	if err != nil {
		return nil, err
	}
	i := &image{dir: dir}
	if err := json.Unmarshal(raw, i); err != nil {
		return nil, err
	}
	if i.Version != imageVersion || len(i.Files) != len(imageFiles) {
		return nil, fmt.Errorf("version %d with %d files", i.Version, len(i.Files))
	}
	for n, name := range imageFiles {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		if i.Files[n].Name != name || i.Files[n].Size != info.Size() {
			return nil, fmt.Errorf("%s has %d bytes, was %+v", name, info.Size(), i.Files[n])
		}
	}
	return i, nil
}

// check compares the files with their sums.
func (i *image) check() error {
	for n, name := range imageFiles {
		have, err := sumOf(filepath.Join(i.dir, name))
		if err != nil {
			return err
		}
		if have != i.Files[n] {
			return fmt.Errorf("%s: %+v, was %+v", name, have, i.Files[n])
		}
	}
	return nil
}

// likeness names all that a sandbox is made of but its id, its range of host ids
// and where on the host things lie: guest, configuration and flags.
func (d *Driver) likeness(spec *specs.Spec) string {
	s := *spec
	linux, root := *s.Linux, *s.Root
	linux.CgroupsPath, linux.UIDMappings, linux.GIDMappings, root.Path = "", nil, nil, ""
	s.Linux, s.Root, s.Mounts, s.Annotations = &linux, &root, slices.Clone(s.Mounts), nil
	for i := range s.Mounts {
		s.Mounts[i].Source = filepath.Base(s.Mounts[i].Source) // the guest's ends with its digest
	}
	raw, _ := json.Marshal([]any{s, d.runscFlags(), spec.Annotations["dev.gvisor.spec.rootfs.type"]}) // cannot fail: plain data
	h := sha256.Sum256(raw)
	return hex.EncodeToString(h[:])
}

// emptyDirectory refuses what is not a directory of this process's user alone
// that has nothing in it.
func emptyDirectory(dir string) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("%q is not absolute", dir)
	}
	if err := ownDirectory(dir); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = fmt.Errorf("%s is open to others (mode %o)", dir, info.Mode().Perm())
	}
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("%s is not empty", dir)
	}
	return err
}

// emptyOut removes what a failed checkpoint left in its directory. gVisor keeps
// the files of a failed one open: they are emptied, so that they hold no memory.
func emptyOut(dir string) {
	for _, name := range append([]string{imageFile}, imageFiles...) {
		path := filepath.Join(dir, name)
		_ = os.Truncate(path, 0)
		_ = os.Remove(path)
	}
}
