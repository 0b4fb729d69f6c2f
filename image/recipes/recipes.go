// Package recipes holds the descriptions of the sandbox images that Workbench
// can build: plain data, read by internal/image.
//
// Each recipe is a folder with a recipe.json; the scripts in setup run inside
// the new root, in the order the recipe names them.
package recipes

import "embed"

// Files holds <name>/recipe.json for every recipe, and setup/*.
//
//go:embed minimal standard setup
var Files embed.FS
