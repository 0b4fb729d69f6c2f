package faults_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// scenario is what one client does: every kind of write the server makes. When
// enough, if it is given, says so in the middle, it comes to an end.
func (w *world) scenario(ctx context.Context, name string, enough func() bool) error {
	c := w.client(w.key)
	s, err := again(ctx, func() (workbench.Session, error) {
		return c.CreateAgentSession(ctx, sdk.CreateSession{Agent: name})
	})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	content := []byte("input of " + name)
	up, err := again(ctx, func() (workbench.Artifact, error) {
		return c.UploadSessionArtifact(ctx, s.ID, sdk.Upload{Name: "in.txt"}, bytes.NewReader(content))
	})
	if err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	w.mu.Lock()
	w.files[up.ID] = digest(content)
	w.mu.Unlock()
	code := `tr a-z A-Z < in.txt; for i in 1 2 3 4; do echo "$i"; sleep 0.03; done; echo kept > out.txt; workbench save out.txt`
	first, err := w.submitTwice(ctx, c, s.ID, name+"-1", code, up.ID)
	if err != nil {
		return fmt.Errorf("submit: %w", err)
	}
	if err := w.submitAnother(ctx, c, s.ID, name+"-1"); err != nil {
		return fmt.Errorf("submit another body: %w", err)
	}
	second, err := w.submit(ctx, c, s.ID, name+"-2", "cat out.txt; echo second")
	if err != nil {
		return fmt.Errorf("submit: %w", err)
	}
	third, err := w.submit(ctx, c, s.ID, name+"-3", "sleep 30")
	if err != nil {
		return fmt.Errorf("submit: %w", err)
	}
	for _, run := range []string{first, second} {
		if _, err := w.wait(ctx, c, run); err != nil {
			return fmt.Errorf("wait: %w", err)
		}
	}
	if _, err := again(ctx, func() (workbench.Run, error) { return c.CancelRun(ctx, third) }); err != nil {
		return fmt.Errorf("cancel: %w", err)
	}
	if _, err := w.wait(ctx, c, third); err != nil {
		return fmt.Errorf("wait: %w", err)
	}
	if enough == nil || !enough() {
		if err := w.startOver(ctx, c, s.ID, name, up.ID); err != nil {
			return err
		}
	}
	_, err = again(ctx, func() (workbench.Session, error) { return c.CloseAgentSession(ctx, s.ID) })
	if err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// startOver restarts the session and goes on in it.
func (w *world) startOver(ctx context.Context, c *sdk.Client, session, name, upload string) error {
	if _, err := again(ctx, func() (workbench.Session, error) {
		return c.RestartAgentSession(ctx, session, sdk.RestartSession{Artifacts: []workbench.ArtifactSelect{{ID: upload}}, CancelActive: true})
	}); err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	if err := w.race(ctx, c, session, name+"-4", name+"-5"); err != nil {
		return fmt.Errorf("race: %w", err)
	}
	return nil
}

// race submits two runs to a session at the same time and waits for both.
func (w *world) race(ctx context.Context, c *sdk.Client, session string, keys ...string) error {
	var racing errgroup.Group
	for _, key := range keys {
		racing.Go(func() error {
			run, err := w.submit(ctx, c, session, key, "cat in.txt; ls")
			if err == nil {
				_, err = w.wait(ctx, c, run)
			}
			return err
		})
	}
	return racing.Wait()
}

// submitTwice submits one run from two clients at the same time.
func (w *world) submitTwice(ctx context.Context, c *sdk.Client, session, key, code string, selected ...string) (string, error) {
	var other errgroup.Group
	other.Go(func() error {
		_, err := w.submit(ctx, c, session, key, code, selected...)
		return err
	})
	run, err := w.submit(ctx, c, session, key, code, selected...)
	return run, errors.Join(err, other.Wait())
}

// submitAnother submits something else under a key that is taken.
func (w *world) submitAnother(ctx context.Context, c *sdk.Client, session, key string) error {
	run, err := w.submit(ctx, c, session, key, "echo another")
	if workbench.HasCode(err, workbench.CodeIdempotencyReused) {
		return nil
	}
	return fmt.Errorf("answered with %q, %w", run, err)
}

// mustRun runs a short program in a session of its own; it must succeed.
func (w *world) mustRun(ctx context.Context, key string) string {
	w.t.Helper()
	c := w.client(w.key)
	s, err := c.CreateAgentSession(ctx, sdk.CreateSession{})
	if err != nil {
		w.t.Fatal(err)
	}
	run, err := w.submit(ctx, c, s.ID, key, "echo done")
	if err != nil {
		w.t.Fatal(err)
	}
	r, err := w.wait(ctx, c, run)
	if err != nil || r.Status != workbench.StatusSucceeded {
		w.t.Fatalf("%s %s %v\n%s", r.Status, r.Reason, err, w.log())
	}
	return run
}
