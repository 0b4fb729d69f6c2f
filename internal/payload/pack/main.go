// Command pack compresses one executable into the folder that the server
// embeds. It is run by make payload.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/workbenchdev/workbench/internal/payload"
)

func main() {
	dir := flag.String("dir", "internal/payload/files", "folder to write to")
	name := flag.String("name", "", "guest, runsc or runc")
	version := flag.String("version", "", "version the executable was built from")
	flag.Parse()
	if flag.NArg() != 1 || *name == "" || *version == "" {
		fmt.Fprintln(os.Stderr, "usage: pack -name NAME -version VERSION [-dir DIR] EXECUTABLE")
		os.Exit(2)
	}
	info, err := payload.Pack(*dir, payload.Name(*name), *version, flag.Arg(0))
	if err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
	fmt.Printf("packed %s %s (%d bytes, sha256 %.16s)\n", info.Name, info.Version, info.Size, info.SHA256)
}
