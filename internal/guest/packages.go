package guest

import (
	"strings"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// findHelper has the Pythons that a program starts find the helper library, as every
// Node does.
func findHelper(env map[string]string) {
	const place = libDir + "/python"
	if had := env["PYTHONPATH"]; had != "" {
		env["PYTHONPATH"] = had + ":" + place
	} else {
		env["PYTHONPATH"] = place
	}
}

// findPackages tells a program where its packages are: a driver by a variable of its
// own, which costs no interpreter that waits, and what it starts by the variables
// that interpreters know. Any other program starts interpreters alone.
func findPackages(env map[string]string, r guestwire.ExecRequest) {
	if r.Packages == "" {
		return
	}
	env["WORKBENCH_PACKAGES"] = r.Packages
	if r.Language != "" && r.Language != workbench.Bash {
		return
	}
	var python, node, bin []string
	for place := range strings.SplitSeq(r.Packages, ":") {
		python = append(python, place+"/python")
		node = append(node, place+"/node/node_modules")
		bin = append(bin, place+"/python/bin", place+"/node/node_modules/.bin")
	}
	for name, more := range map[string][]string{"PYTHONPATH": python, "NODE_PATH": append(node, libDir+"/js"), "PATH": append([]string{binDir}, bin...)} {
		if had := env[name]; had != "" {
			more = append([]string{had}, more...)
		} else if name == "PATH" {
			more = append(more, "/usr/local/bin", "/usr/bin", "/bin")
		}
		env[name] = strings.Join(more, ":")
	}
}
