package oci_test

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(ownerEnv) != "" {
		ownerProcess()
	}
	code := m.Run()
	if path, err := buildStandin(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			println("goroutines left:", err.Error())
			code = 1
		}
	}
	os.Exit(code)
}
