package guest

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"github.com/workbenchdev/workbench/internal/guestwire"
)

const shellUsage = `usage:
  workbench save FILE...        keep files beyond the session; prints id and name of each
  workbench result JSON         set the run's structured result
  workbench result -            the same, read from standard input
`

// shellCommand is the helper of shell scripts. Exit statuses: 0, 1 when
// something was refused, 2 for wrong usage.
func shellCommand(args []string) int {
	lean()
	if len(args) == 0 || args[0] == "help" || args[0] == "--help" || args[0] == "-h" {
		fmt.Fprint(os.Stderr, shellUsage)
		return 2
	}
	switch {
	case args[0] == "save" && len(args) > 1:
		return saveFiles(args[1:])
	case args[0] == "result" && len(args) == 2:
		return setResult(args[1])
	}
	fmt.Fprint(os.Stderr, shellUsage)
	return 2
}

func saveFiles(names []string) int {
	status := 0
	for _, name := range names {
		path, err := filepath.Abs(name)
		if err == nil {
			var raw json.RawMessage
			raw, err = exchange(brokerCall{Op: guestwire.OpSave, Path: base64.StdEncoding.EncodeToString([]byte(path))})
			var receipt struct {
				ID   string `json:"id"`
				Name string `json:"name"`
			}
			if err == nil {
				err = json.Unmarshal(raw, &receipt)
			}
			if err == nil {
				fmt.Printf("%s\t%s\n", receipt.ID, receipt.Name)
			}
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "workbench: save %s: %v\n", name, err)
			status = 1
		}
	}
	return status
}

func setResult(value string) int {
	if value == "-" {
		raw, err := io.ReadAll(io.LimitReader(os.Stdin, brokerRequest))
		if err != nil {
			fmt.Fprintf(os.Stderr, "workbench: result: %v\n", err)
			return 1
		}
		value = string(raw)
	}
	if !json.Valid([]byte(value)) {
		fmt.Fprintln(os.Stderr, "workbench: result: the value is not JSON")
		return 2
	}
	if _, err := exchange(brokerCall{Op: guestwire.OpResult, Value: json.RawMessage(value)}); err != nil {
		fmt.Fprintf(os.Stderr, "workbench: result: %v\n", err)
		return 1
	}
	return 0
}

// exchange makes one call over the run's socket.
func exchange(call brokerCall) (json.RawMessage, error) {
	call.Token = os.Getenv("WORKBENCH_TOKEN")
	raw, err := guestwire.Marshal(call)
	if err != nil {
		return nil, err
	}
	c, err := (&net.Dialer{}).DialContext(context.Background(), "unix", os.Getenv("WORKBENCH_SOCKET"))
	if err != nil {
		return nil, fmt.Errorf("the run's socket cannot be reached; it ends with the run: %w", err)
	}
	defer c.Close()
	if _, err := c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(raw))), raw...)); err != nil {
		return nil, err
	}
	answer, err := io.ReadAll(c)
	if err != nil {
		return nil, err
	}
	var a brokerAnswer
	if len(answer) < 4 || json.Unmarshal(answer[4:], &a) != nil {
		return nil, fmt.Errorf("the sandbox ended the call")
	}
	if a.Error != nil {
		if a.Error.Hint != "" {
			return nil, fmt.Errorf("%s (%s; %s)", a.Error.Detail, a.Error.Code, a.Error.Hint)
		}
		return nil, fmt.Errorf("%s (%s)", a.Error.Detail, a.Error.Code)
	}
	return a.Result, nil
}
