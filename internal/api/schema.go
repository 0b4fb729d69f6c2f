package api

import (
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/workbenchdev/workbench"
)

const schemaPrefix = "#/components/schemas/"

// Lists are never null here, and a field's name is exactly its name. huma keeps
// both as package variables; nothing else in the module uses huma.
func init() {
	huma.DefaultArrayNullable = false
	huma.ValidateStrictCasing = true
}

// newRegistry makes a registry that knows the closed lists of the domain.
func newRegistry() huma.Registry {
	r := huma.NewMapRegistry(schemaPrefix, huma.DefaultSchemaNamer)
	alias[workbench.Status, statusSchema](r)
	alias[workbench.Reason, reasonSchema](r)
	alias[workbench.Language, languageSchema](r)
	alias[workbench.Lane, laneSchema](r)
	alias[workbench.Stream, streamSchema](r)
	alias[workbench.Encoding, encodingSchema](r)
	alias[workbench.SessionKind, sessionKindSchema](r)
	alias[workbench.SessionState, sessionStateSchema](r)
	alias[workbench.KeyKind, keyKindSchema](r)
	alias[workbench.Scope, scopeSchema](r)
	alias[workbench.ArtifactOrigin, originSchema](r)
	alias[workbench.Change, changeSchema](r)
	alias[workbench.LogKind, logKindSchema](r)
	alias[workbench.SessionEventKind, sessionEventKindSchema](r)
	alias[workbench.Code, codeSchema](r)
	alias[workbench.ContextState, contextStateSchema](r)
	alias[workbench.LossReason, lossReasonSchema](r)
	alias[workbench.LostContextPolicy, lostContextSchema](r)
	alias[workbench.ResultType, resultTypeSchema](r)
	alias[workbench.AppKind, appKindSchema](r)
	alias[workbench.AuthKind, authKindSchema](r)
	alias[workbench.ToolState, toolStateSchema](r)
	alias[workbench.CallStatus, callStatusSchema](r)
	alias[workbench.ApprovalState, approvalStateSchema](r)
	alias[workbench.ReuseMode, reuseModeSchema](r)
	alias[workbench.ReuseState, reuseStateSchema](r)
	alias[workbench.ReplayTools, replayToolsSchema](r)
	alias[workbench.Verdict, verdictSchema](r)
	alias[workbench.UsageGroup, usageGroupSchema](r)
	return r
}

func alias[T, Schema any](r huma.Registry) {
	r.RegisterTypeAlias(reflect.TypeFor[T](), reflect.TypeFor[Schema]())
}

// refTo registers T under its name and returns a reference to it.
func refTo[T any](r huma.Registry, name string) *huma.Schema {
	if _, ok := r.Map()[name]; !ok {
		s := huma.SchemaFromType(r, reflect.TypeFor[T]())
		r.Map()[name] = s
	}
	return &huma.Schema{Ref: schemaPrefix + name}
}

func enum[T ~string](values ...T) *huma.Schema {
	s := &huma.Schema{Type: huma.TypeString}
	for _, v := range values {
		s.Enum = append(s.Enum, string(v))
	}
	s.PrecomputeMessages()
	return s
}

type (
	statusSchema       struct{}
	reasonSchema       struct{}
	languageSchema     struct{}
	laneSchema         struct{}
	streamSchema       struct{}
	encodingSchema     struct{}
	sessionKindSchema  struct{}
	sessionStateSchema struct{}
	keyKindSchema      struct{}
	scopeSchema        struct{}
	originSchema       struct{}
	changeSchema       struct{}
	logKindSchema      struct{}
	codeSchema         struct{}

	sessionEventKindSchema struct{}
	contextStateSchema     struct{}
	lossReasonSchema       struct{}
	lostContextSchema      struct{}
	resultTypeSchema       struct{}
	appKindSchema          struct{}
	authKindSchema         struct{}
	toolStateSchema        struct{}
	callStatusSchema       struct{}
	approvalStateSchema    struct{}
	reuseModeSchema        struct{}
	reuseStateSchema       struct{}
	replayToolsSchema      struct{}
	verdictSchema          struct{}
	usageGroupSchema       struct{}
)

