package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/govern"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/redact"
)

// Bounds of a web search.
const (
	maxQuery        = 400
	usualPages      = 5
	mostPages       = 20
	searchWithin    = 20 * time.Second
	searchesOfRun   = 50
	maxSearchAnswer = 2 << 20
	maxSnippet      = 1000
)

// SearchOptions say who searches the web: one provider.
type SearchOptions struct {
	Provider string // searxng, brave, tavily or tool
	URL      string // of searxng; of the others another address than the usual one
	Key      string // of brave and tavily
	// Tool is that of provider tool: called in the run's session, as the code
	// could, with {"query": …}.
	Tool workbench.ToolRef
}

// Search searches the web through one provider.
type Search struct {
	o       SearchOptions
	client  *http.Client
	secrets *redact.Redactor
}

// NewSearch makes a Search. Code: invalid_request.
func NewSearch(o SearchOptions) (*Search, error) {
	usual := map[string]string{"searxng": "", "brave": "https://api.search.brave.com", "tavily": "https://api.tavily.com", "tool": ""}
	base, ok := usual[o.Provider]
	if !ok {
		return nil, workbench.E(workbench.CodeInvalidRequest, "the search provider must be searxng, brave, tavily or tool").WithField("search-provider")
	}
	if o.URL == "" {
		o.URL = base
	}
	o.URL = strings.TrimRight(o.URL, "/")
	if u, err := url.Parse(o.URL); o.Provider != "tool" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return nil, workbench.E(workbench.CodeInvalidRequest, "the search provider %s needs an address", o.Provider).WithField("search-url").
			WithHint("such as http://127.0.0.1:8888")
	}
	if (o.Provider == "brave" || o.Provider == "tavily") && o.Key == "" {
		return nil, workbench.E(workbench.CodeInvalidRequest, "the search provider %s needs a key", o.Provider).WithField("search-key-file")
	}
	if o.Provider == "tool" {
		if err := workbench.ToolName("search-tool", o.Tool.Name); err != nil {
			return nil, err
		}
	}
	return &Search{o: o, secrets: redact.New(o.Key),
		client: &http.Client{Timeout: searchWithin, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}, nil
}

// webSearch answers guestwire.OpWebSearch.
func (b *Broker) webSearch(ctx context.Context, from govern.Caller, raw json.RawMessage) (json.RawMessage, *workbench.ToolReceipt, error) {
	var args guestwire.WebSearchArgs
	if err := read(raw, &args); err != nil {
		return nil, nil, err
	}
	if strings.TrimSpace(args.Query) == "" || len(args.Query) > maxQuery {
		return nil, nil, workbench.E(workbench.CodeInvalidRequest, "query must have 1 to %d bytes", maxQuery).WithField("query")
	}
	if args.Limit == 0 {
		args.Limit = usualPages
	}
	if err := workbench.InRange("limit", int64(args.Limit), 1, mostPages); err != nil {
		return nil, nil, err
	}
	s, provider := b.o.Search, ""
	if s != nil {
		provider = s.o.Provider
	}
	if err := b.govern.Use(ctx, from, govern.ServiceSearch, searchesOfRun, map[string]string{"provider": provider}); err != nil {
		return nil, nil, err
	}
	if s == nil {
		return nil, nil, notConfigured("a provider of web search", "--search-provider")
	}
	var pages []guestwire.FoundPage
	var receipt *workbench.ToolReceipt
	var err error
	if s.o.Provider == "tool" {
		pages, receipt, err = b.searchByTool(ctx, from, args)
	} else {
		pages, err = s.ask(ctx, args)
	}
	if err != nil {
		return nil, receipt, err
	}
	answer, err := write(guestwire.FoundPages{Items: tidy(pages, args.Limit)})
	return answer, receipt, err
}

