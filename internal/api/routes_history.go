package api

import (
	"bufio"
	"net/http"
	"time"

	"github.com/workbenchdev/workbench"
)

const (
	tarType  = "application/x-tar"
	diffType = "text/x-diff"
)

// The parameters of what is found in a tree.
var (
	treePathParam  = Param{Name: "path", Doc: "exact path in the workspace; a leading /mnt/files/ or ./ is left out", Kind: TextParam}
	directoryParam = Param{Name: "path", Doc: "exact path of a directory in the workspace; without it, and for ., / and /mnt/files, the workspace itself", Kind: TextParam}
	treeBytesParam = Param{Name: "pathBase64", Doc: "the path's bytes in standard base64, for a name that is not UTF-8", Kind: TextParam, Max: 6 << 10}
	recursiveParam = Param{Name: "recursive", Doc: "also what is in directories below; default false", Kind: TextParam, Enum: []string{"true", "false"}}
)

var tarReplies = []Reply{{Status: http.StatusOK, Doc: "A tar archive (PAX) with exact names, modes, times and links. One that was cut off has no end mark.",
	Types: []string{tarType}, Headers: []string{"Content-Disposition"}}}

var (
	commitErrors  = []workbench.Code{workbench.CodeCommitGone, workbench.CodeCorrupt, workbench.CodeKeyUnavailable}
	contentErrors = append([]workbench.Code{workbench.CodePathInvalid, workbench.CodePathConflict, workbench.CodeRangeInvalid, workbench.CodeVersionMismatch}, commitErrors...)
	diffReplies   = []Reply{{Status: http.StatusOK, Doc: "A page of what differs, in order of path; with Accept: text/x-diff all of it as a patch that git applies, if nothing in it is binary or too large.",
		Body: workbench.Comparison{}, Types: []string{diffType}}}
	diffErrors = append([]workbench.Code{workbench.CodeNotAcceptable, workbench.CodeConflict}, commitErrors...)
)

const diffWords = "Text is compared line by line, up to 1 MiB on either side; of what is binary or larger, sizes and digests are told."

func historyRoutes() []Route {
	ofCommit := func(r Route) Route {
		r.Method, r.Tag, r.Target, r.Scope = http.MethodGet, "history", workbench.KindCommit, workbench.ScopeRead
		return r
	}
	return []Route{
		{
			Method: http.MethodGet, Pattern: base + "/sessions/{id}/commits", ID: "listCommits", Tag: "history", Target: workbench.KindSession,
			Summary: "List a session's commits, newest first", Description: "Each is the workspace after a run, or after a change from outside. They stay as long as the session's receipts.",
			Scope: workbench.ScopeRead, Admin: AdminReads, handle: listCommits, Params: []Param{limitParam, cursorParam},
			Replies: []Reply{ok("A page of commits.", SessionList[workbench.Commit]{})},
		},
		ofCommit(Route{
			Pattern: base + "/commits/{id}", ID: "getCommit", Summary: "Read a commit", Admin: AdminReads, handle: getCommit,
			Replies: []Reply{ok("The commit.", workbench.Commit{})}, Errors: commitErrors,
		}),
		ofCommit(Route{
			Pattern: base + "/commits/{id}/tree", ID: "listCommitTree", Summary: "List the files of a commit",
			Description: "What is in one directory, in order of the names' bytes; with recursive=true everything below it, a directory before what is in it.",
			Admin:       AdminReads, handle: listCommitTree, Params: []Param{directoryParam, treeBytesParam, recursiveParam, limitParam, cursorParam},
			Replies: []Reply{ok("A page of entries.", workbench.List[workbench.TreeEntry]{})},
			Errors:  append([]workbench.Code{workbench.CodePathInvalid, workbench.CodePathConflict}, commitErrors...),
		}),
		ofCommit(Route{
			Pattern: base + "/commits/{id}/content", ID: "readCommitFile", Summary: "Download a file of a commit", Description: "Ranges are supported. Links are never followed.",
			Admin: AdminContents, Action: "file.download", handle: readCommitFile, Headers: rangeHeaders, Params: []Param{treePathParam, treeBytesParam},
			Replies: contentReplies, Errors: contentErrors,
		}),
		ofCommit(Route{
			Pattern: base + "/commits/{id}/tar", ID: "downloadCommit", Summary: "Download all files of a commit", Admin: AdminContents, Action: "commit.download",
			handle: downloadCommit, Replies: tarReplies, Errors: commitErrors,
		}),
		ofCommit(Route{
			Pattern: base + "/commits/{id}/diff", ID: "compareCommit", Summary: "Compare a commit with an earlier one", Description: diffWords,
			Admin: AdminContents, Action: "commit.compare", handle: compareCommit,
			Params:  []Param{{Name: "from", Doc: "the commit to compare with; default its parent", Kind: TextParam}, limitParam, cursorParam},
			Replies: diffReplies, Errors: diffErrors,
		}),
		{
			Method: http.MethodGet, Pattern: base + "/runs/{id}/diff", ID: "compareRun", Tag: "history", Target: workbench.KindRun,
			Summary: "See what a run changed", Description: "From the workspace it began with, selected files included, to the one it left. Where it is not exclusive, others changed the workspace meanwhile too. " + diffWords,
			Scope: workbench.ScopeRead, Admin: AdminContents, Action: "run.compare", handle: compareRun, Params: []Param{limitParam, cursorParam},
			Replies: diffReplies, Errors: diffErrors,
		},
		{
			Method: http.MethodPost, Pattern: base + "/sessions/{id}/rollback", ID: "rollBackSession", Tag: "history", Target: workbench.KindSession,
			Summary: "Go back to an earlier workspace", Description: "A new commit with the old tree: nothing of the history is lost. Files alone go back; the answer says whether the memory of contexts was kept. Refused while any run is not terminal.",
			Scope: workbench.ScopeExecute, Admin: AdminNever, Action: "session.rollback", Body: RollbackRequest{}, handle: rollBack,
			Replies: []Reply{ok("The session, with its new commit.", RolledBack{})},
			Errors: append([]workbench.Code{workbench.CodeRunsActive, workbench.CodeVersionMismatch, workbench.CodeConflict, workbench.CodeWorkspaceFull, workbench.CodeSessionClosed,
				workbench.CodeSessionExpired}, commitErrors...),
		},
		{
			Method: http.MethodPost, Pattern: base + "/sessions/{id}/fork", ID: "forkSession", Tag: "history", Target: workbench.KindSession,
			Summary: "Make a new session from a commit of this one", Description: "Of the same owner, with the files of the commit, of the run, or of the last commit; contents are shared, not copied. Runs, contexts, memory and retained files stay behind. Works also when the session has ended.",
			Scope: workbench.ScopeExecute, Admin: AdminNever, Action: "session.fork", Body: ForkRequest{}, OptionalBody: true, handle: fork,
			Replies: []Reply{{Status: http.StatusCreated, Doc: "The new session.", Body: workbench.Session{}, Headers: []string{"Location", "ETag"}}},
			Errors:  append([]workbench.Code{workbench.CodeConflict, workbench.CodeWorkspaceFull, workbench.CodeQuotaExceeded, workbench.CodeImageNotFound, workbench.CodeSizeUnavailable, workbench.CodeCapacity}, commitErrors...),
		},
	}
}

