package api_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"

	"github.com/workbenchdev/workbench"
)

func (e *standIn) CreateContext(ctx context.Context, p workbench.Principal, sessionID string, r workbench.CreateContext) (workbench.Context, bool, error) {
	c := workbench.Context{ID: r.ID, SessionID: sessionID, Language: r.Language, Dir: r.Dir, Handle: workbench.NewID(workbench.KindContext), CreatedAt: e.clock()}
	if c.ID == "" {
		c.ID = c.Handle
	}
	if c.Dir == "" {
		c.Dir = workbench.WorkspaceDir
	}
	if err := workbench.CheckContextID("id", c.ID); err != nil {
		return c, false, err
	}
	kept, made, err := e.db.CreateContext(ctx, p, c)
	if err == nil && !made && (kept.Language != c.Language || kept.Dir != c.Dir) {
		err = workbench.ErrContextExists()
	}
	return kept, made, err
}

func (e *standIn) Contexts(ctx context.Context, p workbench.Principal, sessionID string) ([]workbench.Context, error) {
	return e.db.Contexts(ctx, p, sessionID)
}

func (e *standIn) Context(ctx context.Context, p workbench.Principal, sessionID, id string) (workbench.Context, error) {
	if _, err := e.db.Session(ctx, p, sessionID); err != nil {
		return workbench.Context{}, err
	}
	return e.db.Context(ctx, p, sessionID, id)
}

func (e *standIn) DeleteContext(ctx context.Context, p workbench.Principal, sessionID, id string) (workbench.Context, error) {
	return e.db.DeleteContext(ctx, p, sessionID, id, e.clock())
}

func (e *standIn) RestartContext(ctx context.Context, p workbench.Principal, sessionID, id string, _ bool) (workbench.Context, error) {
	return e.db.RestartContext(ctx, p, sessionID, id, workbench.NewID(workbench.KindContext), e.clock())
}

func (e *standIn) InterruptContext(ctx context.Context, p workbench.Principal, sessionID, id string) (workbench.Interrupted, error) {
	c, err := e.Context(ctx, p, sessionID, id)
	return workbench.Interrupted{Context: c, Interrupted: c.RunID != "", RunID: c.RunID}, err
}

func (e *standIn) results(ctx context.Context, id string) ([]workbench.Result, error) {
	entries, err := e.db.Results(ctx, workbench.SystemPrincipal(), id)
	all := []workbench.Result{}
	for _, entry := range entries {
		r, err := workbench.ResultOf(entry)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, err
}

func (e *standIn) ResultForm(ctx context.Context, p workbench.Principal, id string, index int, mimeType string) (workbench.ResultContent, io.ReadSeekCloser, error) {
	if _, err := e.db.Run(ctx, p, id); err != nil {
		return workbench.ResultContent{}, nil, err
	}
	all, err := e.results(ctx, id)
	if err != nil {
		return workbench.ResultContent{}, nil, err
	}
	if index >= len(all) {
		return workbench.ResultContent{}, nil, workbench.ErrNotFound("result")
	}
	for only := range all[index].Data {
		if mimeType == "" {
			mimeType = only
		}
	}
	if all[index].Data[mimeType] == nil {
		return workbench.ResultContent{}, nil, workbench.ErrNotFound("result")
	}
	var text string
	if err := json.Unmarshal(all[index].Data[mimeType], &text); err != nil {
		return workbench.ResultContent{}, nil, err
	}
	raw := []byte(text)
	if !workbench.TextMIME(mimeType) {
		if raw, err = base64.StdEncoding.DecodeString(text); err != nil {
			return workbench.ResultContent{}, nil, err
		}
	}
	return workbench.ResultContent{Name: "result.bin", MIMEType: mimeType}, content{bytes.NewReader(raw)}, nil
}

// Show logs a result.
func (r *running) Show(result workbench.Result) {
	r.t.Helper()
	entry, err := result.Entry(r.run.ID, r.e.clock())
	if err != nil {
		r.t.Fatalf("result: %v", err)
	}
	var status *workbench.Status
	if r.seq == 2 {
		s := workbench.StatusRunning
		status = &s
	}
	r.seq++
	entry.Seq, entry.Length = r.seq, int64(len(entry.Data))
	if err := r.e.db.AppendLog(r.t.Context(), r.run.ID, r.epoch, 1, status, []workbench.LogEntry{entry}); err != nil {
		r.t.Fatalf("append: %v", err)
	}
}
