package workbench

import (
	"encoding/json"
	"slices"
	"time"
)

// ReuseMode says whether a run becomes a version of a series once it has succeeded.
type ReuseMode string

// The modes.
const (
	ReuseAuto ReuseMode = "auto" // it does, if it can be run again
	ReuseOff  ReuseMode = "off"  // it does not
)

// ReuseRequest is what a submission says of its reuse. The zero value is ReuseAuto
// and a new series.
type ReuseRequest struct {
	Mode     ReuseMode `json:"mode,omitempty"`
	SeriesID string    `json:"seriesId,omitempty"` // whose next version it becomes
}

// CheckReuse refuses what a submission cannot say of its reuse. Code: invalid_request,
// with the field.
func (s RunSpec) CheckReuse() error {
	const field = "reusableRun"
	r := s.ReusableRun
	switch {
	case r.Mode != "" && r.Mode != ReuseAuto && r.Mode != ReuseOff:
		return E(CodeInvalidRequest, "mode must be auto or off").WithField(field + ".mode")
	case r.SeriesID == "":
		return nil
	case r.Mode == ReuseOff:
		return E(CodeInvalidRequest, "a run that is to be no version continues no series").WithField(field + ".seriesId").
			WithHint("leave seriesId out, or mode off")
	case s.ContextID != "":
		return E(CodeInvalidRequest, "a cell is no version of a series: its context's variables are part of what it begins with").
			WithField(field + ".seriesId").WithHint("leave contextId out: a run is a fresh process")
	}
	if err := ParseID(KindSeries, r.SeriesID); err != nil {
		return AsError(err).WithField(field + ".seriesId")
	}
	return nil
}

// ReuseState is how far a run's reuse has come.
type ReuseState string

// The states.
const (
	ReusePending     ReuseState = "pending"      // the run has not ended
	ReuseReady       ReuseState = "ready"        // it is a version of its series
	ReuseNotReusable ReuseState = "not_reusable" // Reason says why it is none
	ReuseDeclined    ReuseState = "off"          // the submission wanted none
)

// The reasons why a run became no version: a closed list.
const (
	NotReusableOutcome = "not_succeeded"    // it did not succeed
	NotReusableCell    = "cell"             // its context's variables are part of what it began with
	NotReusableShared  = "shared_workspace" // other code changed the workspace meanwhile
	NotReusableCommit  = "no_commit"        // its workspace could not be committed
	NotReusableSeries  = "series_gone"      // its series was deleted
	NotReusableOlder   = "not_recorded"     // it ended under a server that knew of no series
)

// ReusableRun is what a receipt says of the run's reuse.
type ReusableRun struct {
	Mode     ReuseMode  `json:"mode"`
	State    ReuseState `json:"state"`
	Reason   string     `json:"reason,omitempty"`
	SeriesID string     `json:"seriesId,omitempty"` // of the version, or that it is to continue
	Version  int64      `json:"version,omitempty"`  // from 1
	// Of is the version that the run executes: of a replay, whose id ReplayID is, or
	// of a run by series.
	Of       *VersionRef `json:"of,omitempty"`
	ReplayID string      `json:"replayId,omitempty"`
}

// VersionRef names a version of a series.
type VersionRef struct {
	SeriesID string `json:"seriesId"`
	Version  int64  `json:"version"`
}

// ReuseOf is what a run's receipt says. had is what was admitted, r the run as it is.
func ReuseOf(had ReusableRun, r Run) ReusableRun {
	if had.Mode == ReuseOff {
		had.State = ReuseDeclined
		return had
	}
	had.Mode = ReuseAuto
	switch {
	case !r.Status.Terminal():
		had.State = ReusePending
	case had.Version != 0:
		had.State = ReuseReady
	default:
		had.State, had.Reason = ReuseNotReusable, NotReusable(r)
		if had.Reason == "" {
			had.Reason = NotReusableOlder
			if had.SeriesID != "" {
				had.Reason = NotReusableSeries
			}
		}
	}
	return had
}

// NotReusable says why a run that has ended can be no version, "" where it can.
func NotReusable(r Run) string {
	switch {
	case r.Status != StatusSucceeded:
		return NotReusableOutcome
	case r.ContextID != "":
		return NotReusableCell
	case r.CommitID == "":
		return NotReusableCommit
	case !r.Files.Exclusive:
		return NotReusableShared
	}
	return ""
}