func listCommits(c *call) error {
	s, err := c.s.o.Engine.Session(c.ctx, c.p, c.id)
	if err != nil {
		return err
	}
	list, err := c.s.o.Engine.Commits(c.ctx, c.p, c.id, c.q.page())
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, ofSession(s, wholeList(list, wholeCommit)))
}

func getCommit(c *call) error {
	commit, err := c.s.o.Engine.Commit(c.ctx, c.p, c.id)
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, wholeCommit(commit))
}

func listCommitTree(c *call) error {
	q, err := c.treeQuery()
	if err != nil {
		return err
	}
	list, err := c.s.o.Engine.CommitTree(c.ctx, c.p, c.id, q)
	if err != nil {
		return err
	}
	list.Items = whole(list.Items)
	return c.json(http.StatusOK, list)
}

// treeQuery is what the parameters ask for of a tree; no path is its root.
func (c *call) treeQuery() (workbench.TreeQuery, error) {
	q := workbench.TreeQuery{Recursive: c.q.text("recursive") == "true", Page: c.q.page()}
	var err error
	q.Path, err = workbench.WorkspaceDirectory("path", c.q.text("path"), c.q.text("pathBase64"))
	return q, err
}

// treePath is the one path that the parameters name.
func (c *call) treePath() (string, error) {
	if !c.q.has("path") && !c.q.has("pathBase64") {
		return "", invalid("path", "the parameter path is required").WithHint("add ?path=…, or ?pathBase64=… for a name that is not UTF-8")
	}
	return workbench.WorkspacePath("path", c.q.text("path"), c.q.text("pathBase64"))
}

func readCommitFile(c *call) error {
	path, err := c.treePath()
	if err != nil {
		return err
	}
	entry, content, err := c.s.o.Engine.CommitFile(c.ctx, c.p, c.id, path)
	if err != nil {
		return err
	}
	return c.content(baseName(path), octetStream, entry.SHA256, content)
}

func downloadCommit(c *call) error {
	write, err := c.s.o.Engine.CommitTar(c.ctx, c.p, c.id)
	if err != nil {
		return err
	}
	return c.archive(write)
}

