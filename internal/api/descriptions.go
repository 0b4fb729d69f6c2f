package api

import "github.com/danielgtaylor/huma/v2"

// describe gives every property that its type does not document a
// description: its own if there is one, else that of its name. The domain's
// types carry no tags for the document; it is the face's business.
func describe(schemas map[string]*huma.Schema) {
	for name, s := range schemas {
		for property, p := range s.Properties {
			if p.Description != "" {
				continue
			}
			for _, known := range []map[string]string{descriptions, contextDescriptions, historyDescriptions, toolDescriptions, seriesDescriptions} {
				if own, ok := known[name+"."+property]; ok {
					p.Description = own
					break
				}
				if p.Description == "" {
					p.Description = known[property]
				}
			}
		}
	}
}

var descriptions = map[string]string{
	"action": "what was done, such as run.submit", "address": "network address of the caller", "agent": "descriptive label; grants nothing",
	"artifacts": "files the run retained", "at": "when", "available": "whether this host can hold it", "cancelRequested": "a cancel was asked for and the run has not ended yet",
	"capturedBytes": "raw bytes that the log holds and pages give", "change": "what happened to the path", "changedFilesListed": "changed files on one receipt; the rest is paged",
	"code": "for programs", "codeBytes": "bytes of source", "commit": "the state of the workspace after the run", "complete": "the run has ended and nextOffset is the end of the stream",
	"artifactIds": "retained files with the forms that are too large for data, by MIME type", "cell": "cells of a context: its number in the interpreter, from 1", "contextId": "the context whose cell it is", "connections": "connection aliases the code may use", "contents": "admin keys: may also read code, output and files", "cpus": "processors", "createdAt": "when it was made",
	"createdByKey": "the key that made it", "default": "the size of a session that names none", "deletedAt": "when it was deleted", "data": "each form by its MIME type: text as a string, JSON types as JSON, everything else in base64", "displayId": "a later result with the same one replaces it", "index": "within the run, from 0", "metadata": "what the code said about it",
	"derivedFrom": "retained files that went into it", "description": "what it is good for", "detail": "counts and flags", "downloadPath": "path of the contents; needs authorisation",
	"driver": "what isolates the code", "durationMs": "wall time of the program", "encoding": "how text is written", "endedAt": "when the session was closed or expired",
	"exclusive": "no other run was active meanwhile: the changes are this run's", "executionId": "the run's id", "exitCode": "of the program; null until it ended, or if a signal ended it",
	"expiresAt": "the deadline", "fileArtifactId": "retained file with the output beyond the cap", "fileBytes": "bytes of one retained file", "fileTruncated": "not even the retained file holds everything",
	"filesChanged": "what the run changed in the workspace", "finishedAt": "when it ended", "generation": "counts replacements of the session's compute", "group": "group of the end user; grants nothing",
	"headCommit": "the newest state of the workspace", "historyBytes": "what the contents of its commits take on the server, each counted once", "id": "its id", "idempotencyKey": "the key it was submitted with", "image": "id of the sandbox image", "inputRoot": "digest of the workspace before the run",
	"keepAtExpiry": "globs of files that are retained when the session reaches its deadline", "isolation": "what the driver promises, in a word", "items": "the page", "key": "the key used", "kind": "its kind", "labels": "free labels", "lane": "the queue it waited in", "language": "what the code is written in",
	"lastActiveAt": "when it was last used", "lastUsedAt": "when it was last used, to the minute", "length": "in raw bytes", "limits": "limits in effect", "limitsHit": "limits the run met, whether or not they ended it",
	"maxTimeoutMs": "longest wall time a run may ask for", "memoryBytes": "memory of user code", "message": "one sentence for people", "mimeType": "as declared or guessed; not to be trusted", "mode": "permissions, in octal",
	"keepMemory": "a suspended session keeps its memory", "memoryKept": "variables and processes return with the next run", "suspended": "the session has no sandbox, for want of work; its next run has it return",
	"variablesLost": "what earlier runs had in memory or in /tmp is gone: a notice says why", "Suspension.memoryBytes": "of the kept memory, sealed",
	"name": "its name", "nextCursor": "asks for the next page; absent on the last one", "nextOffset": "where the next page begins", "notices": "what else the caller should know", "number": "order of admission within the session, from 1",
	"offset": "of the first byte, in raw bytes of the stream", "openFiles": "open descriptors per process", "origin": "how it came to be", "outcome": "ok, or an error code", "output": "the two streams, counted",
	"outputBytes": "bytes captured per stream", "outputRoot": "digest of the workspace after the run", "path": "in the workspace", "peakMemoryBytes": "most memory used at once", "preview": "the first characters of a text file",
	"project": "project id", "queuedMs": "time between admission and dispatch", "queuedRuns": "runs that may wait", "rateMicrosPerSecond": "price of a second of active time, in millionths", "rateVersion": "names the price list",
	"reason": "why it ended as it did; a closed list", "requestId": "names the request in logs and the audit trail", "result": "structured result, if the code set one", "resultBytes": "bytes of a structured result", "results": "what the run showed, in order", "retentionMs": "how long a file is retained",
	"revision": "the configuration in effect", "revokedAt": "when it was revoked", "runId": "the run that made it", "scopes": "its rights", "scratchBytes": "bytes of /tmp and /dev/shm together", "seq": "the event id, from 1 without gaps",
	"session": "the session it belongs to", "sessionFiles": "retained files of a session", "sessionFilesBytes": "bytes of a session's retained files", "sessionId": "id of the session", "sha256": "digest of the contents, in hex", "signal": "the signal that ended the program",
	"size": "bytes", "startedAt": "when it was dispatched", "state": "where it is in its life", "status": "where it is in its life", "stderr": "captured standard error as text", "stdinBytes": "bytes of standard input", "stdout": "captured standard output as text",
	"stream": "the output stream", "target": "id of what it was done to", "tasks": "processes and threads of user code", "tenant": "tenant id", "tenantFilesBytes": "bytes of a tenant's retained files", "tenants": "names of the tenants it is limited to",
	"text": "the bytes as text; one U+FFFD for each that belongs to no character", "base64": "the bytes, when they are not valid UTF-8", "timeoutMs": "wall time in effect", "title": "what the code means", "toolCalls": "governed tool calls per run",
	"tools": "tools the code may call, at exact versions", "total": "how many there are", "totalBytes": "raw bytes that the program wrote", "truncated": "the program wrote more than was captured", "type": "file, dir or symlink",
	"user": "user id", "tenantName": "direct keys: the tenant's name, as it was given", "userName": "direct keys: the user's name, as it was given", "version": "exact version", "workspaceBytes": "bytes of the workspace", "workspaceFiles": "files, directories and links of the workspace",

	"ChangedFile.size": "bytes of a file", "CreatedKey.session": "the one session it may touch", "Event.kind": "status, output, result, file, files, call or terminal", "Event.stream": "output: the stream", "Event.text": "output: the bytes as text; never cut inside a character",
	"Key.session": "the one session it may touch", "Limits.timeoutMs": "default wall time of a run", "LimitsInput.workspaceBytes": "bytes of the workspace; at least 1 MiB", "LimitsInput.memoryBytes": "memory of user code; at least 32 MiB",
	"Notice.detail": "in words", "Outputs.stderr": "standard error", "Outputs.stdout": "standard output", "OutputPage.offset": "where the page begins, in raw bytes", "OutputPage.text": "the page: text, or base64",
	"Problem.status": "of the answer", "Result.type": "structured, value, display, error or clear", "Result.truncated": "a form was too large to keep", "Receipt.session": "the session as it is now", "Revision.revision": "its number, from 1", "Revision.size": "sandbox size", "Session.size": "sandbox size", "Session.kind": "personal acts as its owner, business binds one end user",
	"SessionEvent.kind": "what happened; closed and expired are terminal", "SessionEvent.meta": "depends on kind", "Session.limits": "limits in effect", "Size.reason": "why it is not available", "SubmitRunRequest.language": "what the code is written in", "ToolSelection.name": "the tool's name", "ToolRef.name": "the tool's name", "AuditEntry.id": "its id; sorts by time",
	"Health.status": "ok", "CreateKeyRequest.expiresAt": "when the key ends; never if absent", "Run.revision": "the configuration it ran under", "Receipt.revision": "the configuration it ran under", "Artifact.revision": "the configuration it was made under",
	"Run.generation": "of the compute it ran in; 0 until dispatched", "Receipt.generation": "of the compute it ran in; 0 until dispatched", "StreamInfo.sha256": "digest of everything the program wrote, in hex",
}
