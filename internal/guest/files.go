package guest

import (
	"context"

	"github.com/workbenchdev/workbench"
)

func transpileMain() int        { return 1 }
func shellCommand([]string) int { return 1 }

func (e *execution) transpile(context.Context, string, []byte) ([]byte, error) {
	return nil, workbench.E(workbench.CodeNotBuilt, "not built yet")
}
