package main

import (
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/workbenchdev/workbench"
)

// vocabularies say what the fields of the server's requests are called on the
// command line, by command. What is in none of them is said as it came.
var vocabularies = map[string]map[string]string{
	"workbench run": {
		"timeoutMs": "--timeout", "ttlMs": "--timeout", "size": "--size", "image": "--image", "language": "--language", "code": "the program", "stdin": "--stdin",
		"env": "--env", "args": "ARGUMENTS", "keep": "--keep", "artifactIds": "--file", "sessionId": "--session", "contextId": "--context", "background": "--background", "onLostContext": "--on-lost", "reusableRun.seriesId": "--series", "seriesId": "--series", "file": "--file", "name": "--file", "path": "--file", "out": "--out",
	},
	"workbench usage":           {"groupBy": "--by", "session": "--session", "since": "--since", "until": "--until"},
	"workbench replay":          {"version": "VERSION", "tools": "--tools"},
	"workbench publish":         {"version": "VERSION", "expectedPublishedVersion": "--expected"},
	"workbench series rollback": {"version": "VERSION", "expectedPublishedVersion": "--expected"},
	"workbench series run":      {"version": "--version", "args": "ARGUMENTS", "env": "--env", "timeoutMs": "--timeout"},
	"workbench contexts create": {"id": "--id", "language": "--language", "env": "--env", "cwd": "--cwd"},
	"workbench session create": {
		"kind": "--kind", "agent": "--agent", "labels": "--label", "limits": "--set-limit", "size": "--size", "image": "--image", "ttlMs": "--ttl", "keepMemory": "--keep-memory", "keepAtExpiry": "--keep-at-expiry",
		"tools": "--tool", "connections": "--connection",
	},
	"workbench session configure": {
		"agent": "--agent", "labels": "--label", "limits": "--set-limit", "expectedCurrentVersion": "--expected-revision", "keepAtExpiry": "--keep-at-expiry",
		"tools": "--tool", "connections": "--connection",
	},
	"workbench session restart":  {"artifactIds": "--artifact", "cancelActive": "--cancel-active"},
	"workbench session rollback": {"commit": "COMMIT", "run": "RUN", "expectedHead": "--expected-head"},
	"workbench session fork":     {"commit": "COMMIT", "run": "RUN", "agent": "--agent", "size": "--size", "image": "--image"},
	"workbench files list":       {"path": "DIRECTORY", "recursive": "--recursive"},
	"workbench files get":        {"path": "PATH"},
	"workbench files put":        {"path": "PATH", "mode": "--mode", "If-Match": "--if-match", "If-None-Match": "--if-absent"},
	"workbench files move":       {"from": "FROM", "to": "TO", "overwrite": "--overwrite"},
	"workbench files delete":     {"path": "PATH", "recursive": "--recursive"},
	"workbench files mkdir":      {"path": "PATH"},
	"workbench commits files":    {"path": "DIRECTORY", "recursive": "--recursive"},
	"workbench commits download": {"path": "PATH"},
	"workbench commits diff":     {"from": "--from"},
	"workbench session list":     {"state": "--state", "label": "--label"},
	"workbench artifact upload":  {"name": "--name", "path": "--path", "Content-Type": "--type"},
	"workbench runs list":        {"status": "--status"},
	"workbench runs output":      {"stream": "--stream", "offset": "--offset"},
	"workbench runs events":      {"after": "--after", "Last-Event-ID": "--after"},
	"workbench session events":   {"after": "--after", "Last-Event-ID": "--after"},
	"workbench key create": {
		"kind": "--kind", "name": "--name", "tenant": "--tenant", "user": "--user", "tenants": "--tenants", "scopes": "--scope", "sessionId": "--session",
		"contents": "--contents", "expiresAt": "--ttl",
	},
	"workbench tools add": {
		"kind": "an app of kind", "provider": "--provider", "needsConnection": "--needs-connection", "connection": "--connection", "app": "NAME", "name": "NAME",
		"config": "the app", "config.command": "COMMAND", "config.args": "ARGUMENTS", "config.env": "--env", "config.credentialEnv": "--credential-env",
		"config.url": "the app's URL", "config.document": "the document", "config.endpoints": "endpoints", "config.timeoutMs": "--timeout",
	},
	"workbench tools import": {"app": "NAME", "connection": "--connection"},
	"workbench tools remove": {"app": "NAME"},
	"workbench tools list":   {"query": "QUERY", "app": "--app", "all": "--all"},
	"workbench tools show":   {"name": "NAME"},
	"workbench connection add": withCredentials(map[string]string{
		"alias": "ALIAS", "provider": "--provider", "auth": "the kind of credentials", "hosts": "--host", "tenant": "--tenant", "group": "--group", "user": "--user",
	}),
	"workbench connection rotate": withCredentials(map[string]string{"expectedCurrentVersion": "--expected-version"}),
	"workbench connection list":   {"alias": "--alias"},
	"workbench policy check":      {"rules": "FILE", "name": "--name", "text": "FILE"},
	"workbench policy put":        {"put": "FILE", "name": "--name", "text": "FILE", "expectedCurrentVersion": "--expected-version"},
	"workbench policy remove":     {"remove": "NAME", "expectedCurrentVersion": "--expected-version"},
	"workbench policy explain": {
		"receipt": "RECEIPT", "session": "--session", "tool": "--tool", "connection": "--connection", "arguments": "--args", "args": "--args", "rules": "--rules",
	},
	"workbench approve":       {"reason": "--reason"},
	"workbench deny":          {"reason": "--reason"},
	"workbench receipts list": {"session": "--session", "run": "--run", "tool": "--tool", "status": "--status"},
	"workbench audit list":    {"action": "--action", "target": "--target", "tenant": "--tenant", "user": "--user", "key": "--key", "since": "--since", "until": "--until"},
	"workbench audit export":  {"after": "--after"},
}

