package verify

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
)

// Outcome is what a row found.
type Outcome string

// The outcomes.
const (
	Proved        Outcome = "proved"         // tried, and it held
	Failed        Outcome = "failed"         // tried, and it did not hold, or the try could not be completed
	Warned        Outcome = "warned"         // an old component or a setting that cannot be proved bad
	NotApplicable Outcome = "not applicable" // nothing here that could be tried
)

// Result is one row's line of the report.
type Result struct {
	ID      string  `json:"id"`
	Case    string  `json:"case"`
	Outcome Outcome `json:"outcome"`
	Why     string  `json:"why"`
	// Counted: a broken profile is known to make this row fail with this
	// driver, so that its "proved" means something.
	Counted bool  `json:"counted"`
	TookMs  int64 `json:"tookMs"`
}

// Report is what a verification found.
type Report struct {
	Driver  string   `json:"driver"`
	Runtime string   `json:"runtime"`
	Version string   `json:"version"`
	Rows    []Result `json:"rows"`
	TookMs  int64    `json:"tookMs"`
}

// Count counts the rows with an outcome.
func (r Report) Count(o Outcome) int {
	n := 0
	for _, row := range r.Rows {
		if row.Outcome == o {
			n++
		}
	}
	return n
}

// Proved counts the rows that are proved and known to notice a broken sandbox.
func (r Report) Proved() int {
	n := 0
	for _, row := range r.Rows {
		if row.Outcome == Proved && row.Counted {
			n++
		}
	}
	return n
}

// Options say what is verified.
type Options struct {
	Kind   oci.Kind
	Binary string // the runtime
	Guest  string // the guest binary
	Image  sandbox.Image
	// Bare is a runc for the profiles in which code meets the host's kernel;
	// only tests need it.
	Bare string
	// Rows are the ids to run; empty means all.
	Rows []string
	// KernelFlaws are known defects of this host's kernel by its version, in
	// words; empty when there are none.
	KernelFlaws string
	// Each is told every result as it comes.
	Each func(Result)
	Log  *slog.Logger // of the driver; default: discarded
}

// Known reports whether there is a row with that id.
func Known(id string) bool {
	return slices.ContainsFunc(table, func(r row) bool { return r.id == id })
}

// Cases are the rows, each with the name of what it tries.
func Cases() iter.Seq2[string, string] {
	return func(yield func(id, name string) bool) {
		for _, r := range table {
			if !yield(r.id, r.name) {
				return
			}
		}
	}
}

// Run runs rows against sandboxes as the server starts them. Rows that fail are
// in the report; an error means that nothing could be verified.
//
// Codes: invalid_request (an unknown row), those of starting a sandbox.
func Run(ctx context.Context, o Options) (Report, error) {
	for _, id := range o.Rows {
		if !Known(id) {
			return Report{}, workbench.E(workbench.CodeInvalidRequest, "there is no row %q", id).WithHint("workbench verify --list lists them")
		}
	}
	began := time.Now()
	s, err := openScene(ctx, o, shipped)
	if err != nil {
		return Report{}, err
	}
	report, err := s.report(ctx, o)
	report.TookMs = time.Since(began).Milliseconds()
	if closeErr := s.close(context.WithoutCancel(ctx)); err == nil {
		err = closeErr
	}
	return report, err
}

func (s *scene) report(ctx context.Context, o Options) (Report, error) {
	info, err := s.driver.Info(ctx)
	if err != nil {
		return Report{}, err
	}
	// A host on which no sandbox starts fails once, not in every row.
	if _, err := s.session(ctx, mainSession); err != nil {
		return Report{}, err
	}
	report := Report{Driver: info.Driver, Runtime: info.Runtime, Version: info.Version}
	for _, r := range table {
		if len(o.Rows) > 0 && !slices.Contains(o.Rows, r.id) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return report, workbench.E(workbench.CodeCancelled, "the verification was given up").Caused(err)
		}
		result := s.run(ctx, r)
		report.Rows = append(report.Rows, result)
		if o.Each != nil {
			o.Each(result)
		}
	}
	return report, nil
}

// incomplete begins the finding of a check that went wrong.
const incomplete = "the check could not be completed: "

// rowTimeout bounds one row, whatever happens inside.
const rowTimeout = 90 * time.Second

// run runs one row.
func (s *scene) run(ctx context.Context, r row) Result {
	began := time.Now()
	result := Result{ID: r.id, Case: r.name, Counted: counted(r.id, s.o.Kind)}
	ctx, cancel := context.WithTimeout(ctx, rowTimeout)
	defer cancel()
	f := r.check(ctx, s)
	result.Outcome, result.Why = f.outcome, f.why
	if f.broken {
		result.Why = incomplete + f.why
	}
	if result.Outcome == Proved && !result.Counted {
		result.Why = strings.TrimSuffix(result.Why, ".") + " (not counted: " + blind[r.id].why(s.o.Kind) + ")"
	}
	result.TookMs = time.Since(began).Milliseconds()
	return result
}

// row is one thing that hostile code tries.
type row struct {
	id, name string
	untried  bool // nothing is tried here: it says where, or why not
	check    func(ctx context.Context, s *scene) finding
}

// finding is what a check says.
type finding struct {
	outcome Outcome
	why     string
	broken  bool // the check itself went wrong: no statement about the sandbox
}

func proved(format string, args ...any) finding {
	return finding{outcome: Proved, why: fmt.Sprintf(format, args...)}
}

func failed(format string, args ...any) finding {
	return finding{outcome: Failed, why: fmt.Sprintf(format, args...)}
}

func warned(format string, args ...any) finding {
	return finding{outcome: Warned, why: fmt.Sprintf(format, args...)}
}

func notApplicable(format string, args ...any) finding {
	return finding{outcome: NotApplicable, why: fmt.Sprintf(format, args...)}
}

// broke is a check that went wrong. It counts as failed: what was not observed
// is not proved.
func broke(err error) finding {
	return finding{outcome: Failed, why: err.Error(), broken: true}
}
