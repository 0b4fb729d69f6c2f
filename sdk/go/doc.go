// Package sdk is the Go client of Workbench's REST API.
//
//	client, err := sdk.New(sdk.Options{BaseURL: "http://127.0.0.1:8080", Key: key})
//	session, err := client.CreateAgentSession(ctx, sdk.CreateSession{Agent: "Report helper"})
//	file, err := client.UploadSessionArtifact(ctx, session.ID, sdk.Upload{Name: "input.txt"}, strings.NewReader("hello"))
//	queued, err := client.CreateSessionRun(ctx, session.ID, sdk.CreateRun{
//		Language: workbench.Python, Code: `print(open("input.txt").read().upper())`,
//		Artifacts: []workbench.ArtifactSelect{{ID: file.ID}}, IdempotencyKey: "your-stable-run-key",
//	})
//	result, err := client.WaitForSessionRun(ctx, queued.ID)
//
// Errors of the server are [*Error], which unwrap to [*workbench.Error].
//
// What it repeats by itself, after a lost connection or an answer that says to
// come back later: every GET, and every POST that carries an idempotency key.
// It never repeats another request, because it cannot know whether the first
// one arrived. Waiting for a run only reads its receipt.
//
// The package imports the root package for its nouns and nothing internal.
package sdk