// withCredentials adds what the credentials of a connection are called.
func withCredentials(words map[string]string) map[string]string {
	maps.Copy(words, map[string]string{
		"credentials": "the credentials", "credentials.token": "--bearer-file", "credentials.username": "--username", "credentials.password": "--password-file",
		"credentials.header": "--header", "credentials.value": "--value-file", "credentials.tokenUrl": "--token-url", "credentials.clientId": "--client-id",
		"credentials.clientSecret": "--client-secret-file", "credentials.refreshToken": "--refresh-token-file", "credentials.scopes": "--oauth-scope",
	})
	return words
}

// anywhere are the names that mean the same to every command.
var anywhere = map[string]string{
	"limit": "--limit", "cursor": "--cursor", "server": "--server", "driver": "--driver", "Workbench-Tenant": "--tenant", "Workbench-End-User": "--end-user", "Workbench-Group": "--group",
	"artifactIds": "--file", "keep": "--keep", // of a run that is looked at
}

// advice are the server's hints that speak of requests, and what to do about
// the same on the command line. FLAG is the one for files, HELP the command.
var advice = []struct{ said, means string }{
	{"GET /v1/workbench/runtime-tiers", "workbench sizes"},
	{`POST /v1/workbench/keys gives a key those that "scopes" lists, such as ["execute", "read"]`, "workbench key create gives a key those that --scope names"},
	{`POST /v1/workbench/keys makes one with {"kind": "direct", "tenant": …, "user": …, "scopes": ["read", "approve"]}`,
		"workbench key create --tenant TENANT --user USER --scope read,approve makes one for who decides"},
	{"POST /v1/workbench/keys makes others", "workbench key create --kind admin makes others"},
	{"POST /v1/workbench/keys", "workbench key create"},
	{`made with "contents": true`, "made with --contents"},
	{"restart the context with cancelActive: true", "use workbench contexts restart --cancel-active"},
	{"GET /v1/workbench/series/{id}/versions lists those that there are", "workbench series versions SERIES lists those that there are"},
	{"begin a new series; GET /v1/workbench/series lists those that there are", "begin a new series; workbench series list shows those that there are"},
	{"replay it first: POST /v1/workbench/series/{id}/replays; what differs is on the replay", "replay it first: workbench replay SERIES VERSION; it shows what differs"},
	{`send {"tools": "recorded"} to have what its calls gave served back`, "give --tools recorded to have what its calls gave served back"},
	{"read the series, look at what was published meanwhile, and send its publishedVersion", "workbench series show SERIES tells what was published meanwhile: give that version with --expected"},
	{"send one of them: GET /v1/workbench/sessions/{id}/commits lists the commits", "give one of them: workbench commits list SESSION lists the commits"},
	{"limits.timeoutMs of the session; its limits.maxTimeoutMs is the longest", "the session's default; its limit maxTimeoutMs is the longest"},
	{"background: true for a run of up to 3600000 ms", "--background for a run of up to 60m"},
	{"limits.maxTimeoutMs of the session is a foreground run's longest", "the session's limit maxTimeoutMs is a foreground run's longest"},
	{"configure the session with a higher limits.workspaceBytes", "give the session more room: workbench session configure SESSION --set-limit workspaceBytes=SIZE"},
	{"straight into the workspace with PUT …/workspace/content", "straight into the workspace with workbench files put"},
	{"send env when the context is created", "give --env to workbench contexts create"},
	{"send the id of the last event seen, or leave the header out to begin at the first", "give --after the number of the last event seen, or leave it out to begin at the first"},
	{"reconnect with the last event id", "run it again with --after and the number of the last event"},
	{"create it with POST …/sessions/{id}/contexts", "create it with workbench contexts create"},
	{"send the cell to a context of its language: POST …/contexts makes one", "name a context of its language: workbench contexts create makes one"},
	{"and so does a cell with \"onLostContext\": \"restart\"", "and so does --on-lost restart"},
	{"POST …/contexts/", "workbench contexts restart SESSION "}, {"/restart begins it anew", " begins it anew"},
	{"repeat with ?force=true", "repeat with --force"},
	{`{"id": …, "path": …}`, "FLAG=PATH"},
	{"delete it with recursive=true", "delete it with --recursive"},
	{"or send overwrite: true to replace a file", "or give --overwrite to replace a file"},
	{"name a commit of this session: GET /v1/workbench/sessions/{id}/commits lists them", "name a commit of this session: workbench commits list shows them"},
	{"wait for its end: GET /v1/workbench/runs/{id}?waitMs=…", "wait for its end: workbench runs show RUN --wait"},
	{"restart with cancelActive: true", "use workbench session restart --cancel-active"},
	{"send nextCursor of the previous page unchanged, or leave cursor out to start again", "give --cursor as the page before printed it, or leave it out to start again"},
	{"use the nextOffset of the page before, or encoding=base64", "begin a byte or two earlier, at the first byte of the character"},
	{"use the nextOffset of the page before", "leave --offset out to begin at the first byte"},
	{"upload it as a file, select it, and run a short program that starts it", "give it with --file, and run a short program that starts it"},
	{"upload it as a file and select it", "give it with --file, and open it in the program"},
	{"upload big inputs as retained files and select them by id", "give large data with --file"},
	{"send Authorization: Bearer wbk_… with a key that is neither revoked nor expired", "check the key in the file that --key-file names, or in WORKBENCH_KEY: it must be whole, and neither revoked nor expired"},
	{"read the session again and decide anew", "workbench session show tells the current revision"},
	{"send a relative path inside the workspace", "give a relative path inside the workspace"},
	{"send the program to run", "give a program that is not empty"},
	{"see /openapi.json for its form", "HELP --help"}, {"see /openapi.json for its fields", "HELP --help"}, {"see /openapi.json for its type", "HELP --help"},
	{"see /openapi.json", "check the address that --server or WORKBENCH_SERVER gives: it is the server's own, without a path of the API"}, // for a route that there is not
	{"send the request again", "try again"},
	{"GET /v1/workbench/tools lists", "workbench tools list shows"},
	{"read the rules again and decide anew", "workbench policy list tells the current version"},
	{"read the connection again", "workbench connection show tells the current version"},
	{"a call is decided once; read its receipt", "a call is decided once: workbench receipts show tells how"},
	{"look at the app's config.command", "look at the command of the app"},
	{"name the variable for them in the app's config.credentialEnv", "name the variable for them when the app is added, with --credential-env"},
	{"name rules to put, or to remove", "name rules"},
	{"the header ", ""},
}

