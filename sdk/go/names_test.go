package sdk_test

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// otherNames are the fields, of all that the client takes and gives, whose name
// in Go is not that in JSON: "Go name (types)" by the JSON name.
func otherNames() []string {
	found, seen := map[string][]string{}, map[reflect.Type]bool{}
	var visit func(t reflect.Type)
	visit = func(t reflect.Type) {
		if seen[t] {
			return
		}
		seen[t] = true
		switch t.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Array:
			visit(t.Elem())
		case reflect.Func: // an iterator's
			for i := range t.NumIn() {
				visit(t.In(i))
			}
		case reflect.Struct:
			if !strings.HasPrefix(t.PkgPath(), "github.com/workbenchdev/workbench") {
				return
			}
			for i := range t.NumField() {
				f := t.Field(i)
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				if f.IsExported() && name != "" && name != "-" && !strings.EqualFold(name, f.Name) {
					row := "`" + f.Name + "` | `" + name + "`"
					found[row] = append(found[row], "`"+t.Name()+"`")
				}
				visit(f.Type)
			}
		default:
		}
	}
	client := reflect.TypeFor[*sdk.Client]()
	for i := range client.NumMethod() {
		m := client.Method(i).Type
		for n := 1; n < m.NumIn(); n++ {
			visit(m.In(n))
		}
		for n := range m.NumOut() {
			visit(m.Out(n))
		}
	}
	var rows []string
	for row, types := range found {
		slices.Sort(types)
		rows = append(rows, fmt.Sprintf("| %s | %s |", row, strings.Join(slices.Compact(types), ", ")))
	}
	slices.Sort(rows)
	return rows
}

// TestNamesThatDiffer: docs/go.md lists every field whose name is another one in
// JSON, and no other.
func TestNamesThatDiffer(t *testing.T) {
	doc, err := os.ReadFile("../../docs/go.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(doc), "| in Go | in JSON | of |\n|---|---|---|\n")
	table, _, ends := strings.Cut(rest, "\n\n")
	if want := strings.Join(otherNames(), "\n"); !ok || !ends || table != want {
		t.Errorf("the table of docs/go.md is\n%s\nwant\n%s", table, want)
	}
}
