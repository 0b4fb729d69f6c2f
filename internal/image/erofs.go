package image

import (
	"bytes"
	"context"
	"os/exec"
	"strings"

	"github.com/workbenchdev/workbench"
)

// packEROFS writes the root as one EROFS file, which gVisor reads faster than a
// folder: uncompressed, without inline data (which cannot be mapped, so that
// programs would not start) and without extended attributes. Times are kept:
// imported images may hold compiled Python files that are compared with them.
// It reports false, and no error, where mkfs.erofs is not installed.
func packEROFS(ctx context.Context, root, file, digestHex string) (bool, error) {
	tool, err := exec.LookPath("mkfs.erofs")
	if err != nil {
		return false, nil //nolint:nilerr // an image does without
	}
	cmd := exec.CommandContext(ctx, tool, "--quiet", "-E", "noinline_data", "-x-1", "-U", uuidOf(digestHex), file, root)
	var complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &complaint, &complaint
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if strings.Contains(complaint.String(), "No space left") {
			return false, diskFull("pack the image").Caused(err)
		}
		return false, workbench.E(workbench.CodeUnavailable, "mkfs.erofs could not pack the image: %.300s", lastLine(complaint.String())).
			WithHint("install a current erofs-utils (1.5 or newer), or remove it: images also work without").Caused(err)
	}
	return true, nil
}

// uuidOf makes the file's UUID from the image's digest, so that one root gives
// one file.
func uuidOf(digestHex string) string {
	h := digestHex
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:32]
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}
