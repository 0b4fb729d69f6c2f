package audit_test

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/audit"
	"github.com/workbenchdev/workbench/internal/store"
)

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func mustTrail(t *testing.T) (*audit.Trail, *store.DB, *bytes.Buffer) {
	t.Helper()
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "workbench.db"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	var log bytes.Buffer
	return audit.New(db, func() time.Time { return noon }, slog.New(slog.NewTextHandler(&log, nil))), db, &log
}

var ann = workbench.Principal{ProjectID: "prj_1", TenantID: "ten_1", UserID: "usr_1", KeyID: "key_1", KeyKind: workbench.KeyDirect, RequestID: "req_1", Address: "192.0.2.7"}

func TestARowSaysWhoDidWhatAndHowItEnded(t *testing.T) {
	trail, _, _ := mustTrail(t)
	if err := trail.Record(t.Context(), ann, "run.submit", "run_1", nil, map[string]any{"queued": 3}); err != nil {
		t.Fatal(err)
	}
	if err := trail.Record(t.Context(), ann, "artifact.download", "art_1", workbench.ErrNotFound("artifact"), nil); err != nil {
		t.Fatal(err)
	}
	list, err := trail.List(t.Context(), ann, workbench.AuditFilter{}, workbench.Page{})
	if err != nil || len(list.Items) != 2 {
		t.Fatalf("%d rows (%v), want 2", len(list.Items), err)
	}
	refused, done := list.Items[0], list.Items[1]
	if refused.Action != "artifact.download" || refused.Target != "art_1" || refused.Outcome != "not_found" || refused.Detail != nil {
		t.Errorf("the refusal reads %+v", refused)
	}
	if done.Outcome != "ok" || string(done.Detail) != `{"queued":3}` || !done.At.Equal(noon) || done.TenantID != "ten_1" || done.UserID != "usr_1" ||
		done.KeyID != "key_1" || done.Address != "192.0.2.7" || done.RequestID != "req_1" {
		t.Errorf("the row reads %+v", done)
	}
}

func TestARequestThatWasGivenUpIsRecorded(t *testing.T) {
	trail, _, _ := mustTrail(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := trail.Record(ctx, ann, "run.submit", "run_1", context.Canceled, nil); err != nil {
		t.Fatal(err)
	}
	list, err := trail.List(t.Context(), ann, workbench.AuditFilter{}, workbench.Page{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Outcome != "internal" {
		t.Fatalf("rows %+v (%v), want one", list.Items, err)
	}
}

func TestARowTheDatabaseDidNotTakeIsReportedAndLogged(t *testing.T) {
	trail, db, log := mustTrail(t)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	err := trail.Record(t.Context(), ann, "key.create", "key_2", nil, nil)
	if !workbench.HasCode(err, workbench.CodeUnavailable) {
		t.Fatalf("error %v, want unavailable", err)
	}
	for _, part := range []string{"key.create", "key_2", "key_1", "req_1"} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("the log %q does not name %s", log.String(), part)
		}
	}
}
