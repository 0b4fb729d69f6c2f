package api

// contextDescriptions are those of contexts and results.
var contextDescriptions = map[string]string{
	"cells": "cells that were ever dispatched to it", "context": "the context", "cwd": "where its interpreter starts", "interrupted": "whether a cell ran in it and was asked to end",
	"lost": "state lost: when its variables went, and why",

	"Context.createdAt": "when it was made", "Context.generation": "of the compute its interpreter lives in, or last lived in; 0: none has started", "Context.lastUsedAt": "when its last cell was dispatched",
	"Context.runId": "the cell that runs in it", "Context.state": "idle; busy: a cell runs; ended: its interpreter ended with a cell, the next one starts a fresh one; lost: its variables are gone and a cell is refused",
	"Receipt.error": "of a cell that raised: what its last result of type error says", "CellError.name": "class of the exception", "CellError.value": "what it says", "CellError.traceback": "as it was printed",

	"ContextLoss.reason": "what took them", "Event.result": "result: what the run showed", "Interrupted.runId": "the cell that was asked to end",
}
