package workspace

import (
	"io"
	"sort"
)

// content reads a file that lies in parts, at any place, opening no part that
// is not read. It is for one goroutine.
type content struct {
	parts []part
	ends  []int64 // where each part ends in the file
	open  func(at *object) (opened, error)
}

func newContent(it *item, open func(at *object) (opened, error)) (*io.SectionReader, error) {
	c := &content{parts: it.stored(), open: open}
	var end int64
	for _, p := range c.parts {
		end += p.size
		c.ends = append(c.ends, end)
	}
	if end != it.size {
		return nil, damaged("a content that is shorter than its file")
	}
	if end > 0 { // what is missing shows at once
		first, err := open(c.parts[0].at)
		if err != nil {
			return nil, err
		}
		if _, err := first.section(c.parts[0]); err != nil {
			return nil, err
		}
	}
	return io.NewSectionReader(c, 0, end), nil
}

// ReadAt implements io.ReaderAt.
func (c *content) ReadAt(b []byte, off int64) (int, error) {
	done := 0
	for done < len(b) {
		i := sort.Search(len(c.ends), func(i int) bool { return c.ends[i] > off })
		if i == len(c.ends) {
			return done, io.EOF
		}
		p := c.parts[i]
		o, err := c.open(p.at)
		if err != nil {
			return done, err
		}
		section, err := o.section(p)
		if err != nil {
			return done, err
		}
		within := off - (c.ends[i] - p.size)
		n, err := section.ReadAt(b[done:done+int(min(int64(len(b)-done), p.size-within))], within)
		done += n
		off += int64(n)
		if err != nil {
			return done, err
		}
	}
	return done, nil
}
