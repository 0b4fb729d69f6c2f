package workbench

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
)

// ChainHash is the row's link in the audit chain: SHA-256, hex, over the hash of
// the row before it ("" of the first) and every field of the row, each as a
// netstring (length in bytes, a colon, the bytes, a comma). Times count in
// microseconds since 1970. Who has the exported rows can compute it again.
func (e AuditEntry) ChainHash(previous string) string {
	h := sha256.New()
	for _, field := range []string{"workbench audit 1", previous, strconv.FormatInt(e.Seq, 10), e.ID, strconv.FormatInt(e.At.UnixMicro(), 10),
		e.ProjectID, e.TenantID, e.UserID, e.KeyID, e.Action, e.Target, e.Outcome, e.Address, e.RequestID, string(e.Detail)} {
		h.Write([]byte(strconv.Itoa(len(field)) + ":" + field + ",")) // hash.Hash never fails
	}
	return hex.EncodeToString(h.Sum(nil))
}

// AuditCheck is what became of a look at the whole trail.
type AuditCheck struct {
	Intact    bool   `json:"intact"`
	Rows      int64  `json:"rows"`      // in the chain
	Unchained int64  `json:"unchained"` // from before there was a chain
	Head      string `json:"head"`      // hash of the last row: note it elsewhere, and a trail cut short shows
	// Broken is the first row that does not fit, by its place in the chain, and
	// Why what is wrong with it.
	Broken int64  `json:"broken,omitempty"`
	Why    string `json:"why,omitempty"`
}

// AuditVerifier follows the chain row by row.
type AuditVerifier struct {
	seq  int64
	hash string
}

// Next takes the next row, in order; what it returns is wrong with the row, ""
// for nothing.
func (v *AuditVerifier) Next(e AuditEntry) string {
	switch {
	case e.Seq != v.seq+1:
		return "row " + strconv.FormatInt(v.seq+1, 10) + " is missing"
	case e.ChainHash(v.hash) != e.Hash:
		return "the row, or one before it, was changed"
	}
	v.seq, v.hash = e.Seq, e.Hash
	return ""
}

// Head is the place and the hash of the last row that fitted.
func (v *AuditVerifier) Head() (int64, string) { return v.seq, v.hash }
