package main

import (
	"context"
	"io"
	"os"
	"path"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/outdir"
	"github.com/workbenchdev/workbench/internal/terminal"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

func (a *app) artifactCommand() *cobra.Command {
	var l local
	c := group(&cobra.Command{Use: "artifact", Aliases: []string{"artifacts"}, Short: "Upload, list, download and delete retained files"})
	l.flags(c.PersistentFlags(), localData())
	c.AddCommand(a.artifactUpload(&l), a.artifactList(&l), a.artifactShow(&l), a.artifactDownload(&l), a.artifactDelete(&l))
	return c
}

func (a *app) artifactUpload(l *local) *cobra.Command {
	var u sdk.Upload
	c := &cobra.Command{
		Use: "upload SESSION FILE", Short: "Retain a file in a session and print its id", Args: exactly(2),
		RunE: func(c *cobra.Command, args []string) error {
			f, length, err := openInput(args[1])
			if err != nil {
				return err
			}
			defer f.Close()
			u.Size = length
			if u.Name == "" {
				u.Name = filepath.Base(args[1])
			}
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				kept, err := client.UploadSessionArtifact(ctx, args[0], u, f)
				if err != nil {
					return err
				}
				return a.print(kept, func() error { return a.created(kept.ID, func() error { return a.showArtifact(kept) }) })
			})
		},
	}
	c.Flags().StringVar(&u.Name, "name", "", "download name; default the file's")
	c.Flags().StringVar(&u.Path, "path", "", "where it goes in a workspace; default its name")
	c.Flags().StringVar(&u.MimeType, "type", "", "media type; default guessed from the name")
	return c
}

func (a *app) artifactList(l *local) *cobra.Command {
	var p paging
	c := &cobra.Command{
		Use: "list SESSION", Short: "List a session's retained files", Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				list, err := client.ListSessionArtifacts(ctx, args[0], p.page())
				if err != nil {
					return err
				}
				return showPage(a, list, list.Items, list.NextCursor, []string{"FILE", "PATH", "SIZE", "ORIGIN", "TYPE", "CREATED", "EXPIRES"}, func(f workbench.Artifact) []string {
					return []string{f.ID, f.Path, a.bytes(f.Size), string(f.Origin), f.MimeType, a.when(f.CreatedAt), a.when(f.ExpiresAt)}
				})
			})
		},
	}
	p.flags(c.Flags())
	return c
}

func (a *app) artifactShow(l *local) *cobra.Command {
	return &cobra.Command{
		Use: "show FILE-ID", Short: "Show a retained file's metadata", Args: exactly(1),
		RunE: onOne(a, l, func(ctx context.Context, client *client, id string) (workbench.Artifact, error) {
			return client.SessionArtifact(ctx, id)
		}, a.showArtifact),
	}
}

func (a *app) showArtifact(f workbench.Artifact) error {
	return a.fields("file", f.ID, "name", f.Name, "path", f.Path, "size", a.bytes(f.Size), "type", f.MimeType, "sha256", f.SHA256, "origin", string(f.Origin),
		"session", f.SessionID, "run", f.RunID, "came from", a.words(cameFrom(f.Dependencies)), "created", a.when(f.CreatedAt), "expires", a.when(f.ExpiresAt), "deleted", a.whenever(f.DeletedAt), "preview", f.Preview)
}

func (a *app) artifactDownload(l *local) *cobra.Command {
	var to string
	c := &cobra.Command{
		Use: "download FILE-ID", Short: "Download a retained file", Args: exactly(1),
		Long: "Writes the file to --output, or to standard output for --output -. Without it the file goes into the current directory under its own name, unless something there has that name already.",
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				place := to
				if place == "" {
					f, err := client.SessionArtifact(ctx, args[0])
					if err != nil {
						return err
					}
					if place, err = freeName(path.Base(f.Name)); err != nil {
						return err
					}
				}
				return a.download(place, func(w io.Writer) error {
					_, err := client.DownloadSessionArtifact(ctx, args[0], w)
					return err
				})
			})
		},
	}
	c.Flags().StringVarP(&to, "output", "o", "", "file to write, or - for standard output")
	return c
}

// freeName is name, unless something here has it.
func freeName(name string) (string, error) {
	if _, err := os.Lstat(name); err == nil {
		return "", workbench.E(workbench.CodePathConflict, "there is already something named %s here", name).WithHint("name another place with --output")
	}
	return name, nil
}

// download writes what fill gives to a file, or to standard output for -.
func (a *app) download(place string, fill func(io.Writer) error) (err error) {
	if place == "-" {
		return a.toStdout(fill)
	}
	dir, err := outdir.Open(filepath.Dir(place))
	if err != nil {
		return err
	}
	defer func() { a.also(dir.Close(), &err) }()
	if err := dir.Write(filepath.Base(place), fill); err != nil {
		return err
	}
	return a.print(map[string]string{"path": place}, func() error { return a.created(place, func() error { a.note("wrote %s", place); return nil }) })
}

// toStdout writes contents out: exact bytes, or harmless text on a terminal.
func (a *app) toStdout(fill func(io.Writer) error) error {
	if !a.outTTY {
		return fill(a.out)
	}
	w := terminal.NewWriter(a.out)
	if err := fill(w); err != nil {
		return err
	}
	return w.Close()
}

func (a *app) artifactDelete(l *local) *cobra.Command {
	return &cobra.Command{
		Use: "delete FILE-ID", Short: "Delete a retained file", Args: exactly(1),
		RunE: onOne(a, l, func(ctx context.Context, client *client, id string) (workbench.Artifact, error) {
			return client.DeleteSessionArtifact(ctx, id)
		}, func(f workbench.Artifact) error {
			return a.created(f.ID, func() error { a.note("deleted %s (%s)", f.ID, f.Path); return nil })
		}),
	}
}
