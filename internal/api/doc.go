// Package api is the REST face: it parses, authenticates, validates and
// answers, and calls the engine, the artifact service and identity for
// everything else. It knows no SQL and no runtime.
//
// Every route stands in one table (Routes); the mux, the OpenAPI document, the
// audit trail and the tests are made from it. Schemas and validation are
// huma's; bodies are read, capped, checked and refused here, so that an answer
// never repeats a value it was sent, every refusal has a code and a field, and
// uploads, downloads and event streams are never held in memory.
package api
