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
	"fmt"
	"log"
	"log/slog"
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
	tools   map[string]workbench.Tool
	order   []string
}

// scenario does what a scenario of the suite looks at.
func (s *suite) scenario(ctx context.Context, name, given string) error {
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
	got, err := s.clients.Import(ctx, s.app, nil)
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
	a, err := s.clients.Call(ctx, s.app, tool, json.RawMessage(args), nil)
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
