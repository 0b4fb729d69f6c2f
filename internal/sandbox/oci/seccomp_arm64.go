package oci

import "github.com/opencontainers/runtime-spec/specs-go"

const nativeArch = specs.ArchAARCH64

var seccompArch = []string{"sync_file_range2"}
