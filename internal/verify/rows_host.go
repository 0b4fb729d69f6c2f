package verify

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
)

// Rows whose larger half is seen on the host.

// checkSwap: the group's bound on memory and swap together is that on memory.
func checkSwap(ctx context.Context, s *scene) finding {
	b, err := s.session(ctx, mainSession)
	if err != nil {
		return broke(err)
	}
	swapped := strings.Count(strings.TrimSpace(hostFile("/proc/swaps")), "\n") > 0
	both, accounted := s.groupFile(b, "memory", "memory.memsw.limit_in_bytes", "memory.swap.max")
	alone, _ := s.groupFile(b, "memory", "memory.limit_in_bytes", "memory.max")
	switch {
	case !accounted && swapped:
		return warned("the host has swap, and its kernel does not account it: a sandbox's memory may be written to it")
	case !accounted:
		return notApplicable("this host has no swap, and its kernel does not account it")
	case both != "0" && both != alone:
		return failed("the group may use %s bytes of memory and swap, but %s of memory", both, alone)
	}
	const on, off = "on", "off"
	return proved("swap of the group is bounded to nothing (host swap is %s)", map[bool]string{true: on, false: off}[swapped])
}

// checkCopyFail: no AF_ALG socket, and files that sessions share do not change.
func checkCopyFail(ctx context.Context, s *scene) finding {
	f := s.unchangedRoot(ctx, "H51", nil)
	if f.outcome == Proved && strings.Contains(s.o.KernelFlaws, "CVE-2026-31431") && s.o.Kind == oci.Runc {
		return warned("refused here, but by its version the kernel has the flaw: %s", s.o.KernelFlaws)
	}
	return f
}

func checkPageCache(ctx context.Context, s *scene) finding {
	f := s.unchangedRoot(ctx, "writes", map[string]any{"targets": sharedFiles})
	if f.outcome == Proved && strings.Contains(s.o.KernelFlaws, "CVE-2022-0847") && s.o.Kind == oci.Runc {
		return warned("held here, but by its version the kernel has a flaw: %s", s.o.KernelFlaws)
	}
	return f
}

// sharedFiles are files of the root that every session has.
var sharedFiles = []string{"/etc/passwd", "/usr/bin/env", "/usr/lib/os-release"}

// unchangedRoot runs a probe, then the attempts to write; the host compares
// hashes before and after, and another session reads the same.
func (s *scene) unchangedRoot(ctx context.Context, probe string, params any) finding {
	a, b, err := s.pair(ctx)
	if err != nil {
		return broke(err)
	}
	before := hashes(s.rootfs(), sharedFiles)
	if before[sharedFiles[0]] == "" {
		return errorf("%s is not in the image", sharedFiles[0])
	}
	f := a.judge(ctx, probe, params)
	if probe != "writes" && f.outcome == Proved {
		if more := a.judge(ctx, "writes", map[string]any{"targets": sharedFiles}); more.outcome != Proved {
			f = more
		}
	}
	if c := changed(before, hashes(s.rootfs(), sharedFiles)); len(c) > 0 {
		return failed("on the host %s changed (inside: %s)", strings.Join(c, ", "), f.why)
	}
	if f.outcome != Proved {
		return f
	}
	out, err := b.language(ctx, workbench.Bash, "sha256sum "+strings.Join(sharedFiles, " "))
	if err != nil {
		return broke(err)
	}
	for _, name := range sharedFiles {
		if !strings.Contains(out.stdout, before[name]+"  "+name) {
			return failed("another session reads another %s: %s", name, printable(out.stdout))
		}
	}
	return proved("%s; hashes equal on the host and in another session", f.why)
}

func checkModules(ctx context.Context, s *scene) finding {
	b, err := s.session(ctx, mainSession)
	if err != nil {
		return broke(err)
	}
	before := hostFile("/proc/modules")
	f := b.judge(ctx, "H55", nil)
	if after := hostFile("/proc/modules"); moduleNames(after) != moduleNames(before) && f.outcome == Proved {
		return failed("the host's module list changed")
	}
	return f
}

