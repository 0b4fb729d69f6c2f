package doctor

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

func runtimes(ctx context.Context, h Host) []Finding {
	all := guest(h)
	all = append(all, h.runtime(ctx, "runsc", "gVisor, for hostile code; the default driver", Failed)...)
	return append(all, h.runtime(ctx, "runc", "shares the host's kernel; for code that may be wrong", Optional)...)
}

func guest(h Host) []Finding {
	if v := h.Embedded["guest"]; v != "" {
		return one("guest", "guest", OK, "in this build: "+v, "")
	}
	return one("guest", "guest", Failed, "this build does not contain the program that runs inside sandboxes", "use bin/workbench as make build makes it")
}

// runtime looks at one runtime: the configured one, else the embedded one,
// else whether the host has one that could be configured.
func (h Host) runtime(ctx context.Context, name, what string, without Outcome) []Finding {
	if path := h.Runtimes[name]; path != "" {
		return h.installed(ctx, name, path, without)
	}
	if v := h.Embedded[name]; v != "" {
		outcome, why, remedy := judge(name, v)
		return one(name, name, outcome, strings.TrimSpace("in this build: "+v+" ("+what+") "+why), remedy)
	}
	if path, err := h.Look(name); err == nil {
		return one(name, name, without, "not in this build; the host has "+path, "name it: --"+name+" "+path)
	}
	return one(name, name, without, "not there: neither in this build nor on this host; without it there is no --driver "+name+" ("+what+")", "use bin/workbench as make build makes it")
}

func (h Host) installed(ctx context.Context, name, path string, without Outcome) []Finding {
	printed, err := h.Version(ctx, path)
	if err != nil {
		return one(name, name, without, path+" does not work: "+err.Error(), "name a "+name+" that does, or leave --"+name+" out")
	}
	m := regexp.MustCompile(`(?m)^` + name + ` version (\S+)`).FindStringSubmatch(printed)
	if m == nil {
		return one(name, name, without, path+" is no "+name, "name a "+name+", or leave --"+name+" out")
	}
	outcome, why, remedy := judge(name, m[1])
	return one(name, name, outcome, strings.TrimSpace(path+" "+m[1]+" "+why), remedy)
}

// judge says what is known against a version of a runtime.
func judge(name, v string) (outcome Outcome, why, remedy string) {
	if name != "runc" {
		return OK, "", ""
	}
	n, ok := parseVersion(v)
	rc := 0
	if m := regexp.MustCompile(`-rc\.?(\d+)`).FindStringSubmatch(v); m != nil {
		_, _ = fmt.Sscan(m[1], &rc)
	}
	switch {
	case !ok:
		return Warned, "has a version that cannot be read", "use runc 1.2.8, 1.3.3, 1.4.0 or newer"
	case n.before(version{1, 1, 12}):
		return Warned, "is open to CVE-2024-21626 (a leaked descriptor leads to the host) and older flaws, by its version number", "use runc 1.2.8, 1.3.3, 1.4.0 or newer; make build packs one"
	case n.before(version{1, 2, 8}), n[1] == 3 && n[0] == 1 && n[2] < 3, n == version{1, 4, 0} && rc > 0 && rc < 3:
		return Warned, "lacks the fixes of November 2025 (CVE-2025-31133, CVE-2025-52565, CVE-2025-52881), by its version number; a distribution may carry them under an older one",
			"use runc 1.2.8, 1.3.3, 1.4.0 or newer; make build packs one"
	}
	return OK, "", ""
}

func images(_ context.Context, h Host) []Finding {
	const id, name = "images", "sandbox images"
	if h.ImageErr != nil {
		return one(id, name, Failed, "the folder of images cannot be read: "+h.ImageErr.Error(), "check "+h.ImageDir)
	}
	if len(h.Images) == 0 {
		return one(id, name, Failed, "there is none in "+h.ImageDir, "workbench image build standard (or minimal, which is quicker)")
	}
	var names, without []string
	for _, m := range h.Images {
		label := strings.Join(m.Names, "/")
		if label == "" {
			label = "unnamed"
		}
		names = append(names, label+" ("+strings.Join(m.Languages, ", ")+")")
		if !m.EROFS {
			without = append(without, label)
		}
	}
	slices.Sort(names)
	if len(without) > 0 {
		return one(id, name, Warned, strings.Join(names, "; ")+"; without an EROFS file, so slower to read under gVisor: "+strings.Join(without, ", "), "install erofs-utils and build or import them again")
	}
	return one(id, name, OK, strings.Join(names, "; "), "")
}

func buildTools(_ context.Context, h Host) []Finding {
	var all []Finding
	for _, t := range []struct{ program, pack, what string }{
		{"mmdebstrap", "mmdebstrap", "workbench image build does not work"},
		{"mkfs.erofs", "erofs-utils", "new images are read more slowly under gVisor"},
	} {
		if path, err := h.Look(t.program); err == nil {
			all = append(all, one(t.program, t.program, OK, path, "")...)
			continue
		}
		all = append(all, one(t.program, t.program, Optional, "not there; without it "+t.what, "apt-get install "+t.pack)...)
	}
	return all
}

func database(_ context.Context, h Host) []Finding {
	const id, name = "postgresql", "PostgreSQL"
	for _, program := range []string{"postgres", "pg_ctlcluster", "psql"} {
		if path, err := h.Look(program); err == nil {
			return one(id, name, OK, path+" (optional: --database)", "")
		}
	}
	return one(id, name, Optional, "not there; without it there is SQLite alone, which is built in", "apt-get install postgresql, or name a server elsewhere with --database")
}
