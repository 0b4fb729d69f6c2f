package workbench

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"sort"
)

// FingerprintVersion is stored beside each fingerprint, so that a later rule
// cannot change what an old key means.
const FingerprintVersion = 1

// MaxIdempotencyKeyBytes bounds an idempotency key.
const MaxIdempotencyKeyBytes = 255

// SelectedContent is a selected artifact as the fingerprint counts it: by the
// digest of its contents and its path in the workspace.
type SelectedContent struct {
	SHA256 string `json:"sha256"`
	Path   string `json:"path"`
}

// Fingerprint is the digest that says whether two submissions are the same
// job: canonical JSON of what was sent, defaults left out. Session, revision
// and transport are not part of it.
func Fingerprint(spec RunSpec, selected []SelectedContent, defaults Limits) string {
	selected = append([]SelectedContent(nil), selected...)
	sort.Slice(selected, func(i, j int) bool { return selected[i].Path < selected[j].Path })
	timeout, output := spec.TimeoutMs, spec.OutputBytes
	if timeout == defaults.TimeoutMs && !spec.Background || timeout == MaxBackgroundTimeout.Milliseconds() && spec.Background {
		timeout = 0
	}
	if output == defaults.OutputBytes {
		output = 0
	}
	onLost := spec.OnLost
	if onLost == LostContextFail {
		onLost = ""
	}
	reuse := spec.ReusableRun
	if reuse.Mode == ReuseAuto {
		reuse.Mode = ""
	}
	// Struct fields are marshalled in order and map keys sorted, so this is
	// canonical without a library.
	b, err := json.Marshal(struct {
		Version   int               `json:"v"`
		Language  Language          `json:"language"`
		Code      string            `json:"code"`
		Args      []string          `json:"args,omitempty"`
		Env       map[string]string `json:"env,omitempty"`
		Stdin     string            `json:"stdin,omitempty"`
		TimeoutMs int64             `json:"timeoutMs,omitempty"`
		Output    int64             `json:"outputBytes,omitempty"`
		Selected  []SelectedContent `json:"artifacts,omitempty"`
		Keep      []string          `json:"keep,omitempty"`
		Aside     bool              `json:"background,omitempty"`
		Context   string            `json:"contextId,omitempty"`
		OnLost    LostContextPolicy `json:"onLostContext,omitempty"`
		Reuse     ReuseRequest      `json:"reusableRun,omitzero"`
		Of        *VersionRef       `json:"of,omitempty"`
		Replay    *ReplayOf         `json:"replay,omitempty"`
	}{FingerprintVersion, spec.Language, spec.Code, spec.Args, spec.Env, spec.Stdin, timeout, output, selected, spec.Keep, spec.Background, spec.ContextID, onLost, reuse, spec.Of, spec.Replay})
	if err != nil {
		panic("workbench: a run spec always marshals: " + err.Error())
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
