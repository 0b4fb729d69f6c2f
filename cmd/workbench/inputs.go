package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// input is a local file for the workspace.
type input struct {
	arg        string // as it was given
	file, path string
}

// maxInputs bounds the files of one run: the most that a submission selects.
const maxInputs = 100

// inputs reads what --file names, before anything is sent: files, and
// directories for the regular files below them.
func (a *app) inputs(args []string) ([]input, error) {
	var all []input
	taken := map[string]input{}
	for _, arg := range args {
		found, err := a.inputsOf(arg)
		if err != nil {
			return nil, err
		}
		for _, in := range found {
			if in.path, err = workbench.CleanPath("--file "+in.arg, in.path); err != nil {
				return nil, workbench.AsError(err).WithField("file")
			}
			if other, there := taken[in.path]; there {
				return nil, workbench.E(workbench.CodePathConflict, "--file %s and --file %s would be at the same path: %s", other.arg, arg, in.path).WithField("file").
					WithHint("give one of them another path: --file %s=PATH", strings.TrimSuffix(arg, "="+in.path))
			}
			taken[in.path] = in
			all = append(all, in)
		}
		if len(all) > maxInputs {
			return nil, workbench.E(workbench.CodeLimitOutOfRange, "--file takes at most %d files for a run, and %s has more", maxInputs, arg).WithField("file").
				WithHint("pack them into an archive, and unpack that in the program")
		}
	}
	return all, nil
}

// inputsOf are the files that one --file names.
func (a *app) inputsOf(arg string) ([]input, error) {
	in := input{arg: arg, file: arg}
	st, err := os.Stat(arg)
	if err != nil {
		if i := strings.LastIndex(arg, "="); i > 0 {
			in.file, in.path = arg[:i], arg[i+1:]
			st, err = os.Stat(in.file)
		}
	}
	if err == nil && st.IsDir() {
		return a.inputsBelow(in)
	}
	if in.file == arg {
		in.path = filepath.Base(arg)
	}
	opened, _, err := openInput(in.file)
	if err != nil {
		return nil, err
	}
	return []input{in}, opened.Close()
}

// inputsBelow are the regular files below a directory, at the same paths below
// its name, or below the path given; "." is the workspace itself. What else is
// there is named and left out: where a link leads is not the directory's.
func (a *app) inputsBelow(dir input) ([]input, error) {
	to := filepath.ToSlash(dir.path)
	if dir.file == dir.arg {
		to = filepath.Base(filepath.Clean(dir.file))
	}
	var all []input
	skipped := 0
	err := fs.WalkDir(os.DirFS(dir.file), ".", func(at string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return nil
		case !d.Type().IsRegular():
			if skipped++; skipped <= maxLinksShown {
				a.note("--file %s leaves out %s: %s", dir.arg, filepath.Join(dir.file, at), kindOf(d.Type()))
			}
			return nil
		case len(all) > maxInputs:
			return fs.SkipAll
		}
		all = append(all, input{arg: dir.arg, file: filepath.Join(dir.file, filepath.FromSlash(at)), path: path.Join(to, at)})
		return nil
	})
	if err != nil {
		return nil, workbench.E(workbench.CodeInvalidRequest, "the directory cannot be read: %s", dir.file).WithField("file").WithHint("check its permissions").Caused(err)
	}
	if skipped > maxLinksShown {
		a.note("--file %s leaves out %d links and special files in all", dir.arg, skipped)
	}
	if len(all) == 0 {
		a.note("--file %s holds no regular file", dir.arg)
	}
	return all, nil
}

func kindOf(t fs.FileMode) string {
	if t&fs.ModeSymlink != 0 {
		return "a symbolic link"
	}
	return "a special file"
}

// openInput opens a local file that is to be uploaded, and tells its length. It
// waits for nobody: a FIFO is refused, not read.
func openInput(name string) (*os.File, int64, error) {
	st, err := os.Stat(name)
	if err == nil && !st.Mode().IsRegular() {
		return nil, 0, workbench.E(workbench.CodeInvalidRequest, "not a regular file: %s", name).WithField("file").WithHint("name files one by one, or pack them")
	}
	var f *os.File
	if err == nil {
		if f, err = os.Open(name); err == nil {
			return f, st.Size(), nil
		}
	}
	return nil, 0, workbench.E(workbench.CodeInvalidRequest, "the file cannot be read: %s", name).WithField("file").WithHint("check its name and its permissions").Caused(err)
}

// uploadAll uploads the inputs, and selects each at its path.
func uploadAll(ctx context.Context, client *client, session string, inputs []input) ([]workbench.ArtifactSelect, error) {
	var selected []workbench.ArtifactSelect
	for _, in := range inputs {
		kept, err := upload(ctx, client, session, in)
		if err != nil {
			return nil, err
		}
		selected = append(selected, workbench.ArtifactSelect{ID: kept.ID, Path: in.path})
	}
	return selected, nil
}

func upload(ctx context.Context, client *client, session string, in input) (workbench.Artifact, error) {
	f, length, err := openInput(in.file)
	if err != nil {
		return workbench.Artifact{}, err
	}
	defer f.Close()
	kept, err := client.UploadSessionArtifact(ctx, session, sdk.Upload{Name: path.Base(in.path), Path: in.path, Size: length}, f)
	return kept, naming(err, in.file)
}

// naming says which file an error is about.
func naming(err error, file string) error {
	var coded *workbench.Error
	if !errors.As(err, &coded) {
		return err
	}
	named := *coded
	named.Detail = file + ": " + named.Detail
	var answer *sdk.Error
	if errors.As(err, &answer) {
		told := *answer
		told.Err = &named
		return &told
	}
	return &named
}
