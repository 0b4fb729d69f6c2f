// Command conformanceclient is what the MCP conformance suite starts to test the
// MCP client of package upstream:
//
//	npx @modelcontextprotocol/conformance client --command <this> --scenario tools_call
//
// The suite passes the URL of its server as the last argument, the scenario in
// MCP_CONFORMANCE_SCENARIO and what belongs to it in MCP_CONFORMANCE_CONTEXT. It
// is test support: nothing of the product uses it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/upstream"
)

const appName = "suite"

func main() {
	if len(os.Args) < 2 {
		log.Fatal("conformanceclient: needs the server's URL")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s := suite{
		clients: upstream.New(upstream.Options{Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}),
		app:     workbench.App{ProjectID: "prj_conformance", Name: appName, Kind: workbench.AppMCPHTTP, Config: workbench.AppConfig{URL: os.Args[len(os.Args)-1]}},
	}
	err := s.scenario(ctx, os.Getenv("MCP_CONFORMANCE_SCENARIO"), os.Getenv("MCP_CONFORMANCE_CONTEXT"))
	if closeErr := s.clients.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		log.Fatalf("conformanceclient: %v", err)
	}
}

type suite struct {
	clients *upstream.Clients
	app     workbench.App
	grant   *upstream.Grant
	tools   map[string]workbench.Tool
	order   []string
}

// scenario does what a scenario of the suite looks at.
func (s *suite) scenario(ctx context.Context, name, given string) error {
	if name == "auth/client-credentials-basic" {
		if err := s.logIn(ctx, given); err != nil {
			return err
		}
	}
	if err := s.list(ctx); err != nil {
		return err
	}
	switch name {
	case "tools_call":
		return s.call(ctx, "add_numbers", `{"a":5,"b":3}`)
	case "sse-retry":
		return s.call(ctx, "test_reconnection", `{}`)
	case "json-schema-2020-12-preservation":
		schema := s.tools["json_schema_2020_12_tool"].InputSchema
		return s.call(ctx, "json_schema_echo", `{"schema":`+string(schema)+`}`)
	case "http-custom-headers":
		return s.callsOf(ctx, given)
	case "http-standard-headers", "http-invalid-tool-headers":
		for _, tool := range s.order {
			if err := s.call(ctx, tool, `{"region":"us-west1"}`); err != nil {
				log.Printf("%s: %v", tool, err) // some are to be refused
			}
		}
	}
	return nil
}

// list imports the server's tools.
func (s *suite) list(ctx context.Context) error {
	got, err := s.clients.Import(ctx, s.app, s.grant)
	if err != nil {
		return fmt.Errorf("listing tools: %w", err)
	}
	for _, why := range got.Skipped {
		log.Printf("left out: %s", why)
	}
	s.tools = map[string]workbench.Tool{}
	for _, t := range got.Tools {
		s.order = append(s.order, t.Name)
		s.tools[t.Name] = workbench.Tool{
			ProjectID: s.app.ProjectID, App: appName, Name: appName + "." + t.Name, Version: "1", State: workbench.ToolCurrent,
			Description: t.Description, InputSchema: t.InputSchema, OutputSchema: t.OutputSchema, Annotations: t.Annotations,
			Digest: upstream.Digest(appName, t), Binding: t.Binding,
		}
	}
	return nil
}

func (s *suite) call(ctx context.Context, name, args string) error {
	tool, ok := s.tools[name]
	if !ok {
		return fmt.Errorf("the server offers no tool %s", name)
	}
	a, err := s.clients.Call(ctx, s.app, tool, json.RawMessage(args), s.grant)
	if err != nil {
		return fmt.Errorf("calling %s: %w", name, err)
	}
	log.Printf("%s: %s (failed: %t)", name, a.Result, a.Failed)
	return nil
}

// callsOf makes the calls that the suite asks for.
func (s *suite) callsOf(ctx context.Context, given string) error {
	var wanted struct {
		ToolCalls []struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		} `json:"toolCalls"`
	}
	if err := json.Unmarshal([]byte(given), &wanted); err != nil {
		return fmt.Errorf("the scenario's context: %w", err)
	}
	for _, c := range wanted.ToolCalls {
		if err := s.call(ctx, c.Name, string(c.Arguments)); err != nil {
			log.Print(err)
		}
	}
	return nil
}

// logIn makes a grant of the client credentials that the suite gives. Where the
// token endpoint is, an operator would look up and write into the connection.
func (s *suite) logIn(ctx context.Context, given string) error {
	var client struct {
		ID     string `json:"client_id"`
		Secret string `json:"client_secret"`
	}
	if err := json.Unmarshal([]byte(given), &client); err != nil {
		return fmt.Errorf("the scenario's context: %w", err)
	}
	at, err := url.Parse(s.app.Config.URL)
	if err != nil {
		return err
	}
	var resource struct {
		Servers []string `json:"authorization_servers"`
	}
	if err := look(ctx, at.Scheme+"://"+at.Host+"/.well-known/oauth-protected-resource"+at.Path, &resource); err != nil {
		return err
	}
	if len(resource.Servers) == 0 {
		return errors.New("the server names no authorization server")
	}
	var server struct {
		Token string `json:"token_endpoint"`
	}
	if err := look(ctx, resource.Servers[0]+"/.well-known/oauth-authorization-server", &server); err != nil {
		return err
	}
	s.grant = &upstream.Grant{ConnectionID: "con_suite", Version: 1, Auth: workbench.AuthOAuthClient, Credentials: workbench.Credentials{
		TokenURL: server.Token, ClientID: client.ID, ClientSecret: client.Secret,
	}}
	return nil
}

// look reads a JSON document of the suite.
func look(ctx context.Context, at string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: status %d", at, resp.StatusCode)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}
