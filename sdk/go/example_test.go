package sdk_test

import (
	"context"
	"fmt"
	"log"
	"os"
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
	fmt.Print(*result.Stdout)
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
