// Command gen writes the OpenAPI document to standard output.
package main

import (
	"fmt"
	"os"

	"github.com/workbenchdev/workbench/internal/api"
)

func main() {
	if _, err := os.Stdout.Write(api.Document("")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
