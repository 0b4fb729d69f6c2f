package oci

import "github.com/opencontainers/runtime-spec/specs-go"

const nativeArch = specs.ArchX86_64

var seccompArch = []string{"arch_prctl"}
