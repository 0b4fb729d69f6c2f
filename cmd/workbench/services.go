package main

import (
	"bytes"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/broker"
	"github.com/workbenchdev/workbench/internal/govern"
	"github.com/workbenchdev/workbench/internal/server"
)

// serviceFlags say what code may use besides tools, and who is told of what waits
// for a decision. Secrets are read from files: a command line is seen by others.
type serviceFlags struct {
	aiURL, aiModel, aiKey                          string
	searchProvider, searchURL, searchKey, searcher string
	hook, hookSecret                               string
	private                                        []string
	python, npm                                    string
}

func (f *serviceFlags) flags(fl *pflag.FlagSet) {
	fl.StringVar(&f.aiURL, "ai-url", os.Getenv("WORKBENCH_AI_URL"), "endpoint of a language model for code, which speaks OpenAI's protocol, such as https://api.openai.com/v1 [WORKBENCH_AI_URL]")
	fl.StringVar(&f.aiModel, "ai-model", os.Getenv("WORKBENCH_AI_MODEL"), "its model [WORKBENCH_AI_MODEL]")
	fl.StringVar(&f.aiKey, "ai-key-file", "", "file with its key, if it needs one")
	fl.StringVar(&f.searchProvider, "search-provider", "", "who searches the web for code: searxng, brave, tavily, or tool")
	fl.StringVar(&f.searchURL, "search-url", "", "address of searxng; of brave and tavily another than the usual one")
	fl.StringVar(&f.searchKey, "search-key-file", "", "file with the key of brave or tavily")
	fl.StringVar(&f.searcher, "search-tool", "", "of the provider tool: a tool at a version, app.tool@1, that takes a query")
	fl.StringSliceVar(&f.private, "fetch-private", nil, "hosts of private networks (name or address, with a port or for any) that code may fetch from where the rules let it")
	fl.StringVar(&f.python, "python-index", os.Getenv("WORKBENCH_PYTHON_INDEX"), "index that Python packages are installed from, such as https://user:password@host/simple; without it pip's own [WORKBENCH_PYTHON_INDEX]")
	fl.StringVar(&f.npm, "npm-registry", os.Getenv("WORKBENCH_NPM_REGISTRY"), "registry that npm packages are installed from; without it npm's own [WORKBENCH_NPM_REGISTRY]")
	fl.StringVar(&f.hook, "approval-webhook", "", "URL that is told of every tool call that waits for a decision")
	fl.StringVar(&f.hookSecret, "approval-webhook-secret-file", "", "file with the secret that signs what the webhook gets")
}

// apply puts the services into the server's options.
func (f *serviceFlags) apply(o *server.Options) error {
	if (f.aiURL == "") != (f.aiModel == "") {
		return workbench.E(workbench.CodeInvalidRequest, "--ai-url and --ai-model go together")
	}
	if f.aiURL != "" {
		key, err := secretIn(f.aiKey, "ai-key-file")
		if err != nil {
			return err
		}
		o.Services.AI = broker.NewAI(broker.AIOptions{BaseURL: f.aiURL, Model: f.aiModel, Key: string(key)})
	}
	if f.searchProvider != "" {
		key, err := secretIn(f.searchKey, "search-key-file")
		if err != nil {
			return err
		}
		s := broker.SearchOptions{Provider: f.searchProvider, URL: f.searchURL, Key: string(key)}
		s.Tool.Name, s.Tool.Version, _ = strings.Cut(f.searcher, "@")
		if o.Services.Search, err = broker.NewSearch(s); err != nil {
			return err
		}
	}
	o.FetchPrivate, o.PythonIndex, o.NPMRegistry = f.private, f.python, f.npm
	if f.hook == "" {
		return nil
	}
	secret, err := secretIn(f.hookSecret, "approval-webhook-secret-file")
	if err != nil {
		return err
	}
	o.ApprovalWebhook, err = govern.NewWebhook(f.hook, secret)
	return err
}

// secretIn reads a secret from a file; "" has none.
func secretIn(file, flag string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, workbench.E(workbench.CodeInvalidRequest, "the file of --%s cannot be read", flag).WithField(flag).Caused(err)
	}
	secret := bytes.TrimSpace(raw)
	if len(secret) == 0 || bytes.ContainsAny(secret, "\r\n") {
		return nil, workbench.E(workbench.CodeInvalidRequest, "the file of --%s must hold one line", flag).WithField(flag)
	}
	return secret, nil
}
