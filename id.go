package workbench

import (
	"encoding/base32"
	"strings"

	"github.com/google/uuid"
)

// IDKind is the prefix of a typed id: what the id names.
type IDKind string

// The kinds of id. An id is kind + "_" + 26 characters: a UUIDv7 in lower-case
// base32 without padding, so ids of one kind sort by creation time.
const (
	KindProject  IDKind = "prj"
	KindTenant   IDKind = "ten"
	KindUser     IDKind = "usr"
	KindGroup    IDKind = "grp"
	KindKey      IDKind = "key"
	KindSession  IDKind = "ses"
	KindRun      IDKind = "run"
	KindArtifact IDKind = "art"
	KindCommit   IDKind = "cmt"
	KindSandbox  IDKind = "sbx"
	KindAudit    IDKind = "aud"
	KindRequest  IDKind = "req"
	KindEngine   IDKind = "eng"
	KindContext  IDKind = "ctx"
	KindReceipt  IDKind = "rcp"
	KindConnect  IDKind = "con"
	KindSeries   IDKind = "ser"
	KindReplay   IDKind = "rpl"
	KindUsage    IDKind = "use"
)

var idEncoding = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

const idBodyLength = 26

// NewID returns a fresh id of the kind.
func NewID(kind IDKind) string {
	u := uuid.Must(uuid.NewV7())
	return string(kind) + "_" + idEncoding.EncodeToString(u[:])
}

// ParseID reports whether s is a well-formed id of the kind. The error is
// invalid_request and does not repeat s.
func ParseID(kind IDKind, s string) error {
	body, ok := strings.CutPrefix(s, string(kind)+"_")
	if ok && len(body) == idBodyLength {
		if raw, err := idEncoding.DecodeString(body); err == nil && len(raw) == 16 {
			return nil
		}
	}
	return E(CodeInvalidRequest, "not a well-formed %s id", kind).
		WithHint("ids look like %s_ followed by 26 lower-case characters", kind)
}
