package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/workbenchdev/workbench/internal/store/pgtest"
)

// TestScripts runs the command line as people do, with real sandboxes. It
// needs root and the images that WORKBENCH_IMAGES names (make test sets it).
func TestScripts(t *testing.T) {
	images := os.Getenv("WORKBENCH_IMAGES")
	if images == "" {
		images = "/var/lib/workbench/images"
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(env *testscript.Env) error {
			port, err := pgtest.FreePort()
			if err != nil {
				return err
			}
			address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
			env.Setenv("ADDRESS", address)
			env.Setenv("URL", "http://"+address)
			env.Setenv("WORKBENCH_IMAGES", images)
			pets := httptest.NewServer(http.HandlerFunc(servePets))
			env.Defer(pets.Close)
			env.Setenv("UPSTREAM", pets.URL)
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){"waitfor": waitFor},
	})
}

// waitFor waits until a URL answers 200.
func waitFor(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: waitfor URL")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, args[0], nil)
		ts.Check(err)
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	ts.Fatalf("%s did not answer within 30 s", args[0])
}

// servePets is where the tools of a script are: it takes one secret.
func servePets(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer s3cret-token" {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if r.Method == http.MethodGet {
		_, _ = io.WriteString(w, `{"name":"Rex"}`)
		return
	}
	_, _ = io.WriteString(w, `{"sold":true}`)
}

// echoMCP is a program that offers a tool over its stdin and stdout.
func echoMCP() {
	type said struct {
		Text string `json:"text"`
	}
	s := mcp.NewServer(&mcp.Implementation{Name: "echo", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "say", Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}},
		func(_ context.Context, _ *mcp.CallToolRequest, in said) (*mcp.CallToolResult, said, error) {
			return nil, in, nil
		})
	if err := s.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		os.Exit(1)
	}
}
