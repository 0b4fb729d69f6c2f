package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// outputFlags are what `workbench runs output` is told.
type outputFlags struct {
	stream string
	one    bool // --stream was given
	offset int64
	follow bool
}

func (a *app) runsOutput(l *local) *cobra.Command {
	var f outputFlags
	c := &cobra.Command{
		Use: "output RUN", Short: "Print what a run wrote", Args: exactly(1),
		Long: "Prints one stream to standard output as far as it was captured: exact bytes where the output is piped. What lies beyond is told on standard error.\n\n" +
			"With --follow output is printed as it is written, until the run ends: both streams, each to its own, or the one that --stream names to standard output.",
		RunE: func(c *cobra.Command, args []string) error {
			f.one = c.Flags().Changed("stream")
			if err := a.fitsOutput(c, f); err != nil {
				return err
			}
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				if f.follow {
					return a.followOutput(ctx, client, args[0], f)
				}
				return a.pages(ctx, client, args[0], workbench.Stream(f.stream), f.offset)
			})
		},
	}
	c.Flags().StringVar(&f.stream, "stream", "stdout", "stdout or stderr")
	c.Flags().Int64Var(&f.offset, "offset", 0, "first byte to print")
	c.Flags().BoolVarP(&f.follow, "follow", "f", false, "print output until the run ends")
	return c
}

// fitsOutput refuses flags that would be passed over.
func (a *app) fitsOutput(c *cobra.Command, f outputFlags) error {
	switch {
	case f.stream != string(workbench.Stdout) && f.stream != string(workbench.Stderr):
		return workbench.E(workbench.CodeInvalidRequest, "--stream is stdout or stderr").WithField("stream").WithHint("%s --help", c.CommandPath())
	case f.follow && c.Flags().Changed("offset"):
		return workbench.E(workbench.CodeInvalidRequest, "--follow prints output from its beginning, and --offset does not go with it").WithField("offset").WithHint("leave one of them out")
	case f.follow && a.json:
		return workbench.E(workbench.CodeInvalidRequest, "--follow prints output as it is, and --json does not go with it").WithHint("workbench runs events --json follows a run as JSON")
	}
	return nil
}

func (a *app) followOutput(ctx context.Context, client *client, runID string, f outputFlags) error {
	p := a.printer()
	if f.one {
		p.only(a, workbench.Stream(f.stream), 0)
	}
	if err := p.events(client.Events(ctx, runID, 0)); err != nil {
		return err
	}
	if err := p.close(); err != nil {
		return err
	}
	run, err := client.GetRun(ctx, runID, 0)
	if err != nil {
		return err
	}
	for stream, info := range map[workbench.Stream]workbench.StreamInfo{workbench.Stdout: run.Outputs.Stdout, workbench.Stderr: run.Outputs.Stderr} {
		if _, printed := p.to[stream]; printed {
			a.cut(stream, info, client.again)
		}
	}
	return nil
}

// pages prints one stream from offset on, as far as it goes now, and says what
// of it was not captured.
func (a *app) pages(ctx context.Context, client *client, runID string, stream workbench.Stream, offset int64) error {
	if a.json {
		page, err := client.Output(ctx, runID, workbench.OutputQuery{Stream: stream, Offset: offset, Limit: workbench.MaxOutputPage})
		if err != nil {
			return err
		}
		return a.encode(a.out, page)
	}
	p := a.printer()
	p.only(a, stream, offset)
	for {
		page, err := client.Output(ctx, runID, workbench.OutputQuery{Stream: stream, Offset: p.at[stream], Limit: workbench.MaxOutputPage, Encoding: workbench.EncodingBase64})
		if err != nil {
			return err
		}
		if page.NextOffset > page.Offset {
			err = p.chunk(sdk.Chunk{Stream: stream, Offset: page.Offset, Length: page.NextOffset - page.Offset, Base64: page.Text})
			if err != nil {
				return err
			}
			continue
		}
		if err := p.close(); err != nil {
			return err
		}
		if !page.Truncated {
			return nil
		}
		return a.cutNow(ctx, client, runID, stream)
	}
}

// cutNow says what of a stream is not captured, by the run's receipt.
func (a *app) cutNow(ctx context.Context, client *client, runID string, stream workbench.Stream) error {
	run, err := client.GetRun(ctx, runID, 0)
	if err != nil {
		return err
	}
	info := run.Outputs.Stdout
	if stream == workbench.Stderr {
		info = run.Outputs.Stderr
	}
	if !run.Status.Terminal() {
		a.note("%s shows %s of what the run has written so far; where the rest is, its receipt tells once it has ended: workbench runs show %s --wait%s", stream, size(info.CapturedBytes), runID, client.again)
		return nil
	}
	a.cut(stream, info, client.again)
	return nil
}
