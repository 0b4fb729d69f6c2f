package image_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/image"
)

func TestImportRootArchive(t *testing.T) {
	t.Run("makes the mount points, the guest's file, the user and a network-less /etc", func(t *testing.T) {
		s := MustOpen(t, t.TempDir())
		m := MustImport(t, s, smallRoot(
			file("etc/resolv.conf", "nameserver 10.0.0.1\n"), file("etc/machine-id", "0123456789\n"),
			file("etc/passwd", "root:x:0:0:root:/root:/bin/sh"), file("etc/ssh/ssh_host_rsa_key", "secret"),
		)...)
		for _, name := range []string{
			"dev/shm", "dev/pts", "mnt/files", "opt/workbench/packages", "opt/workbench/skel", "proc", "run", "sys", "tmp",
		} {
			if st, err := os.Lstat(filepath.Join(m.Root, name)); err != nil || !st.IsDir() {
				t.Errorf("/%s is not a folder (%v)", name, err)
			}
		}
		MustRead(t, m, "opt/workbench/bin/guest", "")
		MustRead(t, m, "etc/resolv.conf", "")
		MustRead(t, m, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/tmp/home:/bin/sh\n")
		MustRead(t, m, "etc/group", "root:x:0:\nagent:x:1000:\n")
		MustLack(t, m, "etc/machine-id")
		MustLack(t, m, "etc/ssh/ssh_host_rsa_key")
		if err := image.CheckRoot(m.Root); err != nil {
			t.Error(err)
		}
	})

	t.Run("keeps a user that has the id already", func(t *testing.T) {
		m := MustImport(t, MustOpen(t, t.TempDir()), smallRoot(file("etc/passwd", "node:x:1000:1000::/home/node:/bin/sh\n"))...)
		MustRead(t, m, "etc/passwd", "node:x:1000:1000::/home/node:/bin/sh\n")
	})

	t.Run("plain, gzip and zstd give the same image", func(t *testing.T) {
		plain := MustTar(t, smallRoot(file("a", "content"))...)
		var gz bytes.Buffer
		w := gzip.NewWriter(&gz)
		w.Write(plain)
		w.Close()
		z, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		s := MustOpen(t, t.TempDir())
		var ids []string
		for _, archive := range [][]byte{plain, gz.Bytes(), z.EncodeAll(plain, nil)} {
			m, err := s.Import(t.Context(), MustWrite(t, archive), "test", nil)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, m.ID)
		}
		if ids[0] != ids[1] || ids[1] != ids[2] {
			t.Fatalf("ids differ: %v", ids)
		}
	})

	t.Run("finds languages and packages without running anything", func(t *testing.T) {
		m := MustImport(t, MustOpen(t, t.TempDir()), smallRoot(
			program("usr/local/bin/node"), program("bin/bash"),
			file("usr/local/include/node/node_version.h", "#define NODE_MAJOR_VERSION 20\n#define NODE_MINOR_VERSION 19\n#define NODE_PATCH_VERSION 2\n"),
			file("var/lib/dpkg/status", "Package: python3.13\nStatus: install ok installed\nVersion: 3.13.5-2+deb13u1\n\n"+
				"Package: bash\nStatus: install ok installed\nVersion: 5.2.37-2+b10\n\nPackage: gone\nStatus: deinstall ok config-files\nVersion: 1.0\n"),
		)...)
		want := []image.Language{
			{Name: workbench.Python, Version: "3.13.5", Interpreter: "/usr/bin/python3"},
			{Name: workbench.JavaScript, Version: "20.19.2", Interpreter: "/usr/local/bin/node"},
			{Name: workbench.TypeScript, Version: "20.19.2", Interpreter: "/usr/local/bin/node"},
			{Name: workbench.Bash, Version: "5.2.37", Interpreter: "/bin/bash"},
		}
		if !slices.Equal(m.Languages, want) {
			t.Errorf("languages %v, want %v", m.Languages, want)
		}
		if want := []image.Package{{Name: "bash", Version: "5.2.37-2+b10"}, {Name: "python3.13", Version: "3.13.5-2+deb13u1"}}; !slices.Equal(m.Packages, want) {
			t.Errorf("packages %v, want %v", m.Packages, want)
		}
		if !m.Offers(workbench.TypeScript) {
			t.Error("does not offer typescript")
		}
	})

	t.Run("drops devices, FIFOs, set-id bits and far owners, and says so", func(t *testing.T) {
		m := MustImport(t, MustOpen(t, t.TempDir()), smallRoot(
			entry{name: "dev/sda", kind: tar.TypeBlock, mode: 0o666}, entry{name: "x/null", kind: tar.TypeChar, mode: 0o666},
			entry{name: "pipe", kind: tar.TypeFifo, mode: 0o666},
			entry{name: "su", mode: 0o6755, body: "su"}, entry{name: "far", mode: 0o644, uid: 1_000_620_000},
		)...)
		MustLack(t, m, "x/null")
		MustLack(t, m, "dev/sda")
		MustLack(t, m, "pipe")
		if st, err := os.Stat(filepath.Join(m.Root, "su")); err != nil || st.Mode() != 0o755 {
			t.Errorf("su: %v, %v", st.Mode(), err)
		}
		want := "2 device nodes left out: a sandbox has its runtime's own|1 FIFOs or other special entries left out|" +
			"1 set-user-id or set-group-id bits removed|1 owners beyond id 65535 changed to nobody"
		if got := strings.Join(m.Notes, "|"); got != want {
			t.Errorf("notes %q, want %q", got, want)
		}
	})

	t.Run("the umask of the process does not show", func(t *testing.T) {
		entries := smallRoot(file("no/folder/entries/file", ""))
		open := MustImport(t, MustOpen(t, t.TempDir()), entries...)
		old := unix.Umask(0o077)
		defer unix.Umask(old)
		dir := filepath.Join(t.TempDir(), "images")
		closed := MustImport(t, MustOpen(t, dir), entries...)
		if open.ID != closed.ID {
			t.Errorf("ids differ: %s %s", open.ID, closed.ID)
		}
		for _, path := range []string{dir, filepath.Dir(closed.Root), closed.Root, filepath.Join(closed.Root, "no/folder")} {
			if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o755 {
				t.Errorf("%s: %v %v", path, st.Mode(), err)
			}
		}
	})

	t.Run("the last of duplicate entries wins, of whatever kind", func(t *testing.T) {
		m := MustImport(t, MustOpen(t, t.TempDir()), smallRoot(
			file("twice", "first"), file("twice", "second"),
			folder("was-folder/"), file("was-folder/inside", "x"), file("was-folder", "file now"),
			file("was-file", "x"), folder("was-file/"), file("was-file/inside", "y"),
		)...)
		MustRead(t, m, "twice", "second")
		MustRead(t, m, "was-folder", "file now")
		MustRead(t, m, "was-file/inside", "y")
	})
}

