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
}

// installsOfRun is how often a run may ask for packages.
const installsOfRun = 20

// packages answers guestwire.OpPackages.
func (b *Broker) packages(ctx context.Context, from govern.Caller, raw json.RawMessage) (json.RawMessage, error) {
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
	set, err := b.o.Packages.Install(ctx, packages.Request{TenantID: from.Session.TenantID, ImageID: from.Session.Image, RunID: from.Run.ID, Epoch: from.Epoch,
		Manager: manager, Packages: names})
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