// SeriesOf is the id of the series that a run begins: it is named for the run.
func SeriesOf(runID string) string {
	return string(KindSeries) + runID[len(KindRun):]
}

// Series is a program that can be run again, in versions. A version is a run that
// succeeded: its manifest does not change.
type Series struct {
	ID               string    `json:"id"`
	ProjectID        string    `json:"project"`
	TenantID         string    `json:"tenant"`
	UserID           string    `json:"user"`
	SessionID        string    `json:"session"`  // of its first version
	Versions         int64     `json:"versions"` // the last label given
	PublishedVersion int64     `json:"publishedVersion"`
	CreatedAt        time.Time `json:"createdAt"`
	// Publications are what was published, the newest first; the last MaxPublications.
	Publications []Publication `json:"publications"`
}

// MaxPublications bounds those that a series shows.
const MaxPublications = 100

// Owner is whom the series belongs to.
func (s Series) Owner() Owner {
	return Owner{ProjectID: s.ProjectID, TenantID: s.TenantID, UserID: s.UserID, SessionID: s.SessionID}
}

// Publication is one change of the published version.
type Publication struct {
	Version         int64     `json:"version"`
	PreviousVersion int64     `json:"previousVersion"` // 0: none was published
	Rollback        bool      `json:"rollback"`
	ReplayID        string    `json:"replayId,omitempty"` // that matched; of a publication
	By              string    `json:"by"`                 // user
	At              time.Time `json:"at"`
}

// SeriesVersion is one version: a run, and what it began with.
type SeriesVersion struct {
	SeriesID    string     `json:"seriesId"`
	Version     int64      `json:"version"`
	RunID       string     `json:"runId"`
	SessionID   string     `json:"sessionId"`
	Published   bool       `json:"published"`             // now
	PublishedAt *time.Time `json:"publishedAt,omitempty"` // first; it is kept since then
	CreatedAt   time.Time  `json:"createdAt"`
	Manifest    Manifest   `json:"manifest"`
}

// Manifest is what a run began with: the same again is the same run.
type Manifest struct {
	InputRoot   string       `json:"inputRoot"` // of the workspace, selected files included
	Image       string       `json:"image"`
	Packages    []PackageSet `json:"packages"`
	Size        string       `json:"size"`
	Revision    int64        `json:"revision"` // of the session's configuration
	Language    Language     `json:"language"`
	Lane        Lane         `json:"lane"`
	TimeoutMs   int64        `json:"timeoutMs"`
	CodeSHA256  string       `json:"codeSha256,omitempty"` // contents: only to who may read them
	Args        []string     `json:"args,omitempty"`
	EnvNames    []string     `json:"envNames,omitempty"` // their values are sealed
	StdinSHA256 string       `json:"stdinSha256,omitempty"`
}

// ReplayTools says what a replay does where the original called a tool.
type ReplayTools string

// The ways. No tool is ever called by a replay.
const (
	ReplayRefuses  ReplayTools = "refuse"   // a version that called tools is not replayed
	ReplayRecorded ReplayTools = "recorded" // its receipts are served back, in order
)

// Verdict is the outcome of a replay.
type Verdict string

// The verdicts.
const (
	VerdictNone    Verdict = ""        // the run has not ended
	VerdictMatches Verdict = "matches" // every stable fact is the same
	VerdictDiffers Verdict = "differs" // Facts says in what
)

// Replay runs a version again, in a fresh sandbox with the very workspace that it
// began with, and compares.
type Replay struct {
	ID        string      `json:"id"`
	ProjectID string      `json:"project"`
	TenantID  string      `json:"tenant"`
	UserID    string      `json:"user"`
	SeriesID  string      `json:"seriesId"`
	Version   int64       `json:"version"`
	RunID     string      `json:"runId"` // of the replay
	SessionID string      `json:"sessionId"`
	Tools     ReplayTools `json:"tools"`
	Verdict   Verdict     `json:"verdict,omitempty"`
	Differs   []string    `json:"differs"` // names of facts
	CreatedAt time.Time   `json:"createdAt"`
	JudgedAt  *time.Time  `json:"judgedAt,omitempty"`
	// Facts are the comparison, to who may read contents, while both runs are there.
	Facts []FactPair `json:"facts,omitempty"`
}

