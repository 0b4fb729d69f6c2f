package packages

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

//go:embed builder.py
var builderProgram []byte

// outcome is what the builder's program says.
type outcome struct {
	Lock    []workbench.LockedPackage `json:"lock"`
	Missing string                    `json:"missing"` // the package manager, which the image lacks
	Said    string                    `json:"said"`    // by the package manager, which failed
}

// Bounds of one set. What the builder's sandbox sends is its claim.
const (
	maxLock       = 5000 // packages
	maxSetEntries = 250_000
	maxSetBytes   = 2<<30 + maxOutcome
)

// build installs a request's packages in a sandbox of their own and takes them out.
func (s *Service) build(ctx context.Context, r Request, d *draft) ([]workbench.LockedPackage, int64, error) {
	base := s.o.Python
	if r.Manager == workbench.PackagesNpm {
		base = s.o.NPM
	}
	relay := newRelay(r.Manager, base, s.web)
	defer relay.close()
	wire, release, err := s.o.Workshop(ctx, r.ImageID)
	if err != nil {
		return nil, 0, err
	}
	defer release()
	h := &handler{relay: relay}
	exec, err := wire.Exec(ctx, guestwire.ExecRequest{ID: "builder", Group: "builder", Language: workbench.Python, Source: builderProgram,
		Args: append([]string{string(r.Manager)}, r.Packages...), Timeout: buildWithin, OutputBytes: maxSaid}, h)
	if workbench.HasCode(err, workbench.CodeLanguageUnknown) {
		return nil, 0, workbench.E(workbench.CodePackages, "the image of this session has no Python, which installs packages").
			WithHint("create a session with another image")
	}
	if err != nil {
		return nil, 0, err
	}
	ended, err := exec.Wait(ctx)
	if err != nil {
		return nil, 0, err
	}
	if _, err := wire.Scan(ctx, guestwire.ScanRequest{MaxEntries: maxSetEntries, MaxBytes: maxSetBytes}, d); err != nil {
		return nil, 0, err
	}
	var o outcome
	if err := json.Unmarshal(d.lock, &o); err != nil || ended.ExitCode != 0 {
		return nil, 0, s.broken(relay, ended, h.tail(), err)
	}
	switch {
	case o.Missing != "":
		return nil, 0, workbench.E(workbench.CodePackages, "the image of this session has no %s", o.Missing).
			WithHint("create a session with an image that has it, such as standard")
	case o.Said != "":
		return nil, 0, relay.explain(o.Said)
	}
	return o.Lock, d.bytes, relay.check(o.Lock)
}

// broken is an installation that ended in a way which the builder does not tell.
func (s *Service) broken(r *relay, ended guestwire.ExecResult, said string, cause error) error {
	if r.trouble != nil {
		return r.explain("")
	}
	if ended.Reason == workbench.ReasonTimeout {
		return tooSlow()
	}
	if ended.Reason == workbench.ReasonOutOfMemory {
		return workbench.E(workbench.CodePackages, "the packages need more memory to be installed than there is").WithHint("ask for fewer at once")
	}
	if strings.Contains(said, "No space left") {
		return tooLarge()
	}
	return workbench.E(workbench.CodeInternal, "the packages could not be installed").Caused(errors.Join(cause, fmt.Errorf("the builder ended with %d: %s", ended.ExitCode, said)))
}

func tooSlow() error {
	return workbench.E(workbench.CodePackages, "the packages were not installed within %s", buildWithin).WithHint("ask for fewer at once")
}

func tooLarge() error {
	return workbench.E(workbench.CodePackages, "the packages are larger than a set may be").WithHint("ask for fewer at once")
}

// check holds a lock against what the registry gave: every package must have come
// from there, as one of its files.
func (r *relay) check(lock []workbench.LockedPackage) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(lock) > maxLock {
		return workbench.E(workbench.CodePackages, "the request needs %d packages, a set has at most %d", len(lock), maxLock)
	}
	for _, p := range lock {
		if !r.hashes[p.Hash] || p.Name == "" || p.Version == "" {
			return workbench.E(workbench.CodePackages, "what would be installed as %s is no file of the registry", quote(p.Name)).
				WithHint("packages that need others from elsewhere, such as a repository or a directory, are not installed")
		}
	}
	slices.SortFunc(lock, func(a, b workbench.LockedPackage) int {
		return strings.Compare(a.Name+"\x00"+a.Version+"\x00"+a.Hash, b.Name+"\x00"+b.Version+"\x00"+b.Hash)
	})
	return nil
}

