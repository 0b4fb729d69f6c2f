package main

import (
	"errors"
	"io"
	"iter"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/terminal"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// printer writes a run's two streams to this process's: exact bytes where one
// is piped, harmless text where it is a terminal.
type printer struct {
	to    map[workbench.Stream]io.Writer
	shown []*terminal.Writer
	at    map[workbench.Stream]int64 // raw bytes printed
}

func (a *app) printer() *printer {
	p := &printer{to: map[workbench.Stream]io.Writer{}, at: map[workbench.Stream]int64{}}
	p.to[workbench.Stdout] = p.shield(a.out, a.outTTY)
	p.to[workbench.Stderr] = p.shield(a.err, a.errTTY)
	return p
}

func (p *printer) shield(w io.Writer, tty bool) io.Writer {
	if !tty {
		return w
	}
	t := terminal.NewWriter(w)
	p.shown = append(p.shown, t)
	return t
}

// events prints output until the terminal event.
func (p *printer) events(all iter.Seq2[sdk.Event, error]) error {
	for e, err := range all {
		if err != nil {
			return err
		}
		if e.Kind == workbench.LogOutput {
			if err := p.chunk(sdk.Chunk{Stream: e.Stream, Offset: e.Offset, Length: e.Length, Text: e.Text, Base64: e.Base64}); err != nil {
				return err
			}
		}
		for _, c := range e.Tail {
			if err := p.chunk(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// chunk prints a piece of a stream. Pieces must follow each other exactly: a
// byte that is missing or doubled is an error, not a surprise.
func (p *printer) chunk(c sdk.Chunk) error {
	w, ok := p.to[c.Stream]
	if !ok {
		return nil // a stream this version does not know
	}
	b, err := c.Bytes()
	if err != nil {
		return workbench.E(workbench.CodeInternal, "the server sent output that cannot be decoded").Caused(err)
	}
	if c.Offset != p.at[c.Stream] || int64(len(b)) != c.Length {
		return workbench.E(workbench.CodeInternal, "the output of the run has a gap: %s byte %d follows %d", c.Stream, c.Offset, p.at[c.Stream])
	}
	p.at[c.Stream] += c.Length
	_, err = w.Write(b)
	return err
}

func (p *printer) close() error {
	var err error
	for _, t := range p.shown {
		err = errors.Join(err, t.Close())
	}
	return err
}
