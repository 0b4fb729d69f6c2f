package verify

import "github.com/workbenchdev/workbench/internal/sandbox/oci"
var blind = map[string]blindness{}
type blindness string
func (b blindness) why(oci.Kind) string { return string(b) }
func counted(string, oci.Kind) bool { return true }
