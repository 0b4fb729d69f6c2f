package guest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// receiptPause is the least time between two looks at a receipt.
const receiptPause = 500 * time.Millisecond

func callTool(args []string) (int, error) {
	rest, o, err := options(args, "version", "connection", "connection-alias")
	if err != nil {
		return 0, err
	}
	if len(rest) < 1 || len(rest) > 2 {
		return 0, misused("it takes the name of a tool and its arguments as one JSON object")
	}
	text := "{}"
	if len(rest) == 2 {
		if text, err = argument(rest[1]); err != nil {
			return 0, err
		}
	}
	if !isObject(text) {
		return 0, misused("the arguments of a tool are one JSON object")
	}
	alias := o.last("connection")
	if alias == "" {
		alias = o.last("connection-alias")
	}
	raw, err := ask(guestwire.OpCall, guestwire.CallArgs{Tool: rest[0], Version: o.last("version"), Connection: alias, Args: json.RawMessage(text)})
	if err != nil {
		return 0, err
	}
	return printReceipt(raw)
}

func readReceipt(args []string) (int, error) {
	rest, o, err := options(args, "wait")
	if err != nil {
		return 0, err
	}
	if len(rest) != 1 {
		return 0, misused("it takes the id of one receipt")
	}
	var wait time.Duration
	if s := o.last("wait"); s != "" {
		seconds, err := strconv.ParseFloat(s, 64)
		if err != nil || seconds < 0 || seconds > 1e6 {
			return 0, misused("--wait takes seconds")
		}
		wait = time.Duration(seconds * float64(time.Second))
	}
	for end := time.Now().Add(wait); ; {
		began := time.Now()
		left := max(0, end.Sub(began))
		raw, err := ask(guestwire.OpReceipt, guestwire.ReceiptArgs{ID: rest[0], WaitMs: min(left.Milliseconds(), guestwire.MaxReceiptWaitMs)})
		if err != nil {
			return 0, err
		}
		if left = time.Until(end); left <= 0 || statusOf(raw).Terminal() {
			return printReceipt(raw)
		}
		time.Sleep(min(left, receiptPause-time.Since(began))) // of a host that does not wait itself
	}
}

func statusOf(receipt json.RawMessage) workbench.CallStatus {
	var r struct {
		Status workbench.CallStatus `json:"status"`
	}
	_ = json.Unmarshal(receipt, &r) // what has no status is printed all the same
	return r.Status
}

// printReceipt prints a receipt; the exit status says what became of the call.
func printReceipt(raw json.RawMessage) (int, error) {
	if _, err := fmt.Printf("%s\n", raw); err != nil {
		return 0, err
	}
	switch statusOf(raw) {
	case workbench.CallSucceeded:
		return 0, nil
	case workbench.CallPending, workbench.CallExecuting:
		return shellPending, nil
	case workbench.CallDenied, workbench.CallExpired:
		return shellDenied, nil
	default:
		return shellFailed, nil
	}
}

func searchTools(args []string) (int, error) {
	query, limit, err := search(args)
	if err != nil {
		return 0, err
	}
	return printItems(ask(guestwire.OpToolSearch, guestwire.ToolSearchArgs{Query: query, Limit: limit}))
}

func searchWeb(args []string) (int, error) {
	query, limit, err := search(args)
	if err != nil {
		return 0, err
	}
	return printItems(ask(guestwire.OpWebSearch, guestwire.WebSearchArgs{Query: query, Limit: limit}))
}

func search(args []string) (query string, limit int, err error) {
	rest, o, err := options(args, "limit")
	if err != nil {
		return "", 0, err
	}
	if len(rest) == 0 {
		return "", 0, misused("what for?")
	}
	limit, err = o.number("limit")
	return strings.Join(rest, " "), limit, err
}

// number is the value of an option that counts something, 0 if it was not given.
func (o given) number(name string) (int, error) {
	s := o.last(name)
	if s == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		return 0, misused("--%s takes a number, at least 1", name)
	}
	return n, nil
}

// printItems prints what was found, each on a line.
func printItems(raw json.RawMessage, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	var found struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(raw, &found); err != nil {
		return 0, err
	}
	for _, item := range found.Items {
		fmt.Printf("%s\n", item)
	}
	return 0, nil
}

func readSchema(args []string) (int, error) {
	rest, o, err := options(args, "version")
	if err != nil {
		return 0, err
	}
	if len(rest) != 1 {
		return 0, misused("it takes the name of one tool")
	}
	raw, err := ask(guestwire.OpToolSchema, guestwire.ToolSchemaArgs{Tool: rest[0], Version: o.last("version")})
	if err != nil {
		return 0, err
	}
	_, err = fmt.Printf("%s\n", raw)
	return 0, err
}

// shellTasks are the tasks of the model, by what they are called.
var shellTasks = map[string]string{
	"complete": guestwire.AIComplete, "summarise": guestwire.AISummarise, "summarize": guestwire.AISummarise,
	"classify": guestwire.AIClassify, "extract": guestwire.AIExtract,
}

// taskOptions are the options of each task.
var taskOptions = map[string][]string{
	guestwire.AIComplete: {"system", "max-tokens"}, guestwire.AISummarise: {"words"},
	guestwire.AIClassify: {"labels"}, guestwire.AIExtract: {"schema"},
}

func askAI(task string, args []string) (int, error) {
	rest, o, err := options(args, taskOptions[task]...)
	if err != nil {
		return 0, err
	}
	if len(rest) > 1 {
		return 0, misused("it takes one text")
	}
	a := guestwire.AIArgs{Task: task, System: o.last("system")}
	if a.MaxTokens, err = o.number("max-tokens"); err != nil {
		return 0, err
	}
	if a.Words, err = o.number("words"); err != nil {
		return 0, err
	}
	for _, labels := range o["labels"] {
		a.Labels = append(a.Labels, strings.Split(labels, ",")...)
	}
	if task == guestwire.AIClassify && len(a.Labels) == 0 {
		return 0, misused("--labels says which there are: --labels good,bad")
	}
	if task == guestwire.AIExtract {
		if !isObject(o.last("schema")) {
			return 0, misused("--schema takes a JSON Schema")
		}
		a.Schema = json.RawMessage(o.last("schema"))
	}
	if a.Input, err = argument(append(rest, "-")[0]); err != nil {
		return 0, err
	}
	return printOutput(ask(guestwire.OpAI, a))
}

// printOutput prints what the model gave: a text as it is, anything else as JSON.
func printOutput(raw json.RawMessage, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	var a guestwire.AIAnswer
	if err := json.Unmarshal(raw, &a); err != nil {
		return 0, err
	}
	out := []byte(a.Output)
	var text string
	if json.Unmarshal(out, &text) == nil {
		out = []byte(text)
	}
	_, err = os.Stdout.Write(append(bytes.TrimSuffix(out, []byte("\n")), '\n'))
	return 0, err
}
