package guest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/workbenchdev/workbench/internal/guestwire"
)

const shellUsage = `usage:
  workbench call APP.TOOL [JSON|-] [--version V] [--connection ALIAS]
                                call a tool; prints the receipt as JSON
  workbench receipt ID [--wait SECONDS]
                                what became of a call, in so many seconds at most
  workbench tools search QUERY [--limit N]
                                tools of this session, one JSON object a line
  workbench tools schema APP.TOOL [--version V]
                                what a tool takes and gives, as JSON
  workbench fetch URL [--method M] [--header 'NAME: VALUE'] [--body TEXT|-] [--connection ALIAS]
                                what a host answers that this run may reach
  workbench extract FILE [--format text|markdown|tables]
                                the text of a document, or its tables as JSON
  workbench ai complete [TEXT|-] [--system TEXT] [--max-tokens N]
  workbench ai summarise [TEXT|-] [--words N]
  workbench ai classify [TEXT|-] --labels A,B,...
  workbench ai extract [TEXT|-] --schema JSON
                                ask the model of this server; prints text, or JSON
  workbench web search QUERY [--limit N]
                                web pages, one JSON object a line
  eval "$(workbench packages install [--manager pip|npm] NAME...)"
                                install packages, for later runs too; prints what makes
                                the rest of the script find them
  workbench save FILE...        keep files beyond the session; prints id and name of each
  workbench result JSON|-       set the run's structured result

- stands for standard input, which ai reads also where there is no TEXT.
arc0 is the same command.

exit status of call and receipt: 0 the tool succeeded, 1 it failed or was
refused, or what became of it is unknown, 2 wrong usage, 3 it waits for an
approval or has not ended, 4 it was denied, or nobody decided in time.
Of the others: 0, 1 something was refused, 2 wrong usage.
`

// Exit statuses of the helper command.
const (
	shellFailed  = 1
	shellMisused = 2
	shellPending = 3
	shellDenied  = 4
)

// misuse is wrong usage of the helper command.
type misuse struct{ error }

func misused(format string, args ...any) error { return misuse{fmt.Errorf(format, args...)} }

// shellCommand is the helper of shell scripts, and of whatever starts programs.
func shellCommand(args []string) int {
	lean()
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, shellUsage)
		return shellMisused
	}
	if slices.Contains([]string{"help", "--help", "-h"}, args[0]) {
		fmt.Print(shellUsage)
		return 0
	}
	commands := map[string]func([]string) (int, error){
		"save": saveFiles, "result": setResult, "call": callTool, "receipt": readReceipt,
		"extract": extractText, "packages install": installPackages, "fetch": fetchURL, "tools search": searchTools, "tools schema": readSchema, "web search": searchWeb,
	}
	for name, task := range shellTasks {
		commands["ai "+name] = func(args []string) (int, error) { return askAI(task, args) }
	}
	for words := min(2, len(args)); words > 0; words-- {
		name := strings.Join(args[:words], " ")
		command := commands[name]
		if command == nil {
			continue
		}
		status, err := command(args[words:])
		if err == nil {
			return status
		}
		fmt.Fprintf(os.Stderr, "workbench: %s: %v\n", name, err)
		if errors.As(err, new(misuse)) {
			fmt.Fprintln(os.Stderr, "workbench --help shows how it is used")
			return shellMisused
		}
		return shellFailed
	}
	fmt.Fprint(os.Stderr, shellUsage)
	return shellMisused
}

// given are options of a command line, by name.
type given map[string][]string

// options takes --name value and --name=value out of the arguments. Behind -- are
// none.
func options(args []string, known ...string) (rest []string, o given, err error) {
	o = given{}
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		if arg == "--" {
			return append(rest, args...), o, nil
		}
		option, ok := strings.CutPrefix(arg, "--")
		if !ok {
			rest = append(rest, arg)
			continue
		}
		name, value, has := strings.Cut(option, "=")
		if !slices.Contains(known, name) {
			return nil, nil, misused("there is no option --%s here", name)
		}
		if !has {
			if len(args) == 0 {
				return nil, nil, misused("--%s needs a value", name)
			}
			value, args = args[0], args[1:]
		}
		o[name] = append(o[name], value)
	}
	return rest, o, nil
}

// last is the value of an option, "" if it was not given.
func (o given) last(name string) string {
	if v := o[name]; len(v) > 0 {
		return v[len(v)-1]
	}
	return ""
}

// argument is what an argument says: itself, or for "-" what standard input does.
func argument(arg string) (string, error) {
	if arg != "-" {
		return arg, nil
	}
	raw, err := io.ReadAll(io.LimitReader(os.Stdin, brokerRequest+1))
	if err == nil && len(raw) > brokerRequest {
		err = fmt.Errorf("standard input has more than %d bytes", brokerRequest)
	}
	return string(raw), err
}

func saveFiles(names []string) (int, error) {
	if len(names) == 0 {
		return 0, misused("which files?")
	}
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
			status = shellFailed
		}
	}
	return status, nil
}

func setResult(args []string) (int, error) {
	if len(args) != 1 {
		return 0, misused("it takes one JSON value")
	}
	value, err := argument(args[0])
	if err != nil {
		return 0, err
	}
	if !json.Valid([]byte(value)) {
		return 0, misused("the value is not JSON")
	}
	_, err = exchange(brokerCall{Op: guestwire.OpResult, Value: json.RawMessage(value)})
	return 0, err
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
		return nil, errors.New("the sandbox ended the call")
	}
	if a.Error != nil {
		if a.Error.Hint != "" {
			return nil, fmt.Errorf("%s (%s; %s)", a.Error.Detail, a.Error.Code, a.Error.Hint)
		}
		return nil, fmt.Errorf("%s (%s)", a.Error.Detail, a.Error.Code)
	}
	return a.Result, nil
}

// ask has the host answer an operation that it alone understands.
func ask(op string, args any) (json.RawMessage, error) {
	raw, err := guestwire.Marshal(args)
	if err != nil {
		return nil, err
	}
	return exchange(brokerCall{Op: op, Value: raw})
}

// isObject reports whether a text is one JSON object.
func isObject(text string) bool {
	return json.Valid([]byte(text)) && bytes.HasPrefix(bytes.TrimSpace([]byte(text)), []byte("{"))
}