func TestImportStaysInside(t *testing.T) {
	outside := t.TempDir()
	victim := filepath.Join(outside, "victim")
	if err := os.WriteFile(victim, []byte("untouched"), 0o644); err != nil {
		t.Fatal(err)
	}
	intact := func(t *testing.T) {
		t.Helper()
		entries, err := os.ReadDir(outside)
		if err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(victim)
		if err != nil || string(content) != "untouched" || len(entries) != 1 {
			t.Fatalf("outside was touched: %v %q %v", entries, content, err)
		}
	}

	for name, entries := range map[string][]entry{
		"a name with dots":                    {file("../x", "y")},
		"a name with dots in the middle":      {file("a/../../x", "y")},
		"a hard link with dots":               {hardlink("stolen", "../../../../../../.."+victim)},
		"a hard link to a host's file":        {hardlink("stolen", victim)},
		"a hard link through a symbolic link": {symlink("l", outside), hardlink("stolen", "l/victim")},
		"a hard link to a folder":             {hardlink("stolen", "usr")},
		"a file used as a folder":             {file("f", ""), file("f/x", "")},
		"a loop of links":                     {symlink("a", "b"), symlink("b", "a"), file("a/x", "")},
		"a link to nothing":                   {symlink("a", strings.Repeat("x", 5000))},
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			MustRefuse(t, MustTar(t, smallRoot(entries...)...), workbench.CodeImageInvalid)
			intact(t)
		})
	}

	t.Run("an absolute name begins at the root", func(t *testing.T) {
		m := MustImport(t, MustOpen(t, t.TempDir()), smallRoot(file(victim, "inside"))...)
		MustRead(t, m, victim, "inside")
		intact(t)
	})

	t.Run("a file through an absolute link lands in the root", func(t *testing.T) {
		m := MustImport(t, MustOpen(t, t.TempDir()), smallRoot(symlink("l", outside), file("l/victim", "inside"))...)
		MustRead(t, m, victim, "inside")
		intact(t)
	})

	t.Run("a file through a climbing link lands in the root", func(t *testing.T) {
		up := strings.Repeat("../", 40)
		m := MustImport(t, MustOpen(t, t.TempDir()), smallRoot(symlink("l", up+outside), file("l/victim", "inside"))...)
		MustRead(t, m, victim, "inside")
		intact(t)
	})

	t.Run("a file replaces a link of its name", func(t *testing.T) {
		m := MustImport(t, MustOpen(t, t.TempDir()), smallRoot(symlink("l", victim), file("l", "inside"))...)
		MustRead(t, m, "l", "inside")
		intact(t)
	})

	t.Run("a folder replaces a link of its name", func(t *testing.T) {
		m := MustImport(t, MustOpen(t, t.TempDir()), smallRoot(symlink("l", outside), folder("l/"), file("l/victim", "inside"))...)
		MustRead(t, m, "l/victim", "inside")
		intact(t)
	})
}

