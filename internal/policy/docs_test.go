package policy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/policy"
)

// Every rule that the documents print can be put as printed.
func TestRulesOfTheDocuments(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages (%v)", err)
	}
	n := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range strings.Split(string(text), "```cedar\n")[1:] {
			rules, _, _ := strings.Cut(part, "\n```")
			n++
			if set, problems := policy.Compile([]workbench.Rule{{Name: "r", Text: rules}}); set == nil || len(problems) > 0 {
				t.Errorf("%s: %+v in\n%s", page, problems, rules)
			}
		}
	}
	if n < 4 {
		t.Errorf("found %d blocks of rules", n)
	}
}
