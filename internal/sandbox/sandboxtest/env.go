package sandboxtest

import (
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/workbenchdev/workbench/internal/sandbox"
)

// Env is what tests that start real sandboxes need from the machine.
type Env struct {
	Repo  string
	Runsc string // built by make setup
	Runc  string
	Guest string // the guest binary, built once for this process
	// Image is the minimal image: Python, Node and Bash.
	Image sandbox.Image
}

// Soak reports whether the long form of the tests was asked for: make soak. What
// make test tries once, it tries in every combination.
func Soak() bool { return os.Getenv("WORKBENCH_SOAK") != "" }

// MustEnv finds the runtimes and the minimal image and builds the guest. What is
// missing fails the test: these tests are promised to run.
func MustEnv(t testing.TB) Env {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test starts sandboxes and needs root")
	}
	env := Env{Repo: repo()}
	env.Runsc, env.Runc = filepath.Join(env.Repo, "bin/runsc"), filepath.Join(env.Repo, "bin/runc")
	for _, path := range []string{env.Runsc, env.Runc} {
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("no runtime at %s: run make setup", path)
		}
	}
	env.Image = MustImage(t, "minimal")
	guest, err := buildGuest()
	if err != nil {
		t.Fatalf("the guest does not build: %v", err)
	}
	env.Guest = guest
	return env
}

// MustImage finds an image by its name in the folder that WORKBENCH_IMAGES
// names, by default /var/lib/workbench/images.
func MustImage(t testing.TB, name string) sandbox.Image {
	t.Helper()
	dir := os.Getenv("WORKBENCH_IMAGES")
	if dir == "" {
		dir = "/var/lib/workbench/images"
	}
	raw, err := os.ReadFile(filepath.Join(dir, "names", name))
	if err != nil {
		t.Fatalf("no image %q in %s: run make setup", name, dir)
	}
	id := strings.TrimSpace(string(raw))
	img := sandbox.Image{ID: id, Rootfs: filepath.Join(dir, id, "rootfs"), Erofs: filepath.Join(dir, id, "rootfs.erofs")}
	if _, err := os.Stat(img.Rootfs); err != nil {
		t.Fatalf("image %q has no root at %s: run make setup", name, img.Rootfs)
	}
	if _, err := os.Stat(img.Erofs); err != nil {
		img.Erofs = ""
	}
	return img
}

var buildGuest = sync.OnceValues(func() (string, error) {
	// One place for every test process of this clone; the go command caches the
	// work. Several may build at once: each renames its own into place.
	dir := filepath.Join(repo(), ".cache/test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path, mine := filepath.Join(dir, "guest"), filepath.Join(dir, "guest."+NewInstance())
	cmd := exec.Command("go", "build", "-trimpath", "-o", mine, "./cmd/guest")
	cmd.Dir = repo()
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", &buildError{err: err, said: string(out)}
	}
	return path, os.Rename(mine, path)
})

type buildError struct {
	err  error
	said string
}

func (e *buildError) Error() string { return e.err.Error() + "\n" + e.said }
func (e *buildError) Unwrap() error { return e.err }

// repo is the repository's root, from where this file was compiled.
func repo() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "../../..")
}

// NewInstance returns an instance id that no other test has.
func NewInstance() string {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	raw := make([]byte, 12)
	_, _ = rand.Read(raw)
	for i, b := range raw {
		raw[i] = letters[int(b)%len(letters)]
	}
	return string(raw)
}

// Standard is the class of the standard size, as SPEC S2 has it.
func Standard(img sandbox.Image) sandbox.Class {
	return sandbox.Class{
		Image: img, Tier: "standard", CPUs: 1,
		MemoryBytes: 256 << 20, WorkspaceBytes: 64 << 20, ScratchBytes: 64 << 20,
		WorkspaceInodes: 16384, Tasks: 64,
	}
}
