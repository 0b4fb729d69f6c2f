package guest

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/workbenchdev/workbench/internal/guestwire"
)

// fetchURL prints what a host answers, as it is. An answer that is no success is
// printed too, and told.
func fetchURL(args []string) (int, error) {
	rest, o, err := options(args, "method", "header", "body", "connection")
	if err != nil {
		return 0, err
	}
	if len(rest) != 1 {
		return 0, misused("it takes one URL")
	}
	a := guestwire.FetchArgs{URL: rest[0], Method: o.last("method"), Connection: o.last("connection"), Headers: map[string]string{}}
	for _, h := range o["header"] {
		name, value, ok := strings.Cut(h, ":")
		if !ok {
			return 0, misused("--header takes 'NAME: VALUE'")
		}
		a.Headers[strings.TrimSpace(name)] = strings.TrimSpace(value)
	}
	if body := o["body"]; len(body) > 0 {
		text, err := argument(o.last("body"))
		if err != nil {
			return 0, err
		}
		a.Body = []byte(text)
	}
	status := 0
	for {
		raw, err := ask(guestwire.OpFetch, a)
		if err != nil {
			return 0, err
		}
		var answer guestwire.FetchAnswer
		if err := json.Unmarshal(raw, &answer); err != nil {
			return 0, err
		}
		if _, err := os.Stdout.Write(answer.Body); err != nil {
			return 0, err
		}
		if answer.Status != 0 {
			status = answer.Status
		}
		if !answer.More {
			break
		}
		a = guestwire.FetchArgs{Handle: answer.Handle}
	}
	if status < 200 || status > 299 {
		fmt.Fprintf(os.Stderr, "workbench: fetch: the host answered %d\n", status)
		return shellFailed, nil
	}
	return 0, nil
}
