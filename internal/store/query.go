package store

import (
	"encoding/base64"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
)

// query builds a SELECT whose conditions depend on the caller. Values are
// always bound, never written into the text.
type query struct {
	text strings.Builder
	args []any
}

func newQuery(text string) *query {
	q := &query{}
	q.text.WriteString(text)
	return q
}

// add appends text in which each "?" stands for the next value.
func (q *query) add(text string, values ...any) *query {
	for _, v := range values {
		before, after, _ := strings.Cut(text, "?")
		q.text.WriteString(before)
		q.args = append(q.args, v)
		q.text.WriteByte('$')
		q.text.WriteString(strconv.Itoa(len(q.args)))
		text = after
	}
	q.text.WriteString(text)
	return q
}

// in appends the values in parentheses, as a list to look for a column in.
func (q *query) in(values []string) *query {
	before := "("
	for _, v := range values {
		q.add(before+"?", v)
		before = ", "
	}
	return q.add(")")
}

// visible appends what workbench.Principal.MaySee demands of a row of the
// table (or alias) t; session is the row's session id column.
func (q *query) visible(p workbench.Principal, t, session string) *query {
	if p.System() {
		return q
	}
	q.add(" AND "+t+".project_id = ?", p.ProjectID)
	if p.SessionID != "" {
		q.add(" AND "+t+"."+session+" = ?", p.SessionID)
	}
	if !p.Admin() {
		q.add(" AND "+t+".tenant_id = ? AND "+t+".user_id = ?", p.TenantID, p.UserID)
	}
	return q
}

// between appends a half-open range of creation times; zero times are open.
func (q *query) between(column string, since, until time.Time) *query {
	if !since.IsZero() {
		q.add(" AND "+column+" >= ?", micros(since))
	}
	if !until.IsZero() {
		q.add(" AND "+column+" < ?", micros(until))
	}
	return q
}

func (q *query) String() string { return q.text.String() }

// placeholders writes n rows of width bound values for a VALUES clause.
func placeholders(n, width int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('(')
		for j := range width {
			if j > 0 {
				b.WriteByte(',')
			}
			b.WriteByte('$')
			b.WriteString(strconv.Itoa(i*width + j + 1))
		}
		b.WriteByte(')')
	}
	return b.String()
}

// pageLimit is the number of items a page asks for.
func pageLimit(page workbench.Page) (int, error) {
	if page.Limit == 0 {
		return workbench.DefaultPageLimit, nil
	}
	if err := workbench.InRange("limit", int64(page.Limit), 1, workbench.MaxPageLimit); err != nil {
		return 0, err
	}
	return page.Limit, nil
}

// cursorVersion begins every cursor, so that a later form can tell an older one.
const cursorVersion = "1"

// encodeCursor hides a position in a list: the key of the last item given out.
func encodeCursor(list, key string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(cursorVersion + ":" + list + ":" + key))
}

// decodeCursor gives the key back, "" for the first page. A cursor of another
// list or version, and anything else, is invalid_request naming cursor.
func decodeCursor(list, cursor string) (string, error) {
	if cursor == "" {
		return "", nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(cursor)
	if err == nil {
		if key, ok := strings.CutPrefix(string(raw), cursorVersion+":"+list+":"); ok && key != "" {
			return key, nil
		}
	}
	return "", workbench.E(workbench.CodeInvalidRequest, "cursor is not one this list gave out").WithField("cursor").
		WithHint("send nextCursor of the previous page unchanged, or leave cursor out to start again")
}

// listing is a page under way.
type listing struct {
	name  string
	limit int
	after string // key of the last item of the previous page
}

func newListing(name string, page workbench.Page) (listing, error) {
	limit, err := pageLimit(page)
	if err != nil {
		return listing{}, err
	}
	after, err := decodeCursor(name, page.Cursor)
	return listing{name: name, limit: limit, after: after}, err
}

// newest appends keyset conditions for lists from the newest id to the oldest:
// items made later come before the first page and move nothing.
func (l listing) newest(q *query, column string) {
	if l.after != "" {
		q.add(" AND "+column+" < ?", l.after)
	}
	q.add(" ORDER BY "+column+" DESC LIMIT ?", l.limit+1)
}

// page cuts the extra item that says there is more.
func page[T any](l listing, items []T, key func(T) string) workbench.List[T] {
	out := workbench.List[T]{Items: items}
	if len(items) > l.limit {
		out.Items = items[:l.limit]
		out.NextCursor = encodeCursor(l.name, key(out.Items[l.limit-1]))
	}
	return out
}

// toJSON writes a column of plain data; these types always marshal.
func toJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic("store: a column always marshals: " + err.Error())
	}
	return string(b)
}

func fromJSON(text string, v any) error {
	if text == "" {
		return nil
	}
	return json.Unmarshal([]byte(text), v)
}

// list makes a nil slice an empty one: lists are never null.
func list[T any](v []T) []T {
	if v == nil {
		return []T{}
	}
	return v
}
