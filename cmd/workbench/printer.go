package main

import (
	"errors"
	"io"
	"iter"
	"strings"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/terminal"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// printer writes a run's two streams to this process's: exact bytes where one
// is piped, harmless text where it is a terminal.
type printer struct {
	to map[workbench.Stream]io.Writer // terminal.Writer where it is shown
	at map[workbench.Stream]int64     // raw bytes printed
	// lost is told once of a stream that cannot be printed any more; the rest
	// of it is passed over. Without it that is an error of the call.
	lost func(workbench.Stream, error)
	gone map[workbench.Stream]bool
}

func (a *app) printer() *printer {
	p := &printer{to: map[workbench.Stream]io.Writer{}, at: map[workbench.Stream]int64{}, gone: map[workbench.Stream]bool{}}
	p.to[workbench.Stdout] = shield(a.out, a.outTTY)
	p.to[workbench.Stderr] = shield(a.err, a.errTTY)
	return p
}

// only makes p print one stream alone, from offset on, to this process's
// standard output.
func (p *printer) only(a *app, stream workbench.Stream, offset int64) {
	p.to = map[workbench.Stream]io.Writer{stream: shield(a.out, a.outTTY)}
	p.at[stream] = offset
}

func shield(w io.Writer, tty bool) io.Writer {
	if !tty {
		return w
	}
	return terminal.NewWriter(w)
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
		if e.Result != nil {
			if err := p.result(*e.Result); err != nil {
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

// result prints what a run showed, where it is text.
func (p *printer) result(r workbench.Result) error {
	text, ok := shownText(r)
	w := p.to[workbench.Stdout]
	if !ok || w == nil || p.gone[workbench.Stdout] {
		return nil
	}
	_, err := io.WriteString(w, strings.TrimSuffix(text, "\n")+"\n")
	return p.wrote(workbench.Stdout, err)
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
	if p.gone[c.Stream] {
		return nil
	}
	_, err = w.Write(b)
	return p.wrote(c.Stream, err)
}

// wrote takes the outcome of a write.
func (p *printer) wrote(stream workbench.Stream, err error) error {
	if err == nil || p.lost == nil {
		return err
	}
	p.gone[stream] = true
	p.lost(stream, err)
	return nil
}

func (p *printer) close() error {
	var err error
	for stream, w := range p.to {
		if t, ok := w.(*terminal.Writer); ok && !p.gone[stream] {
			err = errors.Join(err, p.wrote(stream, t.Close()))
		}
	}
	return err
}