func TestImportRefusesLinksWhereSandboxesMount(t *testing.T) {
	for _, name := range []string{
		"dev", "dev/null", "dev/pts", "dev/shm", "dev/console", "dev/zero", "proc", "sys", "run", "tmp", "mnt", "mnt/files",
		"opt", "opt/workbench", "opt/workbench/bin", "opt/workbench/bin/guest", "opt/workbench/packages", "etc/passwd", "etc/hosts",
	} {
		t.Run(name, func(t *testing.T) {
			e := MustRefuse(t, MustTar(t, smallRoot(symlink(name, "/usr"))...), workbench.CodeImageInvalid)
			if !strings.Contains(e.Detail, "/"+name) {
				t.Errorf("the detail does not name /%s: %s", name, e.Detail)
			}
		})
	}

	t.Run("CheckRoot sees a link that appeared later", func(t *testing.T) {
		m := MustImport(t, MustOpen(t, t.TempDir()), smallRoot()...)
		if err := os.Symlink("/etc", filepath.Join(m.Root, "dev/null")); err != nil {
			t.Fatal(err)
		}
		if err := image.CheckRoot(m.Root); !workbench.HasCode(err, workbench.CodeImageInvalid) {
			t.Fatalf("%v, want image_invalid", err)
		}
	})

	t.Run("links inside /dev that lead to /proc are dropped", func(t *testing.T) {
		m := MustImport(t, MustOpen(t, t.TempDir()), smallRoot(symlink("dev/fd", "/proc/self/fd"))...)
		MustLack(t, m, "dev/fd")
	})
}

