package api

import (
	"net/http"

	"github.com/workbenchdev/workbench"
)

func artifactRoutes() []Route {
	return []Route{
		{
			Method: http.MethodPost, Pattern: base + "/sessions/{id}/artifacts", ID: "uploadArtifact", Tag: "artifacts",
			Summary: "Upload a file", Description: "The file as the body, with its name as a parameter and its type as Content-Type (without one, or with curl's default, it is guessed from the name); or multipart/form-data with one part \"file\" (and, before it, \"name\" and \"path\"). " +
				"An upload enters a workspace only when a run or restart selects it.",
			Scope: workbench.ScopeExecute, Admin: AdminNever, Target: workbench.KindSession, Action: "artifact.upload", Upload: true, handle: uploadArtifact,
			Params: []Param{
				{Name: "name", Doc: "the file's name; needed unless path or a multipart file name gives it", Kind: TextParam},
				{Name: "path", Doc: "where it goes in the workspace by default; default its name", Kind: TextParam},
			},
			Replies: []Reply{{Status: http.StatusCreated, Doc: "The retained file.", Body: workbench.Artifact{}, Headers: []string{"Location"}}},
			Errors: []workbench.Code{workbench.CodePathInvalid, workbench.CodeFileTooLarge, workbench.CodeQuotaExceeded, workbench.CodeSessionClosed,
				workbench.CodeSessionExpired, workbench.CodeUnsupportedMedia, workbench.CodeKeyUnavailable},
		},
		{
			Method: http.MethodGet, Pattern: base + "/sessions/{id}/artifacts", ID: "listArtifacts", Tag: "artifacts",
			Summary: "List a session's retained files", Scope: workbench.ScopeRead, Admin: AdminReads, Target: workbench.KindSession, handle: listArtifacts,
			Params:  []Param{limitParam, cursorParam},
			Replies: []Reply{ok("A page of retained files.", SessionList[workbench.Artifact]{})},
		},
		{
			Method: http.MethodGet, Pattern: base + "/artifacts/{id}", ID: "getArtifact", Tag: "artifacts",
			Summary: "Read a retained file's metadata", Scope: workbench.ScopeRead, Admin: AdminReads, Target: workbench.KindArtifact, handle: getArtifact,
			Replies: []Reply{ok("The retained file.", workbench.Artifact{})},
			Errors:  []workbench.Code{workbench.CodeArtifactDeleted, workbench.CodeArtifactExpired},
		},
		{
			Method: http.MethodGet, Pattern: base + "/artifacts/{id}/content", ID: "downloadArtifact", Tag: "artifacts",
			Summary: "Download a retained file", Description: "Needs authorisation each time. Ranges are supported. The file is served as an attachment that no browser runs.",
			Scope: workbench.ScopeRead, Admin: AdminContents, Target: workbench.KindArtifact, Action: "artifact.download", handle: downloadArtifact, Headers: rangeHeaders,
			Replies: contentReplies,
			Errors:  []workbench.Code{workbench.CodeArtifactDeleted, workbench.CodeArtifactExpired, workbench.CodeRangeInvalid, workbench.CodeVersionMismatch, workbench.CodeCorrupt, workbench.CodeKeyUnavailable},
		},
		{
			Method: http.MethodDelete, Pattern: base + "/artifacts/{id}", ID: "deleteArtifact", Tag: "artifacts",
			Summary: "Delete a retained file", Description: "Also after the session ended. A second delete answers 410.",
			Scope: workbench.ScopeExecute, Admin: AdminManages, Target: workbench.KindArtifact, Action: "artifact.delete", handle: deleteArtifact,
			Replies: []Reply{ok("What the file was.", workbench.Artifact{})},
			Errors:  []workbench.Code{workbench.CodeArtifactExpired, workbench.CodeArtifactDeleted},
		},
	}
}

func listArtifacts(c *call) error {
	s, err := c.s.o.Engine.Session(c.ctx, c.p, c.id)
	if err != nil {
		return err
	}
	list, err := c.s.o.Artifacts.List(c.ctx, c.p, c.id, c.q.page())
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, ofSession(s, wholeList(list, func(a workbench.Artifact) workbench.Artifact { return artifactFor(c.p, a) })))
}

func getArtifact(c *call) error {
	a, err := c.s.o.Artifacts.Get(c.ctx, c.p, c.id)
	if err != nil {
		return err
	}
	return c.artifact(http.StatusOK, a)
}

func deleteArtifact(c *call) error {
	a, err := c.s.o.Artifacts.Delete(c.ctx, c.p, c.id)
	if err != nil {
		return err
	}
	return c.artifact(http.StatusOK, a)
}

// artifact answers with a retained file and, if that can be told, where its
// session is: what was done must not be answered as failed.
func (c *call) artifact(status int, a workbench.Artifact) error {
	a = artifactFor(c.p, a)
	a.Session, _ = c.sessionRef(a.SessionID)
	return c.json(status, a)
}
