package govern

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/upstream"
)

// canonical is the one form of a call's arguments that is judged, recorded and
// sent: an object with sorted keys, each once (of a repeated one the last
// counts), its numbers as they were written; and its digest.
func canonical(raw json.RawMessage) (json.RawMessage, string, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		raw = json.RawMessage("{}")
	}
	sum := sha256.Sum256(raw)
	digest := hex.EncodeToString(sum[:])
	if len(raw) > workbench.MaxToolArguments {
		return nil, digest, workbench.E(workbench.CodeBodyTooLarge, "the arguments have %d bytes, %d are allowed", len(raw), workbench.MaxToolArguments).WithField("args").
			WithHint("save what is large as a file, and name that")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var object map[string]any
	err := d.Decode(&object)
	if err == nil {
		_, err = d.Token() // nothing may follow
	}
	if err != io.EOF || object == nil { //nolint:errorlint // Token returns it as it is
		return nil, digest, workbench.E(workbench.CodeArgumentsInvalid, "the arguments must be a JSON object").WithField("args").
			WithHint(`such as {"query": "1234"}`)
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(object); err != nil {
		return nil, digest, workbench.E(workbench.CodeArgumentsInvalid, "the arguments must be a JSON object").WithField("args").Caused(err)
	}
	canon := bytes.TrimRight(out.Bytes(), "\n")
	sum = sha256.Sum256(canon)
	return canon, hex.EncodeToString(sum[:]), nil
}

// arguments refuses what the tool's schema does. Code: arguments_invalid.
func (g *Governor) arguments(tool workbench.Tool, args json.RawMessage) error {
	return upstream.Arguments(tool.InputSchema, args)
}