func TestImportBounds(t *testing.T) {
	t.Run("an entry larger than the limit is refused before it is read", func(t *testing.T) {
		archive := MustTar(t, smallRoot(entry{name: "huge", mode: 0o644, size: 1 << 50})...)
		MustRefuse(t, archive, workbench.CodeImageInvalid)
	})

	t.Run("a sparse entry counts as what it unpacks to", func(t *testing.T) {
		archive := MustTar(t, smallRoot()...)
		archive = append(archive[:len(archive)-1024], sparseHeader("sparse", 1<<50)...)
		archive = append(archive, make([]byte, 1024)...)
		e := MustRefuse(t, archive, workbench.CodeImageInvalid)
		if !strings.Contains(e.Detail, "larger than") {
			t.Fatalf("detail %q", e.Detail)
		}
	})

	t.Run("limits on bytes and entries hold across the archive", func(t *testing.T) {
		for _, limits := range []image.Limits{{Bytes: 100, Entries: 1000}, {Bytes: 1 << 20, Entries: 6}} {
			s := MustOpen(t, t.TempDir())
			s.Limits = limits
			archive := MustTar(t, smallRoot(file("a", strings.Repeat("a", 60)), file("b", strings.Repeat("b", 60)))...)
			_, err := s.Import(t.Context(), MustWrite(t, archive), "test", nil)
			if !workbench.HasCode(err, workbench.CodeImageInvalid) {
				t.Errorf("%+v: %v, want image_invalid", limits, err)
			}
			MustBeEmpty(t, s)
		}
	})

	t.Run("a cut archive is refused", func(t *testing.T) {
		archive := MustTar(t, smallRoot(file("a", strings.Repeat("a", 5000)))...)
		MustRefuse(t, archive[:len(archive)-3000], workbench.CodeImageInvalid)
	})

	t.Run("a cut compressed archive is refused", func(t *testing.T) {
		var gz bytes.Buffer
		w := gzip.NewWriter(&gz)
		w.Write(MustTar(t, smallRoot()...))
		w.Close()
		MustRefuse(t, gz.Bytes()[:gz.Len()-20], workbench.CodeImageInvalid)
	})

	t.Run("what is no archive is refused", func(t *testing.T) {
		MustRefuse(t, bytes.Repeat([]byte("not an archive "), 1000), workbench.CodeImageInvalid)
	})

	t.Run("an image without an interpreter is refused", func(t *testing.T) {
		MustRefuse(t, MustTar(t, folder("etc/"), file("etc/motd", "hello")), workbench.CodeImageInvalid)
	})

	t.Run("a missing file and a bad name are the caller's mistakes", func(t *testing.T) {
		s := MustOpen(t, t.TempDir())
		for _, try := range [][2]string{
			{filepath.Join(t.TempDir(), "nothing"), "test"},
			{MustWrite(t, MustTar(t, smallRoot()...)), "Not A Name"},
			{MustWrite(t, MustTar(t, smallRoot()...)), "img_00000000"},
		} {
			if _, err := s.Import(t.Context(), try[0], try[1], nil); !workbench.HasCode(err, workbench.CodeInvalidRequest) {
				t.Errorf("%v: %v, want invalid_request", try, err)
			}
		}
		MustBeEmpty(t, s)
	})
}

// sparseHeader is an entry of the old GNU sparse form: no data, size bytes of
// holes. archive/tar reads but does not write it.
func sparseHeader(name string, size int64) []byte {
	h := make([]byte, 512)
	copy(h, name)
	copy(h[100:], "0000644\x000000000\x000000000\x0000000000000\x0000000000000\x00        S")
	copy(h[257:], "ustar  \x00")
	base256 := func(field []byte, v int64) {
		for i := len(field) - 1; i > 0; i-- {
			field[i] = byte(v)
			v >>= 8
		}
		field[0] = 0x80
	}
	base256(h[386:398], size) // one part, at the end, empty
	base256(h[398:410], 0)
	base256(h[483:495], size)
	sum := 0
	for _, c := range h {
		sum += int(c)
	}
	copy(h[148:], []byte{
		'0' + byte(sum>>15&7), '0' + byte(sum>>12&7), '0' + byte(sum>>9&7),
		'0' + byte(sum>>6&7), '0' + byte(sum>>3&7), '0' + byte(sum&7), 0, ' ',
	})
	return h
}
