package policy

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/schema"
	"github.com/cedar-policy/cedar-go/x/exp/schema/resolved"
	"github.com/cedar-policy/cedar-go/x/exp/schema/validate"
)

//go:embed schema.cedarschema
var schemaText string

// Schema is the Cedar schema that rules are validated against, with comments.
func Schema() string { return schemaText }

// Action is what a request asks about.
type Action string

// The actions. Of the two gates, an answer of allowed means that somebody has
// to approve first.
const (
	ActionCall            Action = "call"
	ActionRequireApproval Action = "requireApproval" // gate
	ActionApprove         Action = "approve"
	ActionHoldRun         Action = "holdRun" // gate
	ActionApproveRun      Action = "approveRun"
	ActionUse             Action = "use"
	ActionFetch           Action = "fetch"
)

// Actions lists every action.
func Actions() []Action { return append(accessActions(), ActionRequireApproval, ActionHoldRun) }

func accessActions() []Action {
	return []Action{ActionCall, ActionApprove, ActionApproveRun, ActionUse, ActionFetch}
}

func (a Action) gate() bool { return a == ActionRequireApproval || a == ActionHoldRun }

func (a Action) uid() cedar.EntityUID { return cedar.NewEntityUID(actionType, cedar.String(a)) }

// Services lists what the action use may be about.
func Services() []string { return []string{"ai", "packages", "search"} }

// The entity types, as the schema has them.
const (
	actionType  cedar.EntityType = "Action"
	projectType cedar.EntityType = "Project"
	tenantType  cedar.EntityType = "Tenant"
	groupType   cedar.EntityType = "Group"
	userType    cedar.EntityType = "User"
	appType     cedar.EntityType = "App"
	toolType    cedar.EntityType = "Tool"
	runType     cedar.EntityType = "Run"
	serviceType cedar.EntityType = "Service"
	hostType    cedar.EntityType = "Host"
)

// vocabulary is the schema, ready for use.
type vocabulary struct {
	schema    *resolved.Schema
	validator *validate.Validator
}

// schemaOnce parses the embedded text; it fails only if the text is wrong, which
// no input can cause.
var schemaOnce = sync.OnceValue(func() vocabulary {
	var s schema.Schema
	s.SetFilename("schema.cedarschema")
	if err := s.UnmarshalCedar([]byte(schemaText)); err != nil {
		panic(fmt.Sprintf("policy: %v", err))
	}
	r, err := s.Resolve()
	if err != nil {
		panic(fmt.Sprintf("policy: %v", err))
	}
	return vocabulary{schema: r, validator: validate.New(r)}
})

// entityTypes lists the schema's, sorted.
func (v vocabulary) entityTypes() []string {
	var out []string
	for t := range v.schema.Entities {
		out = append(out, string(t))
	}
	slices.Sort(out)
	return out
}

// attributes tells what an entity type has, as "name, tenant, group (optional)".
func (v vocabulary) attributes(t cedar.EntityType) string {
	return describe(v.schema.Entities[t].Shape)
}

// context tells what the context of an action has.
func (v vocabulary) context(a Action) string {
	act, ok := v.schema.Actions[a.uid()]
	if !ok || act.AppliesTo == nil {
		return ""
	}
	return describe(act.AppliesTo.Context)
}

// describe lists the attributes of a record, sorted, with those of the records
// within.
func describe(r resolved.RecordType) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(r)) {
		s := string(name)
		if inner, ok := r[name].Type.(resolved.RecordType); ok {
			if len(inner) == 0 {
				s += ".…" // open
			} else {
				s += " {" + describe(inner) + "}"
			}
		}
		if r[name].Optional {
			s += " (optional)"
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}
