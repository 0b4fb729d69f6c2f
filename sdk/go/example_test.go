package sdk_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path"
	"strings"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// A session, an uploaded file, a run over it, its result, and the file again
// after the session was closed.
func Example() {
	ctx := context.Background()
	client, err := sdk.New(sdk.Options{BaseURL: os.Getenv("WORKBENCH_SERVER"), Key: os.Getenv("WORKBENCH_KEY")})
	if err != nil {
		log.Fatal(err)
	}
	session, err := client.CreateAgentSession(ctx, sdk.CreateSession{Agent: "Report helper"})
	if err != nil {
		log.Fatal(err)
	}
	file, err := client.UploadSessionArtifact(ctx, session.ID, sdk.Upload{Name: "input.txt", MimeType: "text/plain"}, strings.NewReader("hello"))
	if err != nil {
		log.Fatal(err)
	}
	queued, err := client.CreateSessionRun(ctx, session.ID, sdk.CreateRun{
		Language: workbench.Python, Code: `print(open("input.txt").read().upper())`,
		Artifacts: []workbench.ArtifactSelect{{ID: file.ID}}, IdempotencyKey: "your-stable-run-key",
	})
	if err != nil {
		log.Fatal(err)
	}
	result, err := client.WaitForSessionRun(ctx, queued.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(result.Output())
	if _, err := client.CloseAgentSession(ctx, session.ID); err != nil {
		log.Fatal(err)
	}
	if _, err := client.DownloadSessionArtifact(ctx, file.ID, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// Output as it is written. A connection that breaks is taken up again behind
// the last event seen.
func ExampleClient_Events() {
	ctx := context.Background()
	client, err := sdk.New(sdk.Options{Key: os.Getenv("WORKBENCH_KEY")})
	if err != nil {
		log.Fatal(err)
	}
	for event, err := range client.Events(ctx, "run_06h2gtscb9wff1kekzj2wj8e70", 0) {
		if err != nil {
			log.Fatal(err)
		}
		if event.Kind == workbench.LogOutput {
			fmt.Print(event.Text)
		}
		if status, ok := event.Status(); ok {
			fmt.Println(status.Status)
		}
	}
}

// What went wrong: a request that was refused is an error with a code; a
// program that failed is not, its receipt says how it ended.
func ExampleError() {
	ctx := context.Background()
	client, err := sdk.New(sdk.Options{Key: os.Getenv("WORKBENCH_KEY")})
	if err != nil {
		log.Fatal(err)
	}
	session, err := client.CreateAgentSession(ctx, sdk.CreateSession{})
	if workbench.HasCode(err, workbench.CodeUnauthenticated) {
		log.Fatal("the key is wrong, revoked or expired")
	}
	if err != nil {
		log.Fatal(err)
	}
	queued, err := client.CreateSessionRun(ctx, session.ID, sdk.CreateRun{Language: workbench.Bash, Code: "exit 3"})
	if err != nil {
		log.Fatal(err)
	}
	receipt, err := client.WaitForSessionRun(ctx, queued.ID)
	if err != nil {
		log.Fatal(err)
	}
	if receipt.Status != workbench.StatusSucceeded {
		fmt.Println(receipt.Status, receipt.Reason, receipt.Message, receipt.ErrorOutput())
	}
}

// The files that a run changed, also those it did not save, fetched into a
// directory. Their names come from the program: an os.Root keeps them inside.
func ExampleClient_RunFiles() {
	ctx := context.Background()
	client, err := sdk.New(sdk.Options{Key: os.Getenv("WORKBENCH_KEY")})
	if err != nil {
		log.Fatal(err)
	}
	results, err := os.OpenRoot("results")
	if err != nil {
		log.Fatal(err)
	}
	const run = "run_06h2gtscb9wff1kekzj2wj8e70"
	page := workbench.Page{Limit: workbench.MaxPageLimit}
	for {
		changed, err := client.RunFiles(ctx, run, page)
		if err != nil {
			log.Fatal(err)
		}
		for _, f := range changed.Items {
			if f.Type != "file" || f.Change == workbench.ChangeRemoved {
				continue
			}
			content, err := client.ReadRunFile(ctx, run, f.Path)
			if err != nil {
				log.Fatal(err)
			}
			if err := results.MkdirAll(path.Dir(f.Path), 0o755); err != nil {
				log.Fatal(err)
			}
			if err := results.WriteFile(f.Path, content, 0o644); err != nil {
				log.Fatal(err)
			}
		}
		if page.Cursor = changed.NextCursor; page.Cursor == "" {
			return
		}
	}
}

// The workspace of a session without a program: a file put, listed, moved, and
// what it was before, from the history.
func ExampleClient_WriteWorkspaceFile() {
	ctx := context.Background()
	client, err := sdk.New(sdk.Options{BaseURL: os.Getenv("WORKBENCH_SERVER"), Key: os.Getenv("WORKBENCH_KEY")})
	if err != nil {
		log.Fatal(err)
	}
	session, err := client.CreateAgentSession(ctx, sdk.CreateSession{})
	if err != nil {
		log.Fatal(err)
	}
	first, err := client.WriteWorkspaceFile(ctx, session.ID, sdk.WriteFile{Path: "in/may.csv"}, strings.NewReader("1,2\n"))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := client.MoveWorkspaceFile(ctx, session.ID, workbench.MoveFile{From: "in/may.csv", To: "old/may.csv"}); err != nil {
		log.Fatal(err)
	}
	now, err := client.ListWorkspace(ctx, session.ID, workbench.TreeQuery{Recursive: true})
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range now.Items {
		fmt.Println("now:", e.Type, e.Name())
	}
	commits, err := client.ListCommits(ctx, session.ID, workbench.Page{}) // the newest first
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("commits:", len(commits.Items))
	then, err := client.CommitTree(ctx, first.Commit.ID, workbench.TreeQuery{Path: "in"})
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range then.Items {
		fmt.Println("then:", e.Type, e.Name(), e.Size)
	}
	content, err := client.ReadCommitFile(ctx, first.Commit.ID, "in/may.csv")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("it held: %s", content)
	if _, err := client.CloseAgentSession(ctx, session.ID); err != nil {
		log.Fatal(err)
	}
}

// An application's own key acts for its users, each with their own sessions,
// files and limits.
func ExampleClient_For() {
	client, err := sdk.New(sdk.Options{Key: os.Getenv("WORKBENCH_KEY")}) // an embedded key
	if err != nil {
		log.Fatal(err)
	}
	ada := client.For("acme", "ada", "")
	if _, err := ada.CreateAgentSession(context.Background(), sdk.CreateSession{Agent: "Ada's assistant"}); err != nil {
		log.Fatal(err)
	}
}

// Tools that code calls without holding a key: where they come from, the
// credentials that the server alone uses, who may call them, and a session that
// is allowed one of them at an exact version.
func ExampleClient_PutApp() {
	ctx := context.Background()
	admin, err := sdk.New(sdk.Options{Key: os.Getenv("WORKBENCH_ADMIN_KEY")})
	if err != nil {
		log.Fatal(err)
	}
	token, err := os.ReadFile("github.token")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := admin.CreateConnection(ctx, sdk.CreateConnection{
		Alias: "github", Provider: "github", Auth: workbench.AuthBearer,
		Credentials: workbench.Credentials{Token: strings.TrimSpace(string(token))},
	}); err != nil {
		log.Fatal(err)
	}
	offered, err := admin.PutApp(ctx, "github", sdk.PutApp{
		Kind: workbench.AppMCPHTTP, Config: workbench.AppConfig{URL: "https://api.githubcopilot.com/mcp/"},
		NeedsConnection: true, Connection: "github",
	})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := admin.ChangeRules(ctx, sdk.ChangeRules{Put: []sdk.RuleText{{
		Name: "reading", Text: `permit(principal, action == Action::"call", resource) when { resource.readOnly };`,
	}}}); err != nil {
		log.Fatal(err)
	}
	user, err := sdk.New(sdk.Options{Key: os.Getenv("WORKBENCH_KEY")})
	if err != nil {
		log.Fatal(err)
	}
	session, err := user.CreateAgentSession(ctx, sdk.CreateSession{Tools: offered.Added, Connections: []string{"github"}})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := user.CreateSessionRun(ctx, session.ID, sdk.CreateRun{
		Language: workbench.Python, Code: `print(workbench.call("github.list_issues", {"owner": "golang", "repo": "go"}, connection_alias="github").result)`,
	}); err != nil {
		log.Fatal(err)
	}
}

// A call that waits for somebody: what is asked for, the decision, and what
// became of the call.
func ExampleClient_ApproveCall() {
	ctx := context.Background()
	approver, err := sdk.New(sdk.Options{Key: os.Getenv("WORKBENCH_KEY")}) // with the scope approve
	if err != nil {
		log.Fatal(err)
	}
	waiting, err := approver.Approvals(ctx, workbench.Page{})
	if err != nil {
		log.Fatal(err)
	}
	for _, call := range waiting.Items {
		fmt.Printf("%s with %s: %s\n", call.Tool, call.Arguments, call.Approval.Why)
		if _, err := approver.ApproveCall(ctx, call.ID, "looked at"); err != nil {
			log.Fatal(err)
		}
		receipt, err := approver.WaitForToolReceipt(ctx, call.ID)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(receipt.Status)
	}
}
