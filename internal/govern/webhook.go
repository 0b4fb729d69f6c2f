package govern

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/workbenchdev/workbench"
)

// Webhook is told of every call that waits for a decision, at least once, until
// it answers with a status of 200 to 299 or the call waits no more. Its secret
// signs what it gets, as Standard Webhooks (standardwebhooks.com) has it.
type Webhook struct {
	URL    string
	Secret []byte        // empty: unsigned
	Again  time.Duration // until the second try; doubled with every one, up to 10 min. By default 10 s
	client *http.Client
}

// secretPrefix begins a secret as Standard Webhooks writes it: base64 follows.
const secretPrefix = "whsec_"

// NewWebhook checks the address, and reads the secret: what follows whsec_ is
// base64, anything else is the secret itself. Code: invalid_request.
func NewWebhook(address string, secret []byte) (*Webhook, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, workbench.E(workbench.CodeInvalidRequest, "the webhook must be an http or https URL").WithField("approval-webhook")
	}
	if coded, ok := bytes.CutPrefix(secret, []byte(secretPrefix)); ok {
		if secret, err = base64.StdEncoding.DecodeString(string(coded)); err != nil || len(secret) == 0 {
			return nil, workbench.E(workbench.CodeInvalidRequest, "what follows %s in the webhook's secret must be base64", secretPrefix).WithField("approval-webhook-secret-file")
		}
	}
	return &Webhook{URL: address, Secret: secret, Again: tellAgain, client: &http.Client{Timeout: 10 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}, nil
}

// Notice is the body of a webhook: who waits for a decision about what. It holds
// no arguments: who decides reads them with a key.
type Notice struct {
	Type      string    `json:"type"` // approval.requested
	Timestamp time.Time `json:"timestamp"`
	Data      struct {
		ReceiptID  string    `json:"receiptId"`
		SessionID  string    `json:"sessionId"`
		RunID      string    `json:"runId"`
		Project    string    `json:"project"`
		Tenant     string    `json:"tenant"` // names, as the operator or client gives them
		User       string    `json:"user"`
		Tool       string    `json:"tool"`
		Version    string    `json:"version"`
		Connection string    `json:"connection,omitempty"`
		Arguments  string    `json:"argumentsDigest"`
		Why        string    `json:"why,omitempty"`
		ExpiresAt  time.Time `json:"expiresAt"`
	} `json:"data"`
}

// Bounds of telling.
const (
	tellAgain   = 10 * time.Second
	tellAtMost  = 10 * time.Minute
	tellAtOnce  = 20
	maxHookRead = 64 * 1024
)

// Tell tells the webhook of what waits and has not been told. The server calls it
// over and over.
func (g *Governor) Tell(ctx context.Context) error {
	if g.o.Webhook == nil {
		return nil
	}
	waiting, err := g.o.Store.ClaimNotices(ctx, g.now(), g.o.Webhook.Again, tellAtMost, tellAtOnce)
	if err != nil {
		return err
	}
	for _, r := range waiting {
		if err := g.tell(ctx, r); err != nil {
			g.log.Warn("the approval webhook was not told; it will be again", "receipt", r.ID, "err", err)
			continue
		}
		if err := g.o.Store.Told(ctx, r.ID); err != nil {
			return err
		}
	}
	return nil
}

func (g *Governor) tell(ctx context.Context, r workbench.ToolReceipt) error {
	who, err := g.identity(ctx, r.ProjectID, r.TenantID, r.UserID, "")
	if err != nil {
		return err
	}
	n := Notice{Type: "approval.requested", Timestamp: g.now().UTC().Truncate(time.Second)}
	d := &n.Data
	d.ReceiptID, d.SessionID, d.RunID, d.Project, d.Tenant, d.User = r.ID, r.SessionID, r.RunID, r.ProjectID, who.TenantName, who.UserName
	d.Tool, d.Version, d.Connection, d.Arguments = r.Tool, r.Version, r.Alias, r.ArgsDigest
	if r.Approval != nil {
		d.Why, d.ExpiresAt = r.Approval.Why, r.Approval.ExpiresAt
	}
	body, err := json.Marshal(n)
	if err != nil {
		return err
	}
	return g.o.Webhook.send(ctx, r.ID, n.Timestamp, body)
}

func (h *Webhook) send(ctx context.Context, id string, at time.Time, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL, bytes.NewReader(body))
	if err != nil {
		return err
	}
	stamp := strconv.FormatInt(at.Unix(), 10)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Webhook-Id", id)
	req.Header.Set("Webhook-Timestamp", stamp)
	if len(h.Secret) > 0 {
		sum := hmac.New(sha256.New, h.Secret)
		sum.Write([]byte(id + "." + stamp + ".")) // hash.Hash never fails
		sum.Write(body)
		req.Header.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(sum.Sum(nil)))
	}
	answer, err := h.client.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, _ = io.CopyN(io.Discard, answer.Body, maxHookRead) // so that the connection can be used again
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return fmt.Errorf("it answered %d", answer.StatusCode)
	}
	return nil
}
