# Workbench: the front door. `make demo` sets everything up and runs the main
# job; `make test` passes the tests. Both install what they need (Debian
# packages, Go modules) and say so.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
export CGO_ENABLED ?= 1

CACHE  := $(CURDIR)/.cache
# Where the command line looks for images by itself. It is shared between
# clones, and open to the unprivileged ids that sandboxes run as, which a clone
# in a home directory is not.
IMAGES ?= /var/lib/workbench/images
DEMO   := $(CACHE)/demo
PREFIX ?= /usr/local
GO     ?= go
GOTEST ?= $(GO) test -count=1 -timeout 20m
# The packages whose tests take longest, in that order, begun first. Not so
# ./internal/verify: its rows try how fast limits are noticed, and have the
# machine more to themselves at the end.
LONGEST := ./internal/e2e ./internal/guest ./internal/faults ./internal/sandbox/oci

include runtime/runtime.mk
include image/image.mk

.PHONY: help setup demo run build install test soak lint lint-openapi mcp-servers conformance fmt generate bench clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: ## install what is missing (Debian packages, images) and say what
	@./image/setup.sh
	@$(MAKE) --no-print-directory build image-minimal image-standard

build: payload ## build bin/workbench with guest and runtimes inside
	@$(GO) build -trimpath -ldflags '-s -w' -o bin/workbench ./cmd/workbench
	@echo "built bin/workbench"

install: build ## put workbench into $(PREFIX)/bin; PREFIX is /usr/local by default
	@install -D -m 755 bin/workbench $(DESTDIR)$(PREFIX)/bin/workbench
	@echo "installed $(DESTDIR)$(PREFIX)/bin/workbench"

demo: setup ## set up, then run the example job in a gVisor sandbox and show what it kept
	@rm -rf $(DEMO) && mkdir -p $(DEMO)
	@echo "running examples/report/report.py on examples/report/sales.csv in a gVisor sandbox"
	@bin/workbench run examples/report/report.py --data $(DEMO)/data --images $(IMAGES) --file examples/report/sales.csv --out $(DEMO)/out
	@echo "the results are in $(DEMO)/out:"; ls -l $(DEMO)/out

run: setup ## serve on 127.0.0.1:8080 (data in .cache/data); prints an admin key at the first start
	@bin/workbench serve --data $(CACHE)/data --images $(IMAGES)

test: setup lint-openapi mcp-servers conformance ## everything that must hold: real sandboxes, SQLite and PostgreSQL
	@$(GO) vet ./...
	@WORKBENCH_IMAGES=$(IMAGES) $(GOTEST) $(LONGEST) ./...

conformance: tools/conformance/node_modules/.package-lock.json ## the client side of the MCP conformance suite
	@GO=$(GO) tools/conformance/run.sh

soak: setup mcp-servers ## the long form: 1,000 kills, everything on both runtimes
	@WORKBENCH_IMAGES=$(IMAGES) WORKBENCH_SOAK=1 $(GO) test -count=1 -timeout 4h -v -run 'Soak|Kill|PowerCut' ./internal/faults/...
	@WORKBENCH_IMAGES=$(IMAGES) WORKBENCH_SOAK=1 $(GO) test -count=1 -timeout 2h $(filter-out ./internal/faults,$(LONGEST)) ./internal/verify

lint: bin/golangci-lint lint-openapi ## golangci-lint with the explicit list in .golangci.yml, Redocly's rules for the OpenAPI document
	@bin/golangci-lint run ./...

# The linter is pinned by tools/openapi/package-lock.json, with its digests.
lint-openapi: tools/openapi/node_modules/.package-lock.json
	@cd tools/openapi && node lint.mjs ../../docs/openapi.json

tools/openapi/node_modules/.package-lock.json: tools/openapi/package-lock.json
	@command -v node >/dev/null && command -v npm >/dev/null || { echo "lint-openapi: needs node (18.17 or newer) and npm; make setup installs them"; exit 1; }
	@echo "installing the OpenAPI linter from its pinned packages"
	@cd tools/openapi && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null
	@touch $@

# The public MCP servers that tests call are pinned likewise.
mcp-servers: tools/mcp/node_modules/.package-lock.json

tools/conformance/node_modules/.package-lock.json: tools/conformance/package-lock.json
	@echo "installing the MCP conformance suite from its pinned packages"
	@cd tools/conformance && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null
	@touch $@

tools/mcp/node_modules/.package-lock.json: tools/mcp/package-lock.json
	@command -v node >/dev/null && command -v npm >/dev/null || { echo "mcp-servers: needs node (18.17 or newer) and npm; make setup installs them"; exit 1; }
	@echo "installing public MCP servers for the tests from their pinned packages"
	@cd tools/mcp && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null
	@touch $@

bin/golangci-lint: tools/go.mod tools/go.sum
	@echo "building golangci-lint from its pinned module"
	@cd tools && $(GO) build -o ../bin/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint

fmt: ## gofmt everything
	@gofmt -w $$(git ls-files '*.go')

generate: ## write what is generated from the code; must leave no diff
	@$(GO) run ./internal/api/gen > docs/openapi.json

bench: setup ## measure against bare interpreters, bwrap, runc, docker and cold runsc; rows go to bench/results/
	@./image/setup.sh bench
	@WORKBENCH_IMAGES=$(IMAGES) $(GO) run ./bench

clean: ## remove what was built (images stay)
	@rm -rf bin internal/payload/files/guest* internal/payload/files/runsc* internal/payload/files/runc*