// tidy keeps pages that can be gone to, with snippets of a bearable length.
func tidy(pages []guestwire.FoundPage, limit int) []guestwire.FoundPage {
	out := []guestwire.FoundPage{}
	for _, p := range pages {
		u, err := url.Parse(p.URL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || len(out) == limit {
			continue
		}
		if len(p.Snippet) > maxSnippet {
			p.Snippet = strings.ToValidUTF8(p.Snippet[:maxSnippet], "") + "…"
		}
		out = append(out, p)
	}
	return out
}

// found is a page in the words of any provider.
type found struct {
	Title       string `json:"title"`
	URL         string `json:"url"`
	Link        string `json:"link"`
	Content     string `json:"content"`
	Snippet     string `json:"snippet"`
	Description string `json:"description"`
	Text        string `json:"text"`
}

func (f found) page() guestwire.FoundPage {
	first := func(texts ...string) string {
		for _, t := range texts {
			if t != "" {
				return t
			}
		}
		return ""
	}
	return guestwire.FoundPage{Title: f.Title, URL: first(f.URL, f.Link), Snippet: first(f.Snippet, f.Content, f.Description, f.Text)}
}

// results are pages in the shapes that providers give them in.
type results struct {
	Results []found `json:"results"` // searxng, tavily
	Items   []found `json:"items"`
	Web     struct {
		Results []found `json:"results"`
	} `json:"web"` // brave
}

// pages reads an answer: an object with a list, or the list alone.
func pages(raw json.RawMessage) ([]guestwire.FoundPage, error) {
	var r results
	if json.Unmarshal(raw, &r) != nil {
		if err := json.Unmarshal(raw, &r.Items); err != nil {
			return nil, workbench.E(workbench.CodeToolFailed, "the search provider's answer cannot be read").Caused(err)
		}
	}
	out := []guestwire.FoundPage{}
	for _, list := range [][]found{r.Results, r.Items, r.Web.Results} {
		for _, f := range list {
			out = append(out, f.page())
		}
	}
	return out, nil
}

// ask asks the provider's own interface.
func (s *Search) ask(ctx context.Context, args guestwire.WebSearchArgs) ([]guestwire.FoundPage, error) {
	method, target, body := http.MethodGet, s.o.URL, []byte(nil)
	q := url.Values{"q": {args.Query}}
	switch s.o.Provider {
	case "searxng":
		q.Set("format", "json")
		target += "/search?" + q.Encode()
	case "brave":
		q.Set("count", strconv.Itoa(args.Limit))
		target += "/res/v1/web/search?" + q.Encode()
	case "tavily":
		method, target = http.MethodPost, target+"/search"
		body = mustJSON(map[string]any{"query": args.Query, "max_results": args.Limit})
	}
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return nil, workbench.E(workbench.CodeInternal, "the search cannot be made").Caused(err)
	}
	req.Header.Set("Accept", "application/json")
	switch s.o.Provider {
	case "brave":
		req.Header.Set("X-Subscription-Token", s.o.Key)
	case "tavily":
		req.Header.Set("Authorization", "Bearer "+s.o.Key)
		req.Header.Set("Content-Type", "application/json")
	}
	answer, err := s.client.Do(req)
	if err != nil {
		return nil, s.failed(ctx, 0, err)
	}
	defer answer.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(answer.Body, maxSearchAnswer+1))
	if err != nil || answer.StatusCode != http.StatusOK || len(raw) > maxSearchAnswer {
		return nil, s.failed(ctx, answer.StatusCode, err)
	}
	return pages(s.secrets.Bytes(raw))
}

func (s *Search) failed(ctx context.Context, status int, err error) error {
	private := errors.New("status " + strconv.Itoa(status))
	if err != nil {
		private = errors.New(s.secrets.String(err.Error()))
	}
	switch {
	case ctx.Err() != nil:
		return workbench.E(workbench.CodeCancelled, "the run ended before the search did").Caused(private)
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return workbench.E(workbench.CodeToolUnavailable, "the search provider does not accept the server").
			WithHint("its operator has to look at it: a key, or, of SearXNG, that its settings allow the format json").Caused(private)
	case status == http.StatusTooManyRequests:
		return workbench.E(workbench.CodeToolUnavailable, "the search provider is asked too much").WithHint("wait a little, and ask again").Caused(private)
	case status == 0:
		return workbench.E(workbench.CodeToolUnavailable, "the search provider cannot be reached, or did not answer in time").WithHint("ask again").Caused(private)
	case status == http.StatusOK:
		return workbench.E(workbench.CodeToolFailed, "the search provider's answer was cut short, or is too large").WithHint("ask again, or in other words").Caused(private)
	}
	return workbench.E(workbench.CodeToolFailed, "the search provider answered %d", status).WithHint("ask again, or in other words").Caused(private)
}

// searchByTool has a tool of the session search, as the code itself could.
func (b *Broker) searchByTool(ctx context.Context, from govern.Caller, args guestwire.WebSearchArgs) ([]guestwire.FoundPage, *workbench.ToolReceipt, error) {
	tool := b.o.Search.o.Tool
	r, err := b.govern.Call(ctx, from, govern.CallRequest{Tool: tool.Name, Version: tool.Version, Arguments: mustJSON(map[string]any{"query": args.Query})})
	if err != nil {
		return nil, nil, err
	}
	if r.Status != workbench.CallSucceeded {
		why := "it is " + string(r.Status)
		if r.Error != nil {
			why = r.Error.Detail
		}
		return nil, &r, workbench.E(workbench.CodeToolFailed, "the tool that searches gave nothing: %s", why).WithHint("its receipt is %s", r.ID)
	}
	raw := r.Result
	var text string
	if json.Unmarshal(raw, &text) == nil && json.Valid([]byte(text)) {
		raw = json.RawMessage(text)
	}
	found, err := pages(raw)
	return found, &r, err
}
