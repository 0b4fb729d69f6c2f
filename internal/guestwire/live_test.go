package guestwire_test

import (
	"bytes"
	"context"
	"io"
	"slices"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

func (g *scriptedGuest) List(_ context.Context, r guestwire.ListRequest) (guestwire.ListReply, error) {
	reply := guestwire.ListReply{Entries: []guestwire.Entry{}}
	for _, e := range g.tree {
		if r.After != "" && !guestwire.Before(r.After, e.Path) {
			continue
		}
		if len(reply.Entries) == r.Limit {
			reply.More = true
			break
		}
		e.SHA256, e.Content, e.Change = nil, false, ""
		reply.Entries = append(reply.Entries, e)
	}
	return reply, nil
}

func (g *scriptedGuest) ReadFrom(_ context.Context, r guestwire.ReadRequest, send func(io.Reader) error) error {
	b, ok := g.content[r.Path]
	if !ok {
		return workbench.ErrNotFound("file")
	}
	return send(bytes.NewReader(b[r.Offset:]))
}

func (g *scriptedGuest) Remove(_ context.Context, r guestwire.RemoveRequest) error {
	if _, ok := g.content[r.Path]; !ok {
		return workbench.ErrNotFound("file")
	}
	delete(g.content, r.Path)
	return nil
}

func (g *scriptedGuest) Move(_ context.Context, r guestwire.MoveRequest) error {
	g.content[r.To] = g.content[r.From]
	delete(g.content, r.From)
	return nil
}

func TestOrderOfAWalk(t *testing.T) {
	walk := []guestwire.Path{"a", "a/b", "a/b/c", "a/b-c", "a b", "a!", "a.txt", "b", "é"}
	for i, p := range walk {
		for j, q := range walk {
			if got := guestwire.Before(p, q); got != (i < j) {
				t.Errorf("%q before %q: %v", p, q, got)
			}
		}
	}
}

func TestLiveFiles(t *testing.T) {
	g := &scriptedGuest{content: map[guestwire.Path][]byte{"b": []byte("0123456789")}, tree: []guestwire.Entry{
		{Path: "a", Type: guestwire.TypeDir, Mode: 0o755}, {Path: "a/\xff\n", Type: guestwire.TypeSymlink, Target: "x"}, {Path: "b", Type: guestwire.TypeFile, Size: 10}}}
	client := MustServe(t, g)()
	page, err := client.ListFiles(t.Context(), guestwire.ListRequest{Recursive: true, Limit: 2})
	if err != nil || !page.More || len(page.Entries) != 2 || page.Entries[1].Path != "a/\xff\n" {
		t.Fatalf("%+v, %v", page, err)
	}
	page, err = client.ListFiles(t.Context(), guestwire.ListRequest{Recursive: true, Limit: 2, After: page.Entries[1].Path})
	if err != nil || page.More || len(page.Entries) != 1 || page.Entries[0].Path != "b" {
		t.Fatalf("%+v, %v", page, err)
	}
	var rest bytes.Buffer
	if err := client.ReadFileFrom(t.Context(), guestwire.ReadRequest{Path: "b", Offset: 7}, &rest); err != nil || rest.String() != "789" {
		t.Errorf("%q, %v", rest.String(), err)
	}
	if err := client.MoveFile(t.Context(), guestwire.MoveRequest{From: "b", To: "c"}); err != nil {
		t.Error(err)
	}
	if err := client.RemoveFile(t.Context(), guestwire.RemoveRequest{Path: "b"}); !workbench.HasCode(err, workbench.CodeNotFound) {
		t.Errorf("removing what has moved: %v", err)
	}
	for _, bad := range []guestwire.MoveRequest{{From: "a", To: "a"}, {From: "a", To: "a/b"}, {From: "../a", To: "b"}, {From: "a", To: "/b"}} {
		if err := client.MoveFile(t.Context(), bad); !workbench.HasCode(err, workbench.CodePathInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// TestHostileListing: a guest that lists what was not asked for is not believed.
func TestHostileListing(t *testing.T) {
	file := func(p guestwire.Path) guestwire.Entry {
		return guestwire.Entry{Path: p, Type: guestwire.TypeFile, Size: 1}
	}
	for name, tree := range map[string][]guestwire.Entry{
		"out of order":   {file("b"), file("a")},
		"twice":          {file("a"), file("a")},
		"deeper":         {file("a/b")},
		"outside":        {file("../a")},
		"a size below 0": {{Path: "a", Type: guestwire.TypeFile, Size: -1}},
		"no kind":        {{Path: "a"}},
	} {
		client := MustServe(t, &scriptedGuest{tree: slices.Clone(tree)})()
		if _, err := client.ListFiles(t.Context(), guestwire.ListRequest{Limit: 10}); !workbench.HasCode(err, workbench.CodeGuestProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
