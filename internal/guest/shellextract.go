package guest

import (
	"context"
	"errors"
	"os"
	"os/exec"
)

// extractText has Python read a document, whose libraries for that are in the
// image.
func extractText(args []string) (int, error) {
	c := exec.CommandContext(context.Background(), "python3", append([]string{libDir + "/python/workbench_extract.py"}, args...)...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := c.Run()
	var ended *exec.ExitError
	switch {
	case errors.As(err, &ended):
		return max(shellFailed, ended.ExitCode()), nil
	case errors.Is(err, exec.ErrNotFound):
		return 0, errors.New("this sandbox image has no Python, which reads documents")
	}
	return 0, err
}
