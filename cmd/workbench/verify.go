package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/doctor"
	"github.com/workbenchdev/workbench/internal/image"
	"github.com/workbenchdev/workbench/internal/payload"
	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
	"github.com/workbenchdev/workbench/internal/terminal"
	"github.com/workbenchdev/workbench/internal/verify"
)

// verifyFlags say with what is verified.
type verifyFlags struct {
	data, images, image string
	driver              string
	runsc, runc         string
	rows                []string
	list                bool
}

func (a *app) verifyCommand() *cobra.Command {
	var f verifyFlags
	c := &cobra.Command{
		Use: "verify", Short: "Prove on this host that sandboxes hold hostile code", Args: exactly(0),
		Long: "Starts sandboxes as the server does, tries in them what hostile code would try, and looks at the host meanwhile. It takes a minute or two on an idle host and needs root. Exit status 1 if any row failed.\n\n" +
			"proved: tried, and it held. failed: it did not hold, or the try could not be completed. warned: an old component or a setting that cannot be proved bad. " +
			"not applicable: nothing here that could be tried.",
		Example: "  workbench verify\n  workbench verify --driver runc --row H43,H70",
		RunE:    func(c *cobra.Command, _ []string) error { return a.verify(c.Context(), f) },
	}
	fl := c.Flags()
	fl.StringVar(&f.data, "data", envOr("WORKBENCH_DATA", home()), "data directory, below which the embedded runtimes are put [WORKBENCH_DATA]")
	fl.StringVar(&f.images, "images", envOr("WORKBENCH_IMAGES", filepath.Join(home(), "images")), "folder of sandbox images [WORKBENCH_IMAGES]")
	fl.StringVar(&f.image, "image", "", "image to verify with, by name or id; default minimal, else standard")
	fl.StringVar(&f.driver, "driver", envOr("WORKBENCH_DRIVER", "runsc"), "runtime: runsc or runc [WORKBENCH_DRIVER]")
	fl.StringVar(&f.runsc, "runsc", "", "runsc to use instead of the embedded one")
	fl.StringVar(&f.runc, "runc", "", "runc to use instead of the embedded one")
	fl.BoolVar(&f.list, "list", false, "list the rows there are, and try nothing")
	fl.StringSliceVar(&f.rows, "row", nil, "only these rows, such as H01,H43; may be repeated")
	return c
}

func (a *app) verify(ctx context.Context, f verifyFlags) error {
	if f.list {
		return a.verifyRows()
	}
	for _, row := range f.rows {
		if !verify.Known(verifyRow(row)) {
			return workbench.E(workbench.CodeInvalidRequest, "--row: there is no row %q", row).WithHint("workbench verify --list lists them")
		}
	}
	if os.Geteuid() != 0 {
		return workbench.E(workbench.CodeRuntimeUnavailable, "starting sandboxes needs root, and this process runs as user %d", os.Geteuid()).
			WithHint("run this command as root; code in sandboxes runs unprivileged")
	}
	o, err := f.options(ctx)
	if err != nil {
		return err
	}
	if !a.json {
		o.Each = func(r verify.Result) { a.verified(r) }
	}
	report, err := verify.Run(ctx, o)
	if err != nil {
		return err
	}
	if err := a.print(report, func() error { return a.verification(report) }); err != nil {
		return err
	}
	if report.Count(verify.Failed) > 0 {
		return exitError(workbench.ExitFailure)
	}
	return nil
}

// verifyRow is a row's id as it is written in the table.
func verifyRow(s string) string { return strings.ToUpper(strings.TrimSpace(s)) }

// verifyRows lists what can be verified.
func (a *app) verifyRows() error {
	type row struct {
		ID   string `json:"id"`
		Case string `json:"case"`
	}
	var items []row
	var rows [][]string
	for id, name := range verify.Cases() {
		items = append(items, row{id, name})
		rows = append(rows, []string{id, name})
	}
	return a.print(workbench.List[row]{Items: items}, func() error { return a.table([]string{"ROW", "CASE"}, rows) })
}

// options find the runtime, the guest and the image, as the server does.
func (f verifyFlags) options(ctx context.Context) (verify.Options, error) {
	o := verify.Options{KernelFlaws: kernelFlaws(ctx)}
	for _, row := range f.rows {
		o.Rows = append(o.Rows, verifyRow(row))
	}
	var chosen string
	switch o.Kind = oci.Kind(f.driver); o.Kind {
	case oci.Runsc:
		chosen = f.runsc
	case oci.Runc:
		chosen = f.runc
	default:
		return o, workbench.E(workbench.CodeInvalidRequest, "--driver is runsc or runc").WithField("driver").WithHint("docker and kubernetes are not built yet")
	}
	var err error
	bin := filepath.Join(f.data, "bin")
	if o.Binary = chosen; chosen == "" {
		if o.Binary, _, err = payload.Extract(bin, payload.Name(o.Kind)); err != nil {
			return o, err
		}
	}
	if o.Guest, _, err = payload.Extract(bin, payload.Guest); err != nil {
		return o, err
	}
	img, err := f.findImage(ctx)
	o.Image = sandbox.Image{ID: img.ID, Rootfs: img.Root, Erofs: img.EROFS}
	return o, err
}

// findImage is the named image, or the smallest of the usual ones.
func (f verifyFlags) findImage(ctx context.Context) (image.Image, error) {
	s, err := image.Open(f.images)
	if err != nil {
		return image.Image{}, err
	}
	if f.image != "" {
		return s.Get(ctx, f.image)
	}
	if img, err := s.Get(ctx, "minimal"); err == nil {
		return img, nil
	}
	return s.Default(ctx)
}

// kernelFlaws are doctor's words about this kernel.
func kernelFlaws(ctx context.Context) string {
	for _, finding := range doctor.Examine(ctx, doctor.ThisHost()) {
		if finding.ID == "kernel-flaws" && finding.Outcome != doctor.OK {
			return finding.Detail
		}
	}
	return ""
}

// verified shows one row as it comes.
func (a *app) verified(r verify.Result) {
	line := fmt.Sprintf("%s\t%s\t%s\t%s", r.ID, r.Outcome, terminal.Line(r.Case), terminal.Line(r.Why))
	if a.outTTY {
		line = fmt.Sprintf("%-5s %-14s  %-38s  %s", r.ID, r.Outcome, terminal.Line(r.Case), terminal.Line(r.Why))
	}
	_, _ = fmt.Fprintln(a.out, line) // a reader that went away does not end what is being verified
}

func (a *app) verification(r verify.Report) error {
	_, err := fmt.Fprintf(a.err, "%s %s: %d proved (%d counted), %d failed, %d warned, %d not applicable, in %.0f s\n", r.Driver, terminal.Line(r.Version),
		r.Count(verify.Proved), r.Proved(), r.Count(verify.Failed), r.Count(verify.Warned), r.Count(verify.NotApplicable), float64(r.TookMs)/1000)
	return err
}