func (appKindSchema) Schema(huma.Registry) *huma.Schema    { return enum(workbench.AppKinds()...) }
func (authKindSchema) Schema(huma.Registry) *huma.Schema   { return enum(workbench.AuthKinds()...) }
func (callStatusSchema) Schema(huma.Registry) *huma.Schema { return enum(workbench.CallStatuses()...) }
func (toolStateSchema) Schema(huma.Registry) *huma.Schema {
	return enum(workbench.ToolCurrent, workbench.ToolSuperseded, workbench.ToolWithdrawn)
}
func (approvalStateSchema) Schema(huma.Registry) *huma.Schema {
	return enum(workbench.ApprovalPending, workbench.ApprovalApproved, workbench.ApprovalDenied, workbench.ApprovalExpired, workbench.ApprovalRevoked)
}

func (reuseModeSchema) Schema(huma.Registry) *huma.Schema {
	return enum(workbench.ReuseAuto, workbench.ReuseOff)
}
func (reuseStateSchema) Schema(huma.Registry) *huma.Schema {
	return enum(workbench.ReusePending, workbench.ReuseReady, workbench.ReuseNotReusable, workbench.ReuseDeclined)
}
func (replayToolsSchema) Schema(huma.Registry) *huma.Schema {
	return enum(workbench.ReplayRefuses, workbench.ReplayRecorded)
}
func (usageGroupSchema) Schema(huma.Registry) *huma.Schema {
	return enum(workbench.UsageGroups()...)
}
func (verdictSchema) Schema(huma.Registry) *huma.Schema {
	return enum(workbench.VerdictMatches, workbench.VerdictDiffers)
}

func (statusSchema) Schema(huma.Registry) *huma.Schema { return enum(workbench.Statuses()...) }
func (reasonSchema) Schema(huma.Registry) *huma.Schema { return enum(workbench.Reasons()...) }
func (languageSchema) Schema(huma.Registry) *huma.Schema {
	return enum(workbench.Languages()...)
}
func (laneSchema) Schema(huma.Registry) *huma.Schema {
	return enum(workbench.LaneForeground, workbench.LaneBackground)
}
func (streamSchema) Schema(huma.Registry) *huma.Schema {
	return enum(workbench.Stdout, workbench.Stderr)
}
func (encodingSchema) Schema(huma.Registry) *huma.Schema {
	return enum(workbench.EncodingUTF8, workbench.EncodingBase64)
}
func (sessionKindSchema) Schema(huma.Registry) *huma.Schema {
	return enum(workbench.SessionPersonal, workbench.SessionBusiness)
}
func (sessionStateSchema) Schema(huma.Registry) *huma.Schema {
	return enum(workbench.SessionActive, workbench.SessionClosed, workbench.SessionExpired)
}
func (keyKindSchema) Schema(huma.Registry) *huma.Schema {
	return enum(workbench.KeyDirect, workbench.KeyEmbedded, workbench.KeyAdmin)
}
func (scopeSchema) Schema(huma.Registry) *huma.Schema {
	return enum(workbench.ScopeExecute, workbench.ScopeRead, workbench.ScopeApprove, workbench.ScopeManage)
}
func (originSchema) Schema(huma.Registry) *huma.Schema {
	return enum(workbench.OriginUpload, workbench.OriginSave, workbench.OriginKeep, workbench.OriginOverflow, workbench.OriginResult, workbench.OriginExpiry, workbench.OriginTool)
}
func (changeSchema) Schema(huma.Registry) *huma.Schema {
	return enum(workbench.ChangeAdded, workbench.ChangeModified, workbench.ChangeRemoved)
}
func (logKindSchema) Schema(huma.Registry) *huma.Schema {
	return enum(workbench.LogStatus, workbench.LogOutput, workbench.LogResult, workbench.LogFile, workbench.LogFiles, workbench.LogCall, workbench.LogTerminal)
}
func (sessionEventKindSchema) Schema(huma.Registry) *huma.Schema {
	return enum(workbench.SessionEventKinds()...)
}
func (codeSchema) Schema(huma.Registry) *huma.Schema {
	var codes []workbench.Code
	for _, c := range workbench.ErrorTable() {
		codes = append(codes, c.Code)
	}
	return enum(codes...)
}
func (contextStateSchema) Schema(huma.Registry) *huma.Schema {
	return enum(workbench.ContextStates()...)
}
func (lossReasonSchema) Schema(huma.Registry) *huma.Schema { return enum(workbench.LossReasons()...) }
func (lostContextSchema) Schema(huma.Registry) *huma.Schema {
	return enum(workbench.LostContextFail, workbench.LostContextRestart)
}
func (resultTypeSchema) Schema(huma.Registry) *huma.Schema { return enum(workbench.ResultTypes()...) }
