package image

import (
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// leftOut is removed from a built root: what a sandbox never needs, what
// differs between two builds from the same packages, and what describes the
// machine that built it.
var leftOut = []string{
	"etc/apt", "var/lib/apt", "var/cache/apt", "etc/dpkg/dpkg.cfg.d/99mmdebstrap",
	"var/cache/debconf", "var/lib/debconf", "var/cache/ldconfig", "var/cache/adduser",
	"var/lib/dpkg/*-old", "var/lib/dpkg/lock*", "var/lib/dpkg/triggers/Lock",
	"etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/subuid-", "etc/subgid-",
	"var/lib/dbus/machine-id", "root/.cache", "root/.config",
	"tmp/*", "var/tmp/*", "run/*", "var/log/*",
}

// Build returns the image that the recipe makes, building it if this store has
// none from exactly this recipe, and lets the recipe's name point at it.
// Errors: unavailable (with the remedy), image_invalid.
func (s *Store) Build(ctx context.Context, r Recipe, progress ProgressFunc) (Image, error) {
	return s.build(ctx, r, progress, false)
}

// Rebuild builds the recipe even if an image of it exists, so that newer
// packages come in. If nothing changed, the result is the same image.
func (s *Store) Rebuild(ctx context.Context, r Recipe, progress ProgressFunc) (Image, error) {
	return s.build(ctx, r, progress, true)
}

func (s *Store) build(ctx context.Context, r Recipe, progress ProgressFunc, again bool) (Image, error) {
	progress = progress.serialized()
	work, discard, err := s.workspace(ctx, progress)
	if err != nil {
		return Image{}, err
	}
	defer discard()
	// Looked for only now: the lock's last holder may have built it.
	if !again {
		if m, err := s.findRecipe(ctx, r.Hash()); err != nil || m.ID != "" {
			if err != nil {
				return Image{}, err
			}
			if err := s.SetName(ctx, r.Name, m.ID); err != nil {
				return Image{}, err
			}
			progress.tell(StageDone, "the image "+r.Name+" is already built")
			return s.Get(ctx, m.ID)
		}
	}
	if err := needSpace(work, r.DiskBytes); err != nil {
		return Image{}, err
	}
	progress.tell(StagePrepare, "starting mmdebstrap")
	root := filepath.Join(work, "image", "rootfs")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return Image{}, diskError("make the new root", err)
	}
	u, err := newUnpacker(root, s.Limits, progress)
	if err != nil {
		return Image{}, err
	}
	err = buildRoot(ctx, r, work, progress, func(stream io.Reader) error {
		return u.layer(ctx, stream, false)
	})
	if finishErr := u.finish(); err == nil {
		err = finishErr
	}
	if err != nil {
		return Image{}, err
	}
	if err := removeFrom(root, append(slices.Clone(leftOut), r.Remove...)); err != nil {
		return Image{}, diskError("tidy the new root", err)
	}
	return s.admit(ctx, filepath.Join(work, "image"), r.Name, Image{
		Description: r.Description,
		Source:      Source{Kind: "recipe", Recipe: r.Name, Hash: r.Hash()},
		Notes:       []string{}, // set-id bits and devices are left out of every built root
	}, progress)
}

// removeFrom removes what the patterns name below dir. A link in a name is
// followed only as far as it stays inside.
func removeFrom(dir string, patterns []string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, pattern := range patterns {
		found, err := fs.Glob(root.FS(), strings.TrimPrefix(pattern, "/"))
		if err != nil {
			return err
		}
		for _, at := range found {
			if err := root.RemoveAll(at); err != nil {
				return err
			}
		}
	}
	return nil
}

// findRecipe returns the newest image with the recipe hash; the zero Image if
// there is none.
func (s *Store) findRecipe(ctx context.Context, hash string) (Image, error) {
	all, err := s.List(ctx)
	if err != nil {
		return Image{}, err
	}
	if i := slices.IndexFunc(all, func(m Image) bool { return m.Source.Hash == hash }); i >= 0 {
		return all[i], nil
	}
	return Image{}, nil
}

// admit turns home/rootfs into an image of the store: it prepares and checks
// the root, hashes it, finds out what it offers, and moves home to its place.
// home is inside the store's work folder, whose lock is held.
func (s *Store) admit(ctx context.Context, home, name string, m Image, progress ProgressFunc) (Image, error) {
	root := filepath.Join(home, "rootfs")
	if err := prepareRoot(root); err != nil {
		return Image{}, err
	}
	progress.tell(StageDigest, "hashing the root")
	d, err := DigestRoot(ctx, root)
	if err != nil {
		return Image{}, err
	}
	m.ID, m.Files, m.SizeBytes, m.CreatedAt = idPrefix+d.Hex, d.Entries, d.Bytes, s.Clock().UTC()
	if _, err := os.Stat(filepath.Join(s.dir, m.ID, "image.json")); err == nil {
		return s.adopt(ctx, name, m, progress)
	}
	progress.tell(StageProbe, "looking for languages and packages")
	if err := s.probe(ctx, root, &m); err != nil {
		return Image{}, err
	}
	progress.tell(StagePack, "writing the EROFS file")
	packed, err := packEROFS(ctx, root, filepath.Join(home, "rootfs.erofs"), d.Hex)
	if err != nil {
		return Image{}, err
	}
	if !packed {
		m.Notes = append(m.Notes, "no EROFS file: mkfs.erofs is not installed (erofs-utils); gVisor starts from the folder, a little slower")
	}
	if err := writeDescription(home, m); err != nil {
		return Image{}, err
	}
	if err := os.Chmod(home, 0o755); err != nil {
		return Image{}, diskError("write the image", err)
	}
	if err := syncFolder(home); err != nil {
		return Image{}, diskError("write the image", err)
	}
	place := filepath.Join(s.dir, m.ID)
	// What is there has no description: the rest of a copy by hand, at most.
	if err := os.RemoveAll(place); err != nil {
		return Image{}, diskError("move the image to its place", err)
	}
	if err := os.Rename(home, place); err != nil {
		return Image{}, diskError("move the image to its place", err)
	}
	if err := syncFolder(s.dir); err != nil {
		return Image{}, diskError("write the image", err)
	}
	return s.named(ctx, name, m.ID, "made", progress)
}

// adopt lets the name point at an image that turned out to exist already. Its
// source becomes the recipe that led to it last, so that the recipe finds it.
func (s *Store) adopt(ctx context.Context, name string, m Image, progress ProgressFunc) (Image, error) {
	have, err := s.load(m.ID, nil)
	if err != nil {
		return Image{}, err
	}
	if m.Source.Hash != "" && have.Source != m.Source {
		have.Source, have.Description = m.Source, m.Description
		if err := writeDescription(filepath.Join(s.dir, m.ID), have); err != nil {
			return Image{}, err
		}
	}
	return s.named(ctx, name, m.ID, "the same image exists already", progress)
}

func (s *Store) named(ctx context.Context, name, id, detail string, progress ProgressFunc) (Image, error) {
	if err := s.SetName(ctx, name, id); err != nil {
		return Image{}, err
	}
	m, err := s.Get(ctx, id)
	if err == nil {
		progress.tell(StageDone, detail)
	}
	return m, err
}

func writeDescription(home string, m Image) error {
	m.Names = nil // names point here, they are not part of it
	raw, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return writeFileAtomic(filepath.Join(home, "image.json"), append(raw, '\n'))
}