// FactPair is one fact of both runs.
type FactPair struct {
	Name     string `json:"name"`
	Original string `json:"original"`
	Replay   string `json:"replay"`
	Same     bool   `json:"same"`
	Diff     string `json:"diff,omitempty"` // of text, from the original to the replay, as a unified diff
}

// The facts that a replay compares, and nothing else.
const (
	FactStatus    = "status" // terminal status
	FactExitCode  = "exitCode"
	FactOutputs   = "outputs"   // digests of what was shown (tables, images, values), in order
	FactStdout    = "stdout"    // digest of what was captured
	FactStderr    = "stderr"    // likewise
	FactResult    = "result"    // digest of the structured result
	FactBytes     = "bytes"     // written to both streams
	FactArtifacts = "artifacts" // paths and digests of retained files
)

// RunFacts are the stable facts of a run, each as text that is the same where the fact
// is.
type RunFacts map[string]string

// Facts lists their names, in the order that they are told in.
func Facts() []string {
	return []string{FactStatus, FactExitCode, FactOutputs, FactStdout, FactStderr, FactResult, FactBytes, FactArtifacts}
}

// Compare compares the facts of a run with those of its replay.
func (f RunFacts) Compare(replay RunFacts) (pairs []FactPair, verdict Verdict) {
	verdict = VerdictMatches
	for _, name := range Facts() {
		p := FactPair{Name: name, Original: f[name], Replay: replay[name], Same: f[name] == replay[name]}
		if !p.Same {
			verdict = VerdictDiffers
		}
		pairs = append(pairs, p)
	}
	return pairs, verdict
}

// DifferingFacts are the names of those that are not the same.
func DifferingFacts(pairs []FactPair) []string {
	out := []string{}
	for _, p := range pairs {
		if !p.Same {
			out = append(out, p.Name)
		}
	}
	return out
}

// StartedReplay is the answer to StartReplay.
type StartedReplay struct {
	Replay
	Repeated bool // the key named an earlier identical request, whose replay it is
}

// StartReplay asks for a replay.
type StartReplay struct {
	Version        int64       // 0: the last
	Tools          ReplayTools // "": ReplayRefuses
	IdempotencyKey string
	Trail          *AuditEntry // as of SubmitRun
}

// PublishVersion asks for another published version.
type PublishVersion struct {
	Version  int64 // 0, of a rollback alone: the one published before
	Expected int64 // published now, as the caller believes; 0: none
	Rollback bool  // to one that was published before: it needs no replay again
	Trail    AuditEntry
}

// RunVersion asks for a run of a version with other inputs. What is nil is as the
// version has it.
type RunVersion struct {
	Version        int64 // 0: the published one
	Args           *[]string
	Env            map[string]string // beside the version's; the same name counts here
	Stdin          *string
	TimeoutMs      int64
	Artifacts      []ArtifactSelect // put into the workspace
	Keep           *[]string
	IdempotencyKey string
	Trail          *AuditEntry // as of SubmitRun
}

// Spec is the version's submission with the other inputs.
func (v RunVersion) Spec(had RunSpec) RunSpec {
	if v.Args != nil {
		had.Args = *v.Args
	}
	if len(v.Env) > 0 {
		env := map[string]string{}
		for _, from := range []map[string]string{had.Env, v.Env} {
			for name, value := range from {
				env[name] = value
			}
		}
		had.Env = env
	}
	if v.Stdin != nil {
		had.Stdin = *v.Stdin
	}
	if v.TimeoutMs != 0 {
		had.TimeoutMs = v.TimeoutMs
	}
	if v.Keep != nil {
		had.Keep = slices.Clone(*v.Keep)
	}
	had.Artifacts = v.Artifacts
	return had
}

// MarshalReuse writes what is stored of a run's reuse; "" is the zero value.
func MarshalReuse(r ReusableRun) string {
	r.State, r.Reason, r.Version = "", "", 0
	if r.Mode == ReuseAuto {
		r.Mode = ""
	}
	if r == (ReusableRun{}) {
		return ""
	}
	b, err := json.Marshal(r)
	if err != nil {
		panic("workbench: it always marshals: " + err.Error())
	}
	return string(b)
}
