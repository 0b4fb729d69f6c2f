package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/image"
	"github.com/workbenchdev/workbench/internal/store"
)

// imageFlags say where images are and who may be using them.
type imageFlags struct {
	images   string
	data     []string
	database string
}

func (a *app) imageCommand() *cobra.Command {
	var f imageFlags
	c := group(&cobra.Command{
		Use: "image", Aliases: []string{"images"}, Short: "Build, import, list and delete sandbox images of this host",
		Long: "An image is the read-only root file system that sandboxes start from. Its id is the digest of that root.",
	})
	p := c.PersistentFlags()
	p.StringVar(&f.images, "images", envOr("WORKBENCH_IMAGES", filepath.Join(home(), "images")), "folder of sandbox images [WORKBENCH_IMAGES]")
	c.AddCommand(a.imageBuild(&f), a.imageImport(&f), a.imageList(&f), a.imageShow(&f), a.imageDelete(&f))
	return c
}

func (a *app) imageBuild(f *imageFlags) *cobra.Command {
	var again bool
	c := &cobra.Command{
		Use: "build [RECIPE]", Short: "Build an image from a recipe: standard (default) or minimal", Args: between(0, 1),
		Long: "Builds a Debian root with mmdebstrap, from the package sources this host uses. Building the same recipe again finds the image that is there.",
		RunE: func(c *cobra.Command, args []string) error {
			name := image.DefaultName
			if len(args) == 1 {
				name = args[0]
			}
			recipe, err := image.LoadRecipe(name)
			if err != nil {
				return err
			}
			s, err := image.Open(f.images)
			if err != nil {
				return err
			}
			build := s.Build
			if again {
				build = s.Rebuild
			}
			return a.makeImage(func(tell image.ProgressFunc) (image.Image, error) { return build(c.Context(), recipe, tell) })
		},
	}
	c.Flags().BoolVar(&again, "again", false, "build even if an image of this recipe is there")
	return c
}

func (a *app) imageImport(f *imageFlags) *cobra.Command {
	return &cobra.Command{
		Use: "import PATH NAME", Short: "Import a root archive, an OCI layout or a docker save archive", Args: exactly(2),
		RunE: func(c *cobra.Command, args []string) error {
			s, err := image.Open(f.images)
			if err != nil {
				return err
			}
			return a.makeImage(func(tell image.ProgressFunc) (image.Image, error) {
				return s.Import(c.Context(), args[0], args[1], tell)
			})
		},
	}
}

func (a *app) makeImage(run func(image.ProgressFunc) (image.Image, error)) error {
	p := a.progress()
	m, err := run(func(now image.Progress) { p.show(string(now.Stage), now.Detail, now.Done, now.Total) })
	p.done()
	if err != nil {
		return err
	}
	return a.print(m, func() error { return a.created(m.ID, func() error { return a.showImage(m) }) })
}

func (a *app) imageList(f *imageFlags) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the images of this host, newest first", Args: exactly(0),
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := image.Open(f.images)
			if err != nil {
				return err
			}
			all, err := s.List(c.Context())
			if err != nil {
				return err
			}
			return a.print(workbench.List[image.Image]{Items: all}, func() error {
				rows := make([][]string, 0, len(all))
				for _, m := range all {
					id := m.ID
					if a.outTTY && len(id) > 20 {
						id = id[:20] + "…"
					}
					rows = append(rows, []string{id, strings.Join(m.Names, ","), languages(m), a.bytes(m.SizeBytes), m.Source.Kind, a.when(m.CreatedAt)})
				}
				return a.table([]string{"IMAGE", "NAMES", "LANGUAGES", "SIZE", "SOURCE", "CREATED"}, rows)
			})
		},
	}
}

func (a *app) imageShow(f *imageFlags) *cobra.Command {
	return &cobra.Command{
		Use: "show IMAGE", Short: "Show an image, by name or id", Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			s, err := image.Open(f.images)
			if err != nil {
				return err
			}
			m, err := s.Get(c.Context(), args[0])
			if err != nil {
				return err
			}
			return a.print(m, func() error { return a.showImage(m) })
		},
	}
}

func (a *app) showImage(m image.Image) error {
	err := a.fields("image", m.ID, "names", strings.Join(m.Names, ", "), "description", m.Description, "languages", languages(m),
		"size", a.bytes(m.SizeBytes), "files", fmt.Sprint(m.Files), "packages", fmt.Sprint(len(m.Packages)), "source", strings.TrimSpace(m.Source.Kind+" "+m.Source.Recipe),
		"created", a.when(m.CreatedAt), "place", m.Root)
	for _, n := range m.Notes {
		err = errors.Join(err, a.fields("note", n))
	}
	return err
}

func languages(m image.Image) string {
	names := make([]string, 0, len(m.Languages))
	for _, l := range m.Languages {
		names = append(names, strings.TrimSpace(string(l.Name)+" "+l.Version))
	}
	return strings.Join(names, ", ")
}

func (a *app) imageDelete(f *imageFlags) *cobra.Command {
	c := &cobra.Command{
		Use: "delete IMAGE", Short: "Delete an image that no session uses", Args: exactly(1),
		Long: "Sessions are looked up in the usual data directories, in those named by --data and in --database. An image that one of them uses stays.",
		RunE: func(c *cobra.Command, args []string) error {
			s, err := image.Open(f.images)
			if err != nil {
				return err
			}
			if err := s.Delete(c.Context(), args[0], f.inUse); err != nil {
				return err
			}
			return a.print(map[string]string{"deleted": args[0]}, func() error { a.note("deleted %s", args[0]); return nil })
		},
	}
	var usual []string
	if dir := os.Getenv("WORKBENCH_DATA"); dir != "" {
		usual = append(usual, dir)
	}
	c.Flags().StringArrayVar(&f.data, "data", usual, "a further data directory to look for sessions in; may be repeated [WORKBENCH_DATA]")
	c.Flags().StringVar(&f.database, "database", os.Getenv("WORKBENCH_DATABASE"), "postgres://… to look for sessions in [WORKBENCH_DATABASE]")
	return c
}

// inUse asks every database that may hold sessions of this host.
func (f *imageFlags) inUse(ctx context.Context, id string) (bool, error) {
	var databases []string
	if f.database != "" {
		databases = append(databases, f.database)
	}
	siblings, err := filepath.Glob(localData() + "*")
	if err != nil {
		return false, err
	}
	for _, dir := range append(append([]string{home()}, siblings...), f.data...) {
		file := filepath.Join(dir, "workbench.db")
		if _, err := os.Stat(file); err == nil {
			databases = append(databases, "sqlite:"+file)
		}
	}
	for _, dsn := range databases {
		used, err := imageInUse(ctx, dsn, id)
		if err != nil || used {
			return used, err
		}
	}
	return false, nil
}

func imageInUse(ctx context.Context, dsn, id string) (used bool, err error) {
	db, err := store.Open(ctx, dsn, store.Options{})
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return db.ImageInUse(ctx, id)
}