// archive sends a tar archive named for what it is of. A failure on the way
// cuts the connection: the archive must not look whole.
func (c *call) archive(write archiveWriter) error {
	h := c.w.Header()
	h.Set("Content-Type", tarType)
	h.Set("Content-Disposition", Attachment(c.id+".tar"))
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	h.Set("Cache-Control", "private, no-store")
	if c.r.Method == http.MethodHead {
		c.w.WriteHeader(http.StatusOK)
		return nil
	}
	out := bufio.NewWriterSize(c.w, 64<<10)
	err := write(out)
	if err == nil {
		err = out.Flush()
	}
	if err != nil && c.w.status != 0 {
		return c.w.cutOff(err)
	}
	return err
}

func compareCommit(c *call) error {
	from := c.q.text("from")
	if c.q.has("from") {
		if err := workbench.ParseID(workbench.KindCommit, from); err != nil {
			return workbench.AsError(err).WithField("from")
		}
	}
	return c.compare(func() (workbench.Compared, error) { return c.s.o.Engine.CompareCommits(c.ctx, c.p, c.id, from) })
}

func compareRun(c *call) error {
	return c.compare(func() (workbench.Compared, error) { return c.s.o.Engine.CompareRun(c.ctx, c.p, c.id) })
}

// compare answers with a page, or with all pages as one patch.
func (c *call) compare(load func() (workbench.Compared, error)) error {
	accept := c.r.Header.Values("Accept")
	asJSON, asText := quality(accept, "application/json"), quality(accept, diffType)
	if len(accept) > 0 && asJSON <= 0 && asText <= 0 {
		return workbench.E(workbench.CodeNotAcceptable, "a comparison comes as application/json or %s", diffType).WithField("Accept").
			WithHint("send Accept: application/json, or %s", diffType)
	}
	at := c.q.page()
	pages, err := load()
	if err != nil {
		return err
	}
	first, err := pages(c.ctx, at)
	if err != nil {
		return err
	}
	if asText <= asJSON {
		first.RunIDs, first.Items = whole(first.RunIDs), whole(first.Items)
		return c.json(http.StatusOK, first)
	}
	c.w.Header().Set("Content-Type", diffType+"; charset=utf-8")
	for p := first; ; {
		for _, d := range p.Items {
			if _, err := c.w.Write([]byte(d.Diff)); err != nil {
				return c.w.cutOff(err)
			}
		}
		if at.Cursor = p.Next; at.Cursor == "" {
			return nil
		}
		if p, err = pages(c.ctx, at); err != nil {
			return c.w.cutOff(err)
		}
	}
}

func rollBack(c *call) error {
	b := c.body.(*RollbackRequest)
	if err := checkIDs(b.Commit, b.Run); err != nil {
		return err
	}
	if b.ExpectedHead != "" {
		if err := workbench.ParseID(workbench.KindCommit, b.ExpectedHead); err != nil {
			return workbench.AsError(err).WithField("expectedHead")
		}
	}
	done, err := c.s.o.Engine.RollBack(c.ctx, c.p, c.id, workbench.RollBack{CommitID: b.Commit, RunID: b.Run, ExpectedHead: b.ExpectedHead})
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, RolledBack{Session: wholeSession(done.Session), Commit: wholeCommit(done.Commit), Memory: done.Memory})
}

// checkIDs checks the two ways to name a commit.
func checkIDs(commit, run string) error {
	if commit != "" {
		if err := workbench.ParseID(workbench.KindCommit, commit); err != nil {
			return workbench.AsError(err).WithField("commit")
		}
	}
	if run != "" {
		if err := workbench.ParseID(workbench.KindRun, run); err != nil {
			return workbench.AsError(err).WithField("run")
		}
	}
	if commit != "" && run != "" {
		return invalid("run", "commit and run both name what to take").WithHint("send one of them")
	}
	return nil
}

func fork(c *call) error {
	b := c.body.(*ForkRequest)
	if err := checkIDs(b.Commit, b.Run); err != nil {
		return err
	}
	if err := checkLabels(b.Labels); err != nil {
		return err
	}
	r := workbench.ForkSession{CommitID: b.Commit, RunID: b.Run, Agent: b.Agent, Labels: b.Labels, Limits: b.Limits.request(), Size: b.Size, Image: b.Image}
	if b.TTLMs != nil {
		if err := workbench.InRange("ttlMs", *b.TTLMs, workbench.MinSessionTTL.Milliseconds(), workbench.MaxSessionTTL.Milliseconds()); err != nil {
			return err
		}
		r.TTL = time.Duration(*b.TTLMs) * time.Millisecond
	}
	s, err := c.s.o.Engine.Fork(c.ctx, c.p, c.id, r)
	if err != nil {
		return err
	}
	c.note("session", s.ID)
	c.w.Header().Set("Location", base+"/sessions/"+s.ID)
	return c.session(http.StatusCreated, s)
}
