package verify

import (
	"context"
	"slices"
	"strings"

	"github.com/workbenchdev/workbench/internal/sandbox/oci"
)

// Bite is one line of the table of broken profiles.
type Bite struct {
	Row, Profile string
	Kind         oci.Kind
	Expect       Outcome
}

// Bites is the table.
func Bites() []Bite {
	var out []Bite
	for _, b := range bites {
		out = append(out, Bite{Row: b.row, Profile: b.profile.name, Kind: b.kind, Expect: b.expect})
	}
	return out
}

// Broken runs rows in sandboxes of a profile. It also names those whose check
// could not be completed, which says nothing about the sandbox.
func Broken(ctx context.Context, o Options, name string, rows []string) (results []Result, unfinished []string, err error) {
	i := slices.IndexFunc(bites, func(b bite) bool { return b.profile.name == name })
	s, err := openScene(ctx, o, bites[i].profile)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range table {
		if !slices.Contains(rows, r.id) {
			continue
		}
		result := s.run(ctx, r)
		if strings.HasPrefix(result.Why, incomplete) {
			unfinished = append(unfinished, r.id)
		}
		results = append(results, result)
	}
	return results, unfinished, s.close(context.WithoutCancel(ctx))
}

// Rows are the ids of the table.
func Rows() (ids []string) {
	for _, r := range table {
		ids = append(ids, r.id)
	}
	return ids
}

// Blind says why no profile makes a row fail; "" when that is not said.
func Blind(id string, kind oci.Kind) string { return blind[id].why(kind) }

// Tried reports whether a row does anything on this host.
func Tried(id string) bool {
	i := slices.IndexFunc(table, func(r row) bool { return r.id == id })
	return !table[i].untried
}
