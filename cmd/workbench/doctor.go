package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/doctor"
	"github.com/workbenchdev/workbench/internal/image"
	"github.com/workbenchdev/workbench/internal/payload"
	"github.com/workbenchdev/workbench/internal/terminal"
)

func (a *app) doctorCommand() *cobra.Command {
	var data, images, runsc, runc string
	c := &cobra.Command{
		Use: "doctor", Short: "Say what this host can and cannot do, and what to change", Args: exactly(0),
		Long: "Looks at this host and changes nothing. Exit status 1 if something is missing without which no sandbox starts.",
		RunE: func(c *cobra.Command, _ []string) error {
			h := doctor.ThisHost()
			h.DataDir, h.ImageDir = data, images
			h.Sizes = workbench.StandardSizes()
			h.Runtimes = map[string]string{"runsc": runsc, "runc": runc}
			h.Embedded = map[string]string{}
			for _, name := range payload.Names() {
				h.Embedded[string(name)] = payload.Version(name)
			}
			h.Images, h.ImageErr = hostImages(c.Context(), images)
			return a.diagnosis(doctor.Examine(c.Context(), h))
		},
	}
	f := c.Flags()
	f.StringVar(&data, "data", envOr("WORKBENCH_DATA", home()), "data directory to look at [WORKBENCH_DATA]")
	f.StringVar(&images, "images", envOr("WORKBENCH_IMAGES", filepath.Join(home(), "images")), "folder of sandbox images [WORKBENCH_IMAGES]")
	f.StringVar(&runsc, "runsc", "", "runsc that will be used instead of the embedded one")
	f.StringVar(&runc, "runc", "", "runc that will be used instead of the embedded one")
	return c
}

// hostImages reads the images without making their folder.
func hostImages(ctx context.Context, dir string) ([]doctor.Image, error) {
	if _, err := os.Stat(filepath.Join(dir, "names")); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	s, err := image.Open(dir)
	if err != nil {
		return nil, err
	}
	all, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]doctor.Image, 0, len(all))
	for _, m := range all {
		d := doctor.Image{Names: m.Names, EROFS: m.EROFS != ""}
		for _, l := range m.Languages {
			d.Languages = append(d.Languages, string(l.Name))
		}
		out = append(out, d)
	}
	return out, nil
}

func (a *app) diagnosis(all []doctor.Finding) error {
	healthy := doctor.Healthy(all)
	err := a.print(map[string]any{"healthy": healthy, "items": all}, func() error {
		rows := make([][]string, 0, len(all))
		for _, f := range all {
			rows = append(rows, []string{f.ID, string(f.Outcome), f.Name, f.Detail})
		}
		if !a.outTTY {
			for i, f := range all {
				rows[i] = append(rows[i], f.Remedy)
			}
			return a.table(nil, rows)
		}
		return a.readable(all)
	})
	if err != nil {
		return err
	}
	if !healthy {
		return exitError(workbench.ExitFailure)
	}
	return nil
}

// readable shows findings for a person: the remedy below what it remedies.
func (a *app) readable(all []doctor.Finding) error {
	widest := 0
	for _, f := range all {
		widest = max(widest, len(f.Name))
	}
	count := map[doctor.Outcome]int{}
	for _, f := range all {
		count[f.Outcome]++
		if _, err := fmt.Fprintf(a.out, "%-8s %-*s  %s\n", f.Outcome, widest, f.Name, terminal.Line(f.Detail)); err != nil {
			return err
		}
		if f.Remedy != "" {
			if _, err := fmt.Fprintf(a.out, "%s→ %s\n", strings.Repeat(" ", widest+11), terminal.Line(f.Remedy)); err != nil {
				return err
			}
		}
	}
	_, err := fmt.Fprintf(a.out, "\n%d ok, %d warned, %d optional and not there, %d failed\n", count[doctor.OK], count[doctor.Warned], count[doctor.Optional], count[doctor.Failed])
	return err
}