var (
	pipNoMatch = regexp.MustCompile(`No matching distribution found for ([^\s;]+)`)
	pipVersion = regexp.MustCompile(`from versions: ([^)]*)\)`)
	npmNoMatch = regexp.MustCompile(`No matching version found for (\S+?)\.?\s`)
)

// explain makes of a failed installation what its caller can do something about.
func (r *relay) explain(said string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	refused := func(format string, args ...any) *workbench.Error {
		return workbench.E(workbench.CodePackages, format, args...).WithField("packages")
	}
	switch {
	case r.trouble != nil:
		return workbench.E(workbench.CodeUnavailable, "the registry of %s packages does not give what is asked for: %s", r.manager, hostless(r.trouble)).
			WithHint("try again, or ask the server's operator whether it can reach the registry").Caused(r.trouble)
	case len(r.absent) > 0:
		return refused("the registry has no package %s", strings.Join(slices.Compact(slices.Sorted(slices.Values(r.absent))), ", ")).WithHint("look at the name")
	case strings.Contains(said, "No space left") || strings.Contains(said, "ENOSPC"):
		return tooLarge()
	case strings.Contains(said, "Read timed out") || strings.Contains(said, "SOCKET_TIMEOUT"):
		return workbench.E(workbench.CodeUnavailable, "the registry of %s packages takes too long to answer", r.manager).WithHint("try again later")
	case strings.Contains(said, "DO NOT MATCH THE HASHES") || strings.Contains(said, "EINTEGRITY"):
		return refused("a file of the registry is not the one that its page names by hash").
			WithHint("nothing of it was installed; ask the server's operator who runs the registry")
	}
	if m := npmNoMatch.FindStringSubmatch(said + " "); m != nil {
		return refused("the registry has no version %s", quote(m[1])).WithHint("ask for another, or for any by leaving the version out")
	}
	if m := pipNoMatch.FindStringSubmatch(said); m != nil {
		e := refused("the registry has no wheel of %s for the Python of this image", quote(m[1]))
		if v := pipVersion.FindStringSubmatch(said); v != nil && v[1] != "none" {
			return e.WithHint("there are %s", newest(v[1]))
		}
		return e.WithHint("packages that have to be compiled are not installed: ask for a version that comes as a wheel")
	}
	return refused("%s cannot install these together: %s", r.manager, lastLines(said)).WithHint("ask for other versions")
}

// newest are the last few of a list of versions.
func newest(versions string) string {
	all := strings.Split(versions, ", ")
	if len(all) > 8 {
		return "… " + strings.Join(all[len(all)-8:], ", ")
	}
	return strings.Join(all, ", ")
}

var address = regexp.MustCompile(`https?://\S+`)

// hostless is an error without the addresses in it, which may hold credentials.
func hostless(err error) string {
	return strings.TrimSpace(address.ReplaceAllString(err.Error(), "…"))
}

// lastLines are the end of what a package manager said, for a person.
func lastLines(said string) string {
	const most = 600
	lines := strings.Fields(address.ReplaceAllString(said, "…"))
	text := strings.ToValidUTF8(strings.Join(lines, " "), "?")
	if len(text) > most {
		text = "… " + strings.ToValidUTF8(text[len(text)-most:], "")
	}
	return text
}

const maxSaid = 64 << 10

// handler serves the builder's program: it has the registry, and nothing else.
type handler struct {
	relay *relay

	mu   sync.Mutex
	said []byte
}

// Output implements guestwire.ExecHandler.
func (h *handler) Output(_ workbench.Stream, _ int64, data []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if room := maxSaid - len(h.said); room > 0 {
		h.said = append(h.said, data[:min(room, len(data))]...)
	}
	return nil
}

func (h *handler) tail() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return string(h.said[max(0, len(h.said)-4000):])
}

// Call implements guestwire.ExecHandler.
func (h *handler) Call(ctx context.Context, call guestwire.BrokerCall) (json.RawMessage, error) {
	if call.Op != guestwire.OpFetch {
		return nil, workbench.E(workbench.CodeNotBuilt, "the builder has its registry, and nothing else")
	}
	var args guestwire.FetchArgs
	if err := json.Unmarshal(call.Args, &args); err != nil {
		return nil, workbench.E(workbench.CodeInvalidRequest, "the request cannot be read").Caused(err)
	}
	a, err := h.relay.serve(ctx, args)
	if err != nil {
		return nil, err
	}
	return json.Marshal(a)
}
