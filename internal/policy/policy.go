package policy

import (
	"encoding/json"
	"time"

	"github.com/workbenchdev/workbench"
)

// Identity is a user with the tenant and group he acts in. What is empty is not
// there: a rule that speaks of it does not match, or errs and fails closed.
type Identity struct {
	ProjectID  string
	TenantID   string
	TenantName string
	UserID     string
	UserName   string
	GroupID    string
	GroupName  string
}

// Request is one question. Which fields count is the action's; a request that
// lacks one its action needs is answered closed.
type Request struct {
	Action    Action
	Principal Identity
	Requester *Identity // approve and approveRun: whose call or run it is

	Tool       *workbench.Tool       // call, requireApproval and approve
	Connection *workbench.Connection // nil: without
	Args       json.RawMessage       // of the call: a JSON object whose names are unique
	// AnyArguments, of call only, asks whether it would be allowed for some
	// arguments. Args are not looked at.
	AnyArguments bool

	Session  *workbench.Session
	RunID    string             // holdRun and approveRun
	Language workbench.Language // of the run
	Lane     workbench.Lane

	Service string            // use: one of Services
	Detail  map[string]string // use: such as model or package

	Host   string // fetch; case and a final dot do not count
	Scheme string
	Port   int
	Method string
	Path   string
}

// Decision is the answer. It is the same for the same rules and request.
type Decision struct {
	// Allowed, at a gate: the approval is required.
	Allowed bool
	// Rules that decided, sorted, never nil: the permits of what is allowed, the
	// forbids of what is denied or exempted.
	Rules []string
	// Errors are what could not be evaluated, as "<rule>: <why>", sorted; past 20,
	// the last says how many more there are. They hold no argument's value.
	Errors []string
	// Expiry and Why are those of an approval that is required: the shortest
	// @expiry of the rules that ask for it, or the default, and their @why.
	Expiry time.Duration
	Why    string
	// Denied says in a few words why access is denied, "" if it is not.
	Denied string
}

// Problem is something wrong with a rule.
type Problem struct {
	Rule    string `json:"rule"`             // its name
	Policy  string `json:"policy,omitempty"` // the policy's id; "" if it is not a policy's, or not known
	Line    int    `json:"line,omitempty"`   // from 1, within the rule's text; of a policy, where it begins; 0: not known
	Column  int    `json:"column,omitempty"` // from 1, in characters
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"` // what to do
	Warning bool   `json:"warning"`        // the rules can be used in spite of it
}

// Set is the compiled rules of one project. It does not change and is safe for
// concurrent use. A nil Set answers everything closed.
type Set struct {
	policies map[string]*policy // by id
	byAction map[Action]*index
}

// Compile compiles the rules of one project and validates them against the
// schema. If any problem is more than a warning there is no set.
func Compile(rules []workbench.Rule) (*Set, []Problem) {
	c := newCompiler()
	for _, r := range rules {
		c.rule(r)
	}
	c.undecidable()
	if c.failed {
		return nil, c.problems
	}
	return c.set(), c.problems
}
