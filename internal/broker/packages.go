package broker

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/govern"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/packages"
)

// Installer installs packages; *packages.Service is one.
type Installer interface {
	Install(ctx context.Context, r packages.Request) (workbench.PackageSet, error)
	Recall(ctx context.Context, r packages.Request, had []workbench.PackageSet) (set workbench.PackageSet, ok bool, err error)
}

// installsOfRun is how often a run may ask for packages.
const installsOfRun = 20

// packages answers guestwire.OpPackages; in a replay, of the run that of is of, with what
// that run installed.
func (b *Broker) packages(ctx context.Context, from govern.Caller, of *govern.Recorded, raw json.RawMessage) (json.RawMessage, error) {
	var args guestwire.PackagesArgs
	if err := read(raw, &args); err != nil {
		return nil, err
	}
	manager := workbench.PackageManager(args.Manager)
	names, err := packages.Check(manager, args.Packages)
	if err != nil {
		return nil, err
	}
	if b.o.Packages == nil {
		return nil, workbench.E(workbench.CodeNotBuilt, "this server installs no packages").WithHint("its operator turned it off")
	}
	detail := map[string]string{"manager": args.Manager, "packages": strings.Join(names, " ")}
	if err := b.govern.Use(ctx, from, govern.ServicePackages, installsOfRun, detail); err != nil {
		return nil, err
	}
	r := packages.Request{TenantID: from.Session.TenantID, ImageID: from.Session.Image, RunID: from.Run.ID, Epoch: from.Epoch, Manager: manager, Packages: names}
	var set workbench.PackageSet
	if of != nil {
		set, err = b.recall(ctx, of, r)
	} else {
		set, err = b.o.Packages.Install(ctx, r)
	}
	if err != nil {
		return nil, err
	}
	answer, err := write(guestwire.InstalledPackages{PackageSet: set, Path: set.Path()})
	if workbench.HasCode(err, workbench.CodeResultTooLarge) {
		set.Lock = nil // it is on the run
		return write(guestwire.InstalledPackages{PackageSet: set, Path: set.Path()})
	}
	return answer, err
}

// recall gives the replay of a run the set that the run had for the same request: names
// without versions may mean another one by now.
func (b *Broker) recall(ctx context.Context, of *govern.Recorded, r packages.Request) (workbench.PackageSet, error) {
	had, err := of.Packages(ctx)
	if err != nil {
		return workbench.PackageSet{}, err
	}
	set, ok, err := b.o.Packages.Recall(ctx, r, had)
	if err == nil && !ok {
		err = workbench.E(workbench.CodeReplayTools, "this is a replay, and the original had no such packages, or they are not there any more").
			WithHint("a replay has the packages that the original had, and installs no others")
	}
	return set, err
}
