package guest

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// installPackages installs a set, says on standard error what came, and prints what a
// shell has to do so that it, and what it starts, finds the set.
func installPackages(args []string) (int, error) {
	names, o, err := options(args, "manager")
	if err != nil {
		return 0, err
	}
	if len(names) == 0 {
		return 0, misused("which packages?")
	}
	a := guestwire.PackagesArgs{Manager: o.last("manager"), Packages: names}
	if a.Manager == "" {
		a.Manager = string(workbench.PackagesPip)
	}
	raw, err := ask(guestwire.OpPackages, a)
	if err != nil {
		return 0, err
	}
	var set guestwire.InstalledPackages
	if err := json.Unmarshal(raw, &set); err != nil {
		return 0, err
	}
	for _, p := range set.Lock {
		fmt.Fprintf(os.Stderr, "installed %s %s\n", p.Name, p.Version)
	}
	places := set.Path
	if had := os.Getenv("WORKBENCH_PACKAGES"); had != "" {
		places += ":" + had
	}
	env := map[string]string{}
	findPackages(env, guestwire.ExecRequest{Packages: set.Path})
	fmt.Printf("export WORKBENCH_PACKAGES=%s\n", shellQuote(places))
	for _, name := range []string{"PYTHONPATH", "NODE_PATH", "PATH"} {
		all := strings.Split(env[name], ":")
		if had := os.Getenv(name); had != "" {
			all = append(onlySets(all), had)
		}
		fmt.Printf("export %s=%s\n", name, shellQuote(strings.Join(all, ":")))
	}
	return 0, nil
}

// onlySets are the places that belong to a set of packages.
func onlySets(places []string) []string {
	var out []string
	for _, p := range places {
		if strings.HasPrefix(p, packagesDir) {
			out = append(out, p)
		}
	}
	return out
}

const packagesDir = "/opt/workbench/packages/"