// rootless is what the driver advises who runs the server; whoever runs a
// single command has another way out.
const rootless = "run the server as root; sandboxes themselves run unprivileged"

// translate puts an error about a request into the words of the command line
// that made it: flags for fields, commands for routes, durations for
// milliseconds. c may be nil.
func translate(c *cobra.Command, e *workbench.Error) *workbench.Error {
	if c == nil {
		return e
	}
	t := translatorOf(c)
	out := *e
	flag, known := t.flag(e.Field)
	out.Detail, out.Hint = t.advise(out.Detail), t.advise(out.Hint)
	if known {
		if rest, ok := strings.CutPrefix(out.Detail, e.Field+" "); ok {
			out.Detail = flag + " " + t.amounts(e.Field, rest)
		}
		out.Hint = strings.ReplaceAll(out.Hint, "leave "+e.Field+" out", "leave "+flag+" out")
		out.Hint = strings.ReplaceAll(out.Hint, "correct "+e.Field+" ", "correct "+flag+" ")
		out.Hint = strings.ReplaceAll(out.Hint, " and send the request again", " and try again")
	}
	if e.Hint == rootless && c.Name() != "serve" {
		out.Hint = "run this command as root (code in sandboxes runs unprivileged), or name a server with --server or WORKBENCH_SERVER"
	}
	out.Detail, out.Hint = t.words(out.Detail), t.words(out.Hint)
	if known && strings.HasPrefix(out.Hint, "send ") {
		out.Hint = "give " + strings.TrimPrefix(out.Hint, "send ")
	}
	given := c.Flags().Changed(strings.TrimPrefix(flag, "--"))
	if known && (given || e.Code == workbench.CodeInvalidRequest) && !strings.Contains(out.Detail+out.Hint, flag) {
		out.Detail += " (" + flag + ")"
	}
	return &out
}

