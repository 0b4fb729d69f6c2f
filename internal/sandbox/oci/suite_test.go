package oci_test

import (
	"log/slog"
	"testing"

	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
	"github.com/workbenchdev/workbench/internal/sandbox/sandboxtest"
)

// TestSuite runs the suite that every driver must pass, with the real guest.
func TestSuite(t *testing.T) {
	env := sandboxtest.MustEnv(t)
	binary := map[oci.Kind]string{oci.Runsc: env.Runsc, oci.Runc: env.Runc}
	bothKinds(t, func(t *testing.T, kind oci.Kind) {
		options := func(instance string) oci.Options {
			return oci.Options{Kind: kind, Instance: instance, Binary: binary[kind], Guest: env.Guest, Log: slog.New(slog.DiscardHandler)}
		}
		sandboxtest.Run(t, sandboxtest.Suite{
			Image: env.Image,
			Open:  func(instance string) (sandbox.Driver, error) { return oci.Open(options(instance)) },
			Crash: func(t testing.TB, instance string) string {
				return crashedOwner(t, options(instance), ownerOrder{Class: sandboxtest.Standard(env.Image)})
			},
		})
	})
}
