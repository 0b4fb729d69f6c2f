package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cedar-policy/cedar-go"

	"github.com/workbenchdev/workbench"
)

// question is a request in Cedar's terms.
type question struct {
	request  cedar.Request
	entities cedar.EntityMap
	around   []cedar.EntityUID // principal, resource and all they are in
	form     form
}

// newQuestion fails if the request lacks what its action needs, or its arguments
// cannot be converted. The errors name no argument's value.
func newQuestion(r Request) (question, error) {
	q := question{entities: cedar.EntityMap{}}
	q.request.Action = r.Action.uid()
	q.request.Principal = q.user(r.Principal)
	context := cedar.RecordMap{}
	if r.Session != nil {
		context["session"] = sessionRecord(*r.Session)
	}
	var err error
	switch r.Action {
	case ActionCall, ActionRequireApproval, ActionApprove:
		err = q.tool(r, context)
	case ActionHoldRun, ActionApproveRun:
		q.run(r)
	case ActionUse:
		err = q.service(r, context)
	case ActionFetch:
		err = q.host(r, context)
	default:
		err = fmt.Errorf("there is no action %q", r.Action)
	}
	if err != nil {
		return q, err
	}
	if r.Action == ActionApprove || r.Action == ActionApproveRun {
		if r.Requester == nil {
			return q, errors.New("it is not known who asks")
		}
		requester := cedar.NewEntityUID(userType, cedar.String(r.Requester.UserID))
		if requester != q.request.Principal { // who decides about his own is who he is now
			requester = q.user(*r.Requester)
		}
		context["requester"] = requester
	}
	q.request.Context = cedar.NewRecord(context)
	return q, nil
}

// user adds a principal and what he is in.
func (q *question) user(i Identity) cedar.EntityUID {
	attributes := cedar.RecordMap{"id": cedar.String(i.UserID), "name": cedar.String(i.UserName), "tenant": cedar.String(i.TenantName)}
	if i.GroupID != "" || i.GroupName != "" {
		attributes["group"] = cedar.String(i.GroupName)
	}
	return q.add(userType, i.UserID, attributes, named(
		cedar.NewEntityUID(groupType, cedar.String(i.GroupID)),
		cedar.NewEntityUID(tenantType, cedar.String(i.TenantID)),
		cedar.NewEntityUID(projectType, cedar.String(i.ProjectID)),
	)...)
}

// named leaves out what has no id.
func named(uids ...cedar.EntityUID) []cedar.EntityUID {
	return slices.DeleteFunc(uids, func(uid cedar.EntityUID) bool { return uid.ID == "" })
}

// add adds an entity, with everything that it is in. What it is in has no
// attributes, and is not added: there is nothing to look up.
func (q *question) add(t cedar.EntityType, id string, attributes cedar.RecordMap, in ...cedar.EntityUID) cedar.EntityUID {
	uid := cedar.NewEntityUID(t, cedar.String(id))
	q.entities[uid] = cedar.Entity{UID: uid, Attributes: cedar.NewRecord(attributes), Parents: cedar.NewEntityUIDSet(in...)}
	q.around = append(append(q.around, uid), in...)
	return uid
}

func (q *question) tool(r Request, context cedar.RecordMap) error {
	t := r.Tool
	if t == nil {
		return errors.New("it is not known which tool")
	}
	q.request.Resource = q.add(toolType, t.Name, cedar.RecordMap{
		"name":        cedar.String(t.Name),
		"app":         cedar.String(t.App),
		"version":     cedar.String(t.Version),
		"digest":      cedar.String(t.Digest),
		"readOnly":    cedar.Boolean(t.Annotations.ReadOnly),
		"destructive": cedar.Boolean(t.Annotations.Destructive),
		"idempotent":  cedar.Boolean(t.Annotations.Idempotent),
		"openWorld":   cedar.Boolean(t.Annotations.OpenWorld),
	}, named(cedar.NewEntityUID(appType, cedar.String(t.App)))...)
	connected(r, context)
	inRun := running(r, context)
	if !r.AnyArguments {
		args, ceil, err := arguments(r.Args)
		context["args"], context["ceil"] = args, ceil
		return err
	}
	if r.Action != ActionCall {
		return fmt.Errorf("%s depends on the arguments", r.Action)
	}
	// Nothing looks at what is within: the form has no conditions on it left.
	context["args"], context["ceil"] = cedar.Record{}, cedar.Record{}
	q.form = anyCall
	if inRun {
		q.form = anyArgs
	}
	return nil
}

func (q *question) run(r Request) {
	q.request.Resource = q.add(runType, r.RunID, cedar.RecordMap{
		"language": cedar.String(r.Language), "lane": cedar.String(r.Lane),
	})
}

func (q *question) service(r Request, context cedar.RecordMap) error {
	if !slices.Contains(Services(), r.Service) {
		return fmt.Errorf("there is no service %q", r.Service)
	}
	q.request.Resource = q.add(serviceType, r.Service, cedar.RecordMap{"name": cedar.String(r.Service)})
	running(r, context)
	context["detail"] = stringRecord(r.Detail)
	return nil
}

func (q *question) host(r Request, context cedar.RecordMap) error {
	name := hostName(r.Host)
	if name == "" {
		return errors.New("it is not known which host")
	}
	q.request.Resource = q.add(hostType, name, cedar.RecordMap{
		"name": cedar.String(name), "scheme": cedar.String(strings.ToLower(r.Scheme)), "port": cedar.Long(r.Port),
	})
	running(r, context)
	connected(r, context)
	context["method"], context["path"] = cedar.String(strings.ToUpper(r.Method)), cedar.String(r.Path)
	return nil
}

// hostName is the form in which hosts are compared: DNS knows no case, and a
// final dot only says that a name is whole.
func hostName(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }

// running adds the run, and reports whether there is one.
func running(r Request, context cedar.RecordMap) bool {
	if r.Language == "" && r.Lane == "" {
		return false
	}
	context["run"] = cedar.NewRecord(cedar.RecordMap{"language": cedar.String(r.Language), "lane": cedar.String(r.Lane)})
	return true
}

func connected(r Request, context cedar.RecordMap) {
	if c := r.Connection; c != nil {
		context["connection"] = cedar.NewRecord(cedar.RecordMap{
			"id": cedar.String(c.ID), "alias": cedar.String(c.Alias),
			"provider": cedar.String(c.Provider), "scope": cedar.String(c.Scope()),
		})
	}
}

func sessionRecord(s workbench.Session) cedar.Record {
	return cedar.NewRecord(cedar.RecordMap{
		"id": cedar.String(s.ID), "kind": cedar.String(s.Kind), "agent": cedar.String(s.Agent), "labels": stringRecord(s.Labels),
	})
}

func stringRecord(values map[string]string) cedar.Record {
	m := make(cedar.RecordMap, len(values))
	for name, v := range values {
		m[cedar.String(name)] = cedar.String(v)
	}
	return cedar.NewRecord(m)
}
