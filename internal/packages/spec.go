package packages

import (
	"regexp"
	"slices"
	"strings"

	"github.com/workbenchdev/workbench"
)

// Names and versions alone: no address, no path, no option, nothing that a package
// manager would take as more than a package of its registry.
var (
	pipSpec = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:\[[A-Za-z0-9._-]+(?:,[A-Za-z0-9._-]+)*\])?` +
		`(?:(?:===|==|!=|<=|>=|~=|<|>)[A-Za-z0-9.*+!_-]+(?:,(?:===|==|!=|<=|>=|~=|<|>)[A-Za-z0-9.*+!_-]+)*)?$`)
	npmSpec = regexp.MustCompile(`^(?:@[A-Za-z0-9][A-Za-z0-9._~-]*/)?[A-Za-z0-9][A-Za-z0-9._~-]*(?:@[A-Za-z0-9.^~<>=|*+ -]+)?$`)

	pipExact = regexp.MustCompile(`^[^=<>!~]+===?[^*,]+$`)
	npmExact = regexp.MustCompile(`.@\d+\.\d+\.\d+[A-Za-z0-9.+-]*$`)
)

// What the managers take as a file, whatever else it looks like, and npm as a
// directory.
var (
	pipFile = regexp.MustCompile(`(?i)\.(?:zip|whl|tgz|tbz|txz|tlz|tar|tar\.\w+)$`)
	npmFile = regexp.MustCompile(`(?i)@\.|\.(?:tgz|tar|tar\.gz)$`)
)

const maxSpec = 200 // bytes

// Check refuses what is no list of packages, and gives it as it is asked for: a
// request that means the same is the same. Code: packages_refused.
func Check(m workbench.PackageManager, specs []string) ([]string, error) {
	pattern, file, example := pipSpec, pipFile, "pandas or pandas==2.2.3"
	switch m {
	case workbench.PackagesPip:
	case workbench.PackagesNpm:
		pattern, file, example = npmSpec, npmFile, "lodash or lodash@4.17.21"
	default:
		return nil, workbench.E(workbench.CodeInvalidRequest, "there is no package manager %s", quote(string(m))).WithField("manager").WithHint("pip or npm")
	}
	if len(specs) == 0 || len(specs) > workbench.MaxPackagesAsked {
		return nil, workbench.E(workbench.CodeInvalidRequest, "%d packages are asked for, 1 to %d can be", len(specs), workbench.MaxPackagesAsked).
			WithField("packages").WithHint("such as %s", example)
	}
	out := make([]string, len(specs))
	for i, spec := range specs {
		if m == workbench.PackagesPip {
			spec = strings.Join(strings.Fields(spec), "")
		} else {
			spec = strings.TrimSpace(spec)
		}
		if len(spec) > maxSpec || !pattern.MatchString(spec) || file.MatchString(spec) {
			return nil, workbench.E(workbench.CodeInvalidRequest, "%s is no package of %s", quote(spec), m).WithField("packages").
				WithHint("a name, and a version or a range of them if it matters, such as %s; addresses, files and options are not taken", example)
		}
		out[i] = spec
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// exact reports whether a request names the version of every package.
func exact(m workbench.PackageManager, specs []string) bool {
	pattern := pipExact
	if m == workbench.PackagesNpm {
		pattern = npmExact
	}
	return !slices.ContainsFunc(specs, func(s string) bool { return !pattern.MatchString(s) })
}

func quote(s string) string {
	if len(s) > 60 {
		s = s[:60] + "…"
	}
	return "“" + strings.ToValidUTF8(s, "?") + "”"
}
