package doctor_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/doctor"
)

// MustHost is a healthy host made of files: cgroup v2, 8 GiB, no swap.
func MustHost(t *testing.T, files map[string]string) doctor.Host {
	t.Helper()
	root := t.TempDir()
	all := map[string]string{
		"proc/sys/user/max_user_namespaces":        "95000",
		"proc/sys/kernel/seccomp/actions_avail":    "kill_process kill_thread trap errno user_notif trace log allow",
		"proc/sys/kernel/core_pattern":             "core",
		"proc/swaps":                               "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority",
		"proc/meminfo":                             "MemTotal:        8388608 kB\nMemFree:         100 kB\n",
		"sys/fs/cgroup/cgroup.controllers":         "cpuset cpu io memory pids",
		"sys/fs/cgroup/cgroup.procs":               "",
		"sys/fs/cgroup/init.scope/memory.max":      "max",
		"sys/fs/cgroup/init.scope/memory.swap.max": "max",
	}
	for name, content := range files {
		all[name] = content
	}
	for name, content := range all {
		if content == "absent" {
			continue
		}
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return doctor.Host{
		Root: root, EUID: 0, Caps: 1<<41 - 1, Kernel: "6.18.44-1-amd64", DataDir: "/data", ImageDir: "/images",
		Sizes:    workbench.StandardSizes()[:1],
		Images:   []doctor.Image{{Names: []string{"standard"}, Languages: []string{"python", "bash"}, EROFS: true}},
		Embedded: map[string]string{"guest": "v1", "runsc": "release-20260905.0", "runc": "v1.5.3"},
		Look:     func(name string) (string, error) { return "/usr/bin/" + name, nil },
		Version: func(_ context.Context, path string) (string, error) {
			return "", errors.New("nothing to run at " + path)
		},
		Free:          func(string) (uint64, error) { return 100 << 30, nil },
		UserNamespace: func(context.Context) error { return nil },
	}
}

func find(t *testing.T, all []doctor.Finding, id string) doctor.Finding {
	t.Helper()
	for _, f := range all {
		if f.ID == id {
			return f
		}
	}
	t.Fatalf("no finding %q", id)
	return doctor.Finding{}
}

func TestAHealthyHost(t *testing.T) {
	all := doctor.Examine(t.Context(), MustHost(t, nil))
	for _, f := range all {
		if f.Outcome != doctor.OK || f.Remedy != "" {
			t.Errorf("%s: %s, %s → %s", f.ID, f.Outcome, f.Detail, f.Remedy)
		}
	}
	if !doctor.Healthy(all) || len(all) != 18 {
		t.Errorf("healthy %t, %d findings", doctor.Healthy(all), len(all))
	}
}

func TestFindings(t *testing.T) {
	for _, tc := range []struct {
		name   string
		files  map[string]string
		change func(*doctor.Host)
		id     string
		want   doctor.Outcome
		says   string
	}{
		{"not root", nil, func(h *doctor.Host) { h.EUID = 1000 }, "root", doctor.Failed, "user 1000"},
		{"root without a capability", nil, func(h *doctor.Host) { h.Caps &^= 1 << 21 }, "root", doctor.Failed, "CAP_SYS_ADMIN"},
		{"an old kernel", nil, func(h *doctor.Host) { h.Kernel = "4.19.0-27-amd64" }, "kernel", doctor.Failed, "older than 5.10"},
		{"Dirty Pipe", nil, func(h *doctor.Host) { h.Kernel = "5.15.24" }, "kernel-flaws", doctor.Warned, "CVE-2022-0847"},
		{"Copy Fail", nil, func(h *doctor.Host) { h.Kernel = "6.18.21" }, "kernel-flaws", doctor.Warned, "CVE-2026-31431"},
		{"Copy Fail, in a series not known", nil, func(h *doctor.Host) { h.Kernel = "6.12.60" }, "kernel-flaws", doctor.Warned, "not known here"},
		{"a new kernel", nil, func(h *doctor.Host) { h.Kernel = "7.1.2" }, "kernel-flaws", doctor.OK, "none"},
		{"no user namespaces", map[string]string{"proc/sys/user/max_user_namespaces": "0"}, nil, "user-namespaces", doctor.Failed, "turned off"},
		{"user namespaces denied", nil, func(h *doctor.Host) {
			h.UserNamespace = func(context.Context) error { return errors.New("operation not permitted") }
		}, "user-namespaces", doctor.Failed, "not permitted"},
		{"no seccomp", map[string]string{"proc/sys/kernel/seccomp/actions_avail": "absent"}, nil, "seccomp", doctor.Failed, "no seccomp"},
		{"a missing controller", map[string]string{"sys/fs/cgroup/cgroup.controllers": "cpu memory"}, nil, "cgroups", doctor.Failed, "pids"},
		{"swap that is bounded", map[string]string{"proc/swaps": "Filename Type\n/dev/sda2 partition 8388604 0 -2"}, nil, "swap", doctor.OK, "kept out"},
		{"swap that is not bounded", map[string]string{"proc/swaps": "Filename Type\n/dev/sda2 partition 8388604 0 -2", "sys/fs/cgroup/init.scope/memory.swap.max": "absent"}, nil, "swap", doctor.Warned, "not accounted"},
		{"too little memory", map[string]string{"proc/meminfo": "MemTotal:  262144 kB"}, nil, "memory", doctor.Failed, "256 MiB of memory are not enough for one sandbox"},
		{"too little memory for a bigger size", nil, func(h *doctor.Host) {
			big := workbench.StandardSizes()[2]
			big.Limits.MemoryBytes, big.Limits.CPUs = 64<<30, 1
			h.Sizes = append(h.Sizes, big)
		}, "memory", doctor.Optional, "large needs"},
		{"no runsc", nil, func(h *doctor.Host) {
			h.Embedded = map[string]string{"guest": "v1"}
			h.Look = func(string) (string, error) { return "", os.ErrNotExist }
		}, "runsc", doctor.Failed, "neither in this build nor on this host"},
		{"no runc", nil, func(h *doctor.Host) {
			h.Embedded = map[string]string{"guest": "v1", "runsc": "v1"}
			h.Look = func(string) (string, error) { return "", os.ErrNotExist }
		}, "runc", doctor.Optional, "not there: neither in this build nor on this host; without it there is no --driver runc"},
		{"no guest", nil, func(h *doctor.Host) { h.Embedded = nil }, "guest", doctor.Failed, "does not contain"},
		{"a very old runc", nil, func(h *doctor.Host) { mustPrint(h, "runc", "runc version 1.1.5+ds1\ncommit: x\n") }, "runc", doctor.Warned, "CVE-2024-21626"},
		{"a runc before November 2025", nil, func(h *doctor.Host) { mustPrint(h, "runc", "runc version 1.3.2\n") }, "runc", doctor.Warned, "CVE-2025-31133"},
		{"a release candidate before the fixes", nil, func(h *doctor.Host) { mustPrint(h, "runc", "runc version 1.4.0-rc.2\n") }, "runc", doctor.Warned, "CVE-2025-31133"},
		{"a fixed runc", nil, func(h *doctor.Host) { mustPrint(h, "runc", "runc version 1.2.8\n") }, "runc", doctor.OK, "1.2.8"},
		{"a runsc that is none", nil, func(h *doctor.Host) { mustPrint(h, "runsc", "bash 5.2\n") }, "runsc", doctor.Failed, "is no runsc"},
		{"a runsc that does not start", nil, func(h *doctor.Host) { h.Runtimes = map[string]string{"runsc": "/opt/runsc"} }, "runsc", doctor.Failed, "does not work"},
		{"no images", nil, func(h *doctor.Host) { h.Images = nil }, "images", doctor.Failed, "none in /images"},
		{"an image without EROFS", nil, func(h *doctor.Host) { h.Images[0].EROFS = false }, "images", doctor.Warned, "EROFS"},
		{"no mmdebstrap", nil, func(h *doctor.Host) { h.Look = func(string) (string, error) { return "", os.ErrNotExist } }, "mmdebstrap", doctor.Optional, "not there; without it workbench image build does not work"},
		{"a full disk", nil, func(h *doctor.Host) { h.Free = func(string) (uint64, error) { return 1 << 20, nil } }, "disk-data", doctor.Failed, "1 MiB free at /data"},
		{"a nearly full disk", nil, func(h *doctor.Host) { h.Free = func(string) (uint64, error) { return 1 << 30, nil } }, "disk-images", doctor.Warned, "1024 MiB free"},
		{"core dumps to a program", map[string]string{"proc/sys/kernel/core_pattern": "|/usr/lib/systemd/systemd-coredump %P %u"}, nil, "core-dumps", doctor.Warned, "systemd-coredump"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := MustHost(t, tc.files)
			if tc.change != nil {
				tc.change(&h)
			}
			all := doctor.Examine(t.Context(), h)
			f := find(t, all, tc.id)
			if f.Outcome != tc.want || !strings.Contains(f.Detail, tc.says) {
				t.Errorf("%s: %s, want %s with %q", f.Outcome, f.Detail, tc.want, tc.says)
			}
			if f.Outcome != doctor.OK && f.Remedy == "" {
				t.Error("it says nothing of what to do")
			}
			if doctor.Healthy(all) != (tc.want != doctor.Failed) {
				t.Errorf("healthy %t", doctor.Healthy(all))
			}
		})
	}
}

// mustPrint makes a runtime configured that prints text as its version.
func mustPrint(h *doctor.Host, name, text string) {
	h.Runtimes = map[string]string{name: "/opt/" + name}
	h.Version = func(context.Context, string) (string, error) { return text, nil }
}

func TestThisHostCanBeExamined(t *testing.T) {
	h := doctor.ThisHost()
	h.Sizes, h.DataDir, h.ImageDir = workbench.StandardSizes(), t.TempDir(), t.TempDir()
	all := doctor.Examine(t.Context(), h)
	for _, id := range []string{"kernel", "root", "user-namespaces", "seccomp", "cgroups", "swap", "memory", "disk-data"} {
		if f := find(t, all, id); f.Outcome == doctor.Failed {
			t.Errorf("%s failed on a host that runs sandboxes: %s", id, f.Detail)
		}
	}
}
