package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/workbenchdev/workbench"
)

// resultEndings are the forms of results that are written as files, with how
// the names of those end: what a terminal does not show.
var resultEndings = map[string]string{
	"image/png": ".png", "image/jpeg": ".jpg", "image/svg+xml": ".svg", "image/gif": ".gif", "image/webp": ".webp", "text/html": ".html", "application/pdf": ".pdf",
}

// formsOf names the forms of a result, each with its size.
func formsOf(r workbench.Result) string {
	var all []string
	for _, t := range slices.Sorted(maps.Keys(r.Data)) {
		all = append(all, fmt.Sprintf("%s (%s)", t, size(formBytes(t, r.Data[t]))))
	}
	for _, t := range slices.Sorted(maps.Keys(r.Artifacts)) {
		all = append(all, fmt.Sprintf("%s (retained as %s)", t, r.Artifacts[t]))
	}
	return strings.Join(all, ", ")
}

// formBytes is how large a form is, without the quotes or the base64 it came in.
func formBytes(mimeType string, raw json.RawMessage) int64 {
	var text string
	switch {
	case workbench.JSONMIME(mimeType) || json.Unmarshal(raw, &text) != nil:
		return int64(len(raw))
	case workbench.TextMIME(mimeType):
		return int64(len(text))
	}
	return int64(base64.StdEncoding.DecodedLen(len(text)) - strings.Count(text, "="))
}

// unprinted is how many results of a run have a form that printing does not
// show, and of which types those are.
func unprinted(all []workbench.Result) (n int, types []string) {
	for _, r := range all {
		some := false
		for t := range r.Data {
			if resultEndings[t] == "" {
				continue
			}
			some = true
			if !slices.Contains(types, t) {
				types = append(types, t)
			}
		}
		if some {
			n++
		}
	}
	slices.Sort(types)
	return n, types
}

// othersHadAPart is said of changes that are not a run's alone.
const othersHadAPart = "other code, or changes from outside, had a part in this"

// sharedChanges says so where it is true of a run's changes.
func sharedChanges(r workbench.Run) string {
	if r.CommitID == "" || r.Files.Exclusive || r.Files.Total == 0 {
		return ""
	}
	return othersHadAPart
}

func errorName(r workbench.Receipt) string {
	if r.Error == nil {
		return ""
	}
	return r.Error.Name
}

func cellNumber(r workbench.Run) string {
	if r.Cell == 0 {
		return ""
	}
	return strconv.FormatInt(r.Cell, 10)
}

// shownText is what of a result a person reads: its plain text, unless it is an
// image, or something that the output holds too.
func shownText(r workbench.Result) (string, bool) {
	if r.Type != workbench.ResultValue && r.Type != workbench.ResultDisplay {
		return "", false
	}
	for t := range r.Data {
		if strings.HasPrefix(t, "image/") {
			return "", false
		}
	}
	for t := range r.Artifacts {
		if strings.HasPrefix(t, "image/") {
			return "", false
		}
	}
	return r.Text("text/plain")
}