// words puts what the server says of a run into the words of the command in use.
func (a *app) words(s string) string {
	if a.command == nil {
		return s
	}
	return translatorOf(a.command).text(s)
}

type translator struct {
	c   *cobra.Command
	own map[string]string
}

func translatorOf(c *cobra.Command) translator {
	return translator{c: c, own: vocabularies[c.CommandPath()]}
}

// text is s with advice and fields as the command line has them.
func (t translator) text(s string) string { return t.words(t.advise(s)) }

func (t translator) advise(s string) string {
	for _, a := range advice {
		if strings.Contains(s, a.said) {
			s = strings.ReplaceAll(s, a.said, strings.NewReplacer("FLAG", t.own["artifactIds"]+" NAME", "HELP", t.c.CommandPath()).Replace(a.means))
		}
	}
	return s
}

// fieldWord is a word of a text that can only be a field's name: with a capital
// inside, an index or a dot; or a header's.
var fieldWord = regexp.MustCompile(`\b(?:Workbench-[A-Z][A-Za-z-]*|[a-z]+[A-Z][A-Za-z]*(?:\[\d+\])?(?:\.[A-Za-z]+)*|[a-z]+\[\d+\](?:\.[A-Za-z]+)*|limits\.[A-Za-z]+)`)

func (t translator) words(s string) string {
	return fieldWord.ReplaceAllStringFunc(s, func(word string) string {
		if flag, ok := t.flag(word); ok {
			return flag
		}
		return word
	})
}

var indexed = regexp.MustCompile(`^([A-Za-z]+)\[(\d+)\]`)

// flag is what a field is called, with the value given if it is one of several.
func (t translator) flag(field string) (string, bool) {
	if name, ok := strings.CutPrefix(field, "limits."); ok {
		if flag := t.own["limits"]; flag != "" {
			return flag + " " + name, true
		}
		return "the session's " + name, true
	}
	for end := len(field); end > 0; end = strings.LastIndexAny(field[:end], ".[") { // a part of what is sent, under a name of its own
		if flag, ok := t.own[field[:end]]; ok && strings.Contains(field[:end], ".") {
			return flag + field[end:], true
		}
	}
	index := -1
	if m := indexed.FindStringSubmatch(field); m != nil {
		field = m[1]
		index, _ = strconv.Atoi(m[2]) // digits; too many of them are none of the flag's values
	}
	field, _, _ = strings.Cut(field, ".")
	flag, ok := t.own[field]
	if !ok {
		if flag, ok = anywhere[field]; !ok {
			return "", false
		}
	}
	if index < 0 {
		return flag, true
	}
	if f := t.c.Flags().Lookup(strings.TrimPrefix(flag, "--")); f != nil {
		if values, ok := f.Value.(pflag.SliceValue); ok && index < len(values.GetSlice()) {
			return flag + " " + values.GetSlice()[index], true
		}
	}
	return fmt.Sprintf("%s (number %d)", flag, index+1), true
}

var wholeNumber = regexp.MustCompile(`\b\d+\b`)

// amounts writes the numbers of a text about a field as its flag takes them:
// milliseconds as durations, bytes with a unit where there is one that fits.
func (t translator) amounts(field, s string) string {
	bytes, limit := strings.HasSuffix(field, "Bytes"), strings.HasPrefix(field, "limits.")
	if !bytes && (!strings.HasSuffix(field, "Ms") || limit) {
		return s
	}
	return wholeNumber.ReplaceAllStringFunc(s, func(digits string) string {
		n, err := strconv.ParseInt(digits, 10, 64)
		switch {
		case err != nil:
			return digits
		case bytes:
			return withUnit(n)
		}
		return short(time.Duration(n) * time.Millisecond)
	})
}

// withUnit is a number of bytes, exactly.
func withUnit(n int64) string {
	for _, u := range []struct {
		name  string
		bytes int64
	}{{"GiB", workbench.GiB}, {"MiB", workbench.MiB}, {"KiB", workbench.KiB}} {
		if n > 0 && n%u.bytes == 0 {
			return fmt.Sprintf("%d%s", n/u.bytes, u.name)
		}
	}
	return strconv.FormatInt(n, 10)
}

// short is a duration without the parts that are nought: 3m, not 3m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