func moduleNames(list string) string {
	var names []string
	for line := range strings.SplitSeq(list, "\n") {
		if f := strings.Fields(line); len(f) > 0 {
			names = append(names, f[0])
		}
	}
	return strings.Join(names, " ")
}

// checkCoreDump: no core inside, none on the host.
func checkCoreDump(ctx context.Context, s *scene) finding {
	b, err := s.session(ctx, mainSession)
	if err != nil {
		return broke(err)
	}
	cwd, _ := os.Getwd()
	places := []string{s.stateDir, s.rootfs(), "/var/crash", "/var/lib/systemd/coredump", cwd}
	before := coreFiles(places)
	f := b.judge(ctx, "H65", map[string]any{"marker": marker()})
	if f.outcome != Proved {
		return f
	}
	if after := coreFiles(places); len(after) > len(before) {
		return failed("a core file appeared on the host: %s", after[len(after)-1])
	}
	if pattern := strings.TrimSpace(hostFile("/proc/sys/kernel/core_pattern")); strings.HasPrefix(pattern, "|") && s.o.Kind == oci.Runc {
		return warned("this host pipes core files to %q, which no limit of a sandbox stops; set kernel.core_pattern to a file name", pattern)
	}
	return proved("%s; no core inside, none on the host", f.why)
}

func coreFiles(dirs []string) []string {
	var found []string
	for _, dir := range dirs {
		for _, pattern := range []string{"core", "core.*", "*.core"} {
			matches, _ := filepath.Glob(filepath.Join(dir, pattern))
			for _, m := range matches {
				if info, err := os.Lstat(m); err == nil && info.Mode().IsRegular() {
					found = append(found, m)
				}
			}
		}
	}
	return found
}

// checkPlantedRoot: a root in which a mount point is a link is refused before a
// runtime sees it.
func checkPlantedRoot(ctx context.Context, s *scene) finding {
	tried := 0
	for _, planted := range []string{"dev", "dev/null", "dev/pts", "proc", "run", "mnt/files", "opt/workbench/bin"} {
		root := filepath.Join(s.dir, fmt.Sprintf("root-%d", tried))
		victim := filepath.Join(s.dir, fmt.Sprintf("victim-%d", tried))
		if err := plantRoot(root, victim, planted); err != nil {
			return broke(err)
		}
		class := s.class()
		class.Image = sandbox.Image{ID: "planted", Rootfs: root}
		box, err := s.driver.Start(ctx, class)
		if err == nil {
			_ = box.Kill(context.WithoutCancel(ctx))
			return failed("a root with /%s as a link was started", planted)
		}
		var coded *workbench.Error
		if !errors.As(err, &coded) || coded.Code != workbench.CodeImageInvalid {
			return failed("a root with /%s as a link reached the runtime: %v", planted, err)
		}
		if entries, _ := os.ReadDir(victim); len(entries) != 0 {
			return failed("the target of the link has %s", entries[0].Name())
		}
		tried++
	}
	return proved("%d roots with a link at a mount point were refused before the runtime saw them; their targets are untouched", tried)
}

