package guestwire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/workbenchdev/workbench"
)

// A tree travels as one byte stream of records: uint32 length, the entry as
// JSON, and the entry's content when it has one.

// recordWriter writes the records of a tree.
type recordWriter struct{ w io.Writer }

// write writes one entry and exactly e.Size bytes of content when it has one.
func (rw recordWriter) write(e Entry, content io.Reader) error {
	raw, err := Marshal(e)
	if err != nil {
		return err
	}
	if len(raw) > MaxEntryJSON {
		return workbench.E(workbench.CodePathInvalid, "an entry's path or link target is too long")
	}
	head := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(raw)), uint32(len(raw)))
	if _, err := rw.w.Write(append(head, raw...)); err != nil {
		return err
	}
	if !e.Content {
		return nil
	}
	n, err := io.CopyBuffer(onlyWriter{rw.w}, io.LimitReader(content, e.Size), make([]byte, min(max(e.Size, 1), MaxData)))
	if err == nil && n != e.Size {
		err = workbench.E(workbench.CodeConflict, "a file changed while it was read")
	}
	return err
}

// Add writes one entry with its content. It fails where that would be more than
// MaxChanges.
func (c *Changes) Add(e Entry, content io.Reader) error {
	var b bytes.Buffer
	if err := (recordWriter{&b}).write(e, content); err != nil {
		return err
	}
	if len(c.Records)+b.Len() > MaxChanges {
		return workbench.E(workbench.CodeBodyTooLarge, "more has changed than goes with an end")
	}
	c.Records = append(c.Records, b.Bytes()...)
	return nil
}

// Feed gives the sink what a scan would, within the bounds of a request for one. An
// error that is not the sink's own is guest_protocol.
func (c *Changes) Feed(maxEntries, maxBytes int64, sink ScanSink) error {
	err := feed(newRecordReader(bytes.NewReader(c.Records), maxEntries, maxBytes), sink)
	if errors.Is(err, errFrame) {
		return lost(err)
	}
	return err
}

// feed gives the sink every record.
func feed(records *recordReader, sink ScanSink) error {
	for {
		e, content, err := records.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = sink.Entry(e, content)
		}
		if err != nil {
			return err
		}
	}
}

// onlyWriter hides other methods, so that copying uses the given buffer.
type onlyWriter struct{ io.Writer }

// recordReader reads the records of a tree. It implements FileSource.
type recordReader struct {
	r          io.Reader
	content    io.LimitedReader
	entries    int64
	bytes      int64
	maxEntries int64
	maxBytes   int64
}

func newRecordReader(r io.Reader, maxEntries, maxBytes int64) *recordReader {
	if maxEntries <= 0 || maxEntries > MaxEntries {
		maxEntries = MaxEntries
	}
	if maxBytes <= 0 || maxBytes > MaxTreeBytes {
		maxBytes = MaxTreeBytes
	}
	return &recordReader{r: r, content: io.LimitedReader{R: r}, maxEntries: maxEntries, maxBytes: maxBytes}
}

// Next returns the next entry, throwing away content of the one before that was
// not read. io.EOF after the last one; any other error that is not the
// stream's own is a violation.
func (rr *recordReader) Next() (Entry, io.Reader, error) {
	if _, err := io.Copy(io.Discard, &rr.content); err != nil {
		return Entry{}, nil, err
	}
	if rr.content.N > 0 {
		return Entry{}, nil, violation("content ends early")
	}
	var head [4]byte
	if _, err := io.ReadFull(rr.r, head[:]); err != nil {
		return Entry{}, nil, cutShort(err, errors.Is(err, io.EOF))
	}
	size := binary.BigEndian.Uint32(head[:])
	if size == 0 || size > MaxEntryJSON {
		return Entry{}, nil, violation("entry of %d bytes", size)
	}
	raw := make([]byte, size)
	if _, err := io.ReadFull(rr.r, raw); err != nil {
		return Entry{}, nil, cutShort(err, false)
	}
	var e Entry
	if err := decode(raw, &e); err != nil {
		return Entry{}, nil, violation("entry: %v", err)
	}
	if err := e.check(); err != nil {
		return Entry{}, nil, fmt.Errorf("%w: %w", errFrame, err)
	}
	rr.entries++
	if rr.entries > rr.maxEntries {
		return Entry{}, nil, violation("more than %d entries", rr.maxEntries)
	}
	if !e.Content {
		return e, nil, nil
	}
	rr.bytes += e.Size
	if rr.bytes > rr.maxBytes {
		return Entry{}, nil, violation("more than %d bytes", rr.maxBytes)
	}
	rr.content.N = e.Size
	return e, &contentReader{rr: rr}, nil
}

// contentReader reads one entry's content: io.ErrUnexpectedEOF when the stream
// gives less than the entry's size.
type contentReader struct{ rr *recordReader }

func (c *contentReader) Read(p []byte) (int, error) {
	n, err := c.rr.content.Read(p)
	if errors.Is(err, io.EOF) && c.rr.content.N > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func cutShort(err error, clean bool) error {
	if errors.Is(err, io.EOF) && clean {
		return io.EOF
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return violation("stream ends inside an entry")
	}
	return err
}
