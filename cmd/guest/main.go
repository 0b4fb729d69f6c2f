// Command guest is the static binary that runs inside every sandbox.
package main

import (
	"os"

	"github.com/workbenchdev/workbench/internal/guest"
)

func main() { os.Exit(guest.Main(os.Args)) }