// plantRoot makes a root in which one name leads to the victim.
func plantRoot(root, victim, planted string) error {
	for _, dir := range []string{"dev", "proc", "sys", "run", "tmp", "etc", "mnt/files", "opt/workbench/bin", "opt/workbench/packages"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	if err := os.Mkdir(victim, 0o777); err != nil {
		return err
	}
	at := filepath.Join(root, planted)
	if err := os.RemoveAll(at); err != nil {
		return err
	}
	return os.Symlink(victim, at)
}

// checkSecretWords runs a probe that must not find what names the server.
func checkSecretWords(probe string) func(context.Context, *scene) finding {
	return func(ctx context.Context, s *scene) finding {
		b, err := s.session(ctx, mainSession)
		if err != nil {
			return broke(err)
		}
		host, _ := os.Hostname()
		words := []string{b.box.ID(), s.dir, "postgres://", secretWord}
		if len(host) > 4 {
			words = append(words, host)
		}
		for i, w := range words {
			words[i] = hex.EncodeToString([]byte(w))
		}
		return b.judge(ctx, probe, map[string]any{"secret": words})
	}
}

// secretWord stands for a tenant's name or a credential in what broken profiles
// leak.
const secretWord = "verify-tenant-secret"

// checkLeaveCgroup: no file of a control group opens, and on the host every
// process of the sandbox is in its group.
func checkLeaveCgroup(ctx context.Context, s *scene) finding {
	b, err := s.session(ctx, mainSession)
	if err != nil {
		return broke(err)
	}
	before, err := s.groups.Group(b.box.ID()).Procs()
	if err != nil {
		return broke(err)
	}
	f := b.judge(ctx, "H76", nil)
	if f.outcome != Proved {
		return f
	}
	for _, pid := range before {
		path := fmt.Sprintf("/proc/%d", pid)
		if _, err := os.Stat(path); err == nil && !strings.Contains(hostFile(path+"/cgroup"), b.box.ID()) {
			return failed("process %d left the sandbox's group", pid)
		}
	}
	return proved("%s; its %d processes on the host are in its group", f.why, len(before))
}

func checkLabel(ctx context.Context, s *scene) finding {
	lsm := strings.TrimSpace(hostFile("/sys/kernel/security/lsm"))
	if !strings.Contains(lsm, "selinux") && !strings.Contains(lsm, "apparmor") {
		return notApplicable("this host has no AppArmor and no SELinux")
	}
	return notApplicable("no label is configured for sandboxes (the host has %s)", lsm)
}

// checkRemoval: what code plants does not lead the host's removal anywhere.
func checkRemoval(ctx context.Context, s *scene) finding {
	victim := filepath.Join(s.dir, "kept")
	if err := os.WriteFile(victim, []byte("kept"), 0o666); err != nil {
		return broke(err)
	}
	b, err := s.start(ctx, s.class())
	if err != nil {
		return broke(err)
	}
	defer b.discard(ctx)
	out, err := b.exec(ctx, request("cd /mnt/files && ln -s "+s.dir+" d && ln -s "+victim+" f && ln -s / root && ln -s ../../../../../../.. up && ln -s /proc/1/root p && mkdir -p /tmp/x && ln -s "+s.dir+" /tmp/x/d && echo planted"))
	if err != nil {
		return broke(err)
	}
	if !strings.Contains(out.stdout, "planted") {
		return errorf("links could not be planted: %s", lastBytes(out.stderr, 300))
	}
	if err := b.end(ctx); err != nil {
		return failed("the sandbox cannot be removed: %v", err)
	}
	raw, err := os.ReadFile(victim)
	if err != nil || string(raw) != "kept" {
		return failed("a file of the host that a link led to is gone or changed (%v)", err)
	}
	if info, err := os.Stat(s.dir); err != nil || info.Mode().Perm() != 0o711 {
		return failed("a directory of the host that a link led to changed (%v)", err)
	}
	return proved("the host's files that planted links led to are as before")
}

// checkVersions: components with defects known by their version.
func checkVersions(ctx context.Context, s *scene) finding {
	info, err := s.driver.Info(ctx)
	if err != nil {
		return broke(err)
	}
	var old []string
	for _, w := range info.Warnings {
		if w.Code == "old_runtime" {
			old = append(old, w.Detail)
		}
	}
	if s.o.Kind == oci.Runc && s.o.KernelFlaws != "" {
		old = append(old, "the kernel is shared: "+s.o.KernelFlaws)
	}
	if len(old) > 0 {
		return warned("%s", strings.Join(old, "; "))
	}
	return proved("%s %s has the fixes that are known by version", s.o.Kind, info.Version)
}
