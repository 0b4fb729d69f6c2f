package workbench

import "strings"

// PackageManager is whose packages a set has.
type PackageManager string

// The package managers.
const (
	PackagesPip PackageManager = "pip"
	PackagesNpm PackageManager = "npm"
)

// PackageSet is what one request for packages installed: they and what they need.
// It does not change: the same lock is the same set.
type PackageSet struct {
	Manager   PackageManager  `json:"manager"`
	Requested []string        `json:"requested"` // as the code asked, in order
	Name      string          `json:"name"`      // of the set; the same for the same lock, image and tenant
	Lock      []LockedPackage `json:"lock,omitempty"`
	Bytes     int64           `json:"bytes"`           // on disk
	RunID     string          `json:"runId,omitempty"` // that installed it
}

// LockedPackage is one package of a set at its exact version.
type LockedPackage struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Hash    string `json:"hash"` // of the file that it came as: an algorithm, a dash, base64
}

// packagesDir is where a sandbox has every set.
const packagesDir = "/opt/workbench/packages"

// Path is where code finds the set.
func (s PackageSet) Path() string { return packagesDir + "/" + s.Name }

// MaxPackageSets is how many sets a session may have, and MaxPackagesAsked how many
// packages one request may name.
const (
	MaxPackageSets   = 16
	MaxPackagesAsked = 64
)

// PackagePaths are the paths of sets, those installed last first, as a sandbox
// takes them.
func PackagePaths(sets []PackageSet) string {
	paths := make([]string, len(sets))
	for i, s := range sets {
		paths[len(sets)-1-i] = s.Path()
	}
	return strings.Join(paths, ":")
}
