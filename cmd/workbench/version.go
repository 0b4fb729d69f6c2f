package main

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/workbenchdev/workbench/internal/payload"
)

// versionInfo says what this binary is made of.
type versionInfo struct {
	Version string                  `json:"version"`
	Commit  string                  `json:"commit,omitempty"`
	Go      string                  `json:"go"`
	System  string                  `json:"system"`
	Inside  map[payload.Name]string `json:"embedded"`
}

func currentVersion() versionInfo {
	v := versionInfo{Version: "devel", Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH, Inside: map[payload.Name]string{}}
	if info, ok := debug.ReadBuildInfo(); ok {
		if info.Main.Version != "" && info.Main.Version != "(devel)" {
			v.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v.Commit = s.Value
			}
		}
	}
	for _, name := range payload.Names() {
		v.Inside[name] = payload.Version(name)
	}
	return v
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Say what this binary is made of", Args: exactly(0),
		RunE: func(*cobra.Command, []string) error {
			v := currentVersion()
			return a.print(v, func() error {
				rows := []string{"workbench", v.Version, "commit", v.Commit, "built with", v.Go, "for", v.System}
				for _, name := range payload.Names() {
					inside := v.Inside[name]
					if inside == "" {
						inside = "not in this build"
					}
					rows = append(rows, string(name), inside)
				}
				return a.fields(rows...)
			})
		},
	}
}
