package verify

import (
	"slices"
	"strings"

	"github.com/workbenchdev/workbench/internal/sandbox/oci"
)

// bite says that a row must not hold in sandboxes of a profile.
type bite struct {
	row     string
	kind    oci.Kind
	profile *profile
	expect  Outcome
}

// bites is the table that shows each check to notice what it is for. The tests
// run it.
var bites = slices.Concat(
	biting(noLimits, both, Failed, "H01 H03 H04 H06 H09 H11 H12 H13 H14 H15 H17 H19 H24 H25 H118 H126"),
	biting(openLocks, both, Failed, "H08"),
	biting(swapAllowed, both, Failed, "H07"),
	biting(outputLost, both, Failed, "H20"),
	biting(noReaper, both, Failed, "H27"),
	biting(waitsForOutput, both, Failed, "H29"),
	biting(rootUser, both, Failed, "H26 H43 H45 H64 H117"),
	biting(sharedProcesses, both, Failed, "H34 H36 H41 H72 H73"),
	biting(sharedDirectory, both, Failed, "H35 H32 H108 H112 H74"),
	biting(noFilter, []oci.Kind{oci.Runc}, Failed, "H39 H44 H47 H50 H55 H59"),
	biting(noFilter, []oci.Kind{oci.Runsc}, Failed, "H44 H47"),
	biting(bareKernel, []oci.Kind{oci.Runsc}, Failed, "H39 H50 H55 H59"),
	biting(sharedKeys, both, Failed, "H37 H48"),
	biting(privileged, both, Failed, "H10 H40 H46 H51 H52 H54 H56 H57 H61 H66 H67 H75 H76 H77 H78"),
	biting(netPrivileges, both, Failed, "H53"),
	biting(bareKernel, []oci.Kind{oci.Runsc}, Failed, "H38"),
	biting(setuidFiles, both, Failed, "H63"),
	biting(coreFilesAllowed, both, Failed, "H65"),
	biting(anyRoot, both, Failed, "H68"),
	biting(leakedDescriptor, both, Failed, "H70"),
	biting(terminal, both, Failed, "H60"),
	biting(hostNetwork, both, Failed, "H101 H109"),
	biting(hostNetwork, []oci.Kind{oci.Runc}, Failed, "H107"),
	biting(bareNetwork, []oci.Kind{oci.Runsc}, Failed, "H107"),
	biting(routedNetwork, both, Failed, "H100 H102 H103 H104 H110"),
	biting(secretEnvironment, both, Failed, "H111"),
	biting(cloned, both, Failed, "H113"),
	biting(hijackedPath, both, Failed, "H120"),
	biting(preloaded, both, Failed, "H121"),
	biting(oldRuntime, both, Warned, "H125"),
)

var both = []oci.Kind{oci.Runsc, oci.Runc}

func biting(p *profile, kinds []oci.Kind, expect Outcome, rows string) []bite {
	var out []bite
	for _, row := range strings.Fields(rows) {
		for _, k := range kinds {
			out = append(out, bite{row: row, kind: k, profile: p, expect: expect})
		}
	}
	return out
}

// blindness says why no profile makes a row fail.
type blindness struct{ runsc, runc string }

func (b blindness) why(k oci.Kind) string {
	if k == oci.Runsc {
		return b.runsc
	}
	return b.runc
}

func on(why string) blindness { return blindness{runsc: why, runc: why} }

// blind are rows that may hold and are not counted.
var blind = map[string]blindness{
	"H38": {runc: "the residual is documented"},
	"H84": on("tokens are checked by the guest's own code, which no setting weakens"),
	"H86": on("files are opened by the guest's own code, which no setting weakens"),
	"H87": on("files are written by the guest's own code, which no setting weakens"),
	"H89": on("no driver gives code a directory of the host, so nothing planted can be on the way of a removal"),
	"H91": on("the scanner is the guest's own code, which no setting weakens"),
	"H92": on("the scanner is the guest's own code, which no setting weakens"),
	"H94": on("the scanner is the guest's own code, which no setting weakens"),
	"H96": on("the scanner is the guest's own code, which no setting weakens"),
	"H97": on("the protocol has no field for attributes"),
}

// counted reports whether a profile is known to make the row fail.
func counted(row string, kind oci.Kind) bool {
	return slices.ContainsFunc(bites, func(b bite) bool { return b.row == row && b.kind == kind })
}
