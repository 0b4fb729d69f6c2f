package engine

import (
	"context"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/workspace"
)

// addFor is how long a commit outside a run's end is tried while the database
// does not answer. Whoever asked for it waits meanwhile.
const addFor = 3 * time.Second

// doubtful is a commit of which it is not known whether it was made.
type doubtful struct {
	commit string
	tree   workspace.Tree
	behind bool // the sandbox has the tree of the commit before it
}

// add makes a commit the session's next one. behind is as in doubtful. After an
// error that leaves it open whether the commit was made, certain finds that out
// before the head is used again. The caller holds c.mu, and advances.
func (c *compute) add(ctx context.Context, commit workbench.Commit, refs []string, tree workspace.Tree, behind bool) error {
	ctx, cancel := context.WithTimeout(ctx, addFor)
	defer cancel()
	open := false
	err := c.e.stubbornly(ctx, "commit", func() error {
		_, err := c.e.o.Store.CreateCommit(ctx, commit, c.epoch, refs)
		code := workbench.CodeOf(err)
		open = open || err != nil && (code == workbench.CodeCancelled || workbench.ClassOf(code).HTTP >= 500)
		return err
	}, func() bool { return false })
	if err == nil || !open {
		return err
	}
	c.doubt = &doubtful{commit.ID, tree, behind}
	if made, looked := c.settleDoubt(ctx); looked == nil && made {
		return nil
	}
	return err
}

// settleDoubt finds out whether a commit was made of which that is not known,
// and reports whether it was.
func (c *compute) settleDoubt(ctx context.Context) (made bool, err error) {
	head, ok, err := c.e.o.Store.HeadCommit(ctx, c.id)
	if err != nil {
		return false, err
	}
	made = ok && head.ID == c.doubt.commit
	c.doubt = nil
	return made, nil
}

// certain makes sure that head is the session's last commit, before it is built
// on. The caller holds c.mu.
func (c *compute) certain(ctx context.Context) error {
	d := c.doubt
	if d == nil {
		return nil
	}
	made, err := c.settleDoubt(ctx)
	if err != nil || !made || c.head == d.commit {
		return err
	}
	c.succeed(d.tree, d.commit)
	c.base = "" // what the sandbox was last compared with is another tree
	if d.behind {
		c.dropFor(ctx, workbench.LossSandbox)
	}
	return nil
}

// succeed advances to a commit outside a run's end: what those changed that are
// out went into it, too. The caller holds c.mu.
func (c *compute) succeed(tree workspace.Tree, commit string) {
	for x := range c.out {
		x.shared = true
	}
	c.advance(tree, commit, nil)
}
