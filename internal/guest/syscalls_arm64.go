package guest

import "golang.org/x/sys/unix"

// auditArch is the native ABI.
const auditArch = unix.AUDIT_ARCH_AARCH64

var archAllowedCalls []uintptr

var archRefusedCalls []uintptr
