# The container runtimes and the executables embedded in the server.
#
# Each runtime is built from a Go module of its own (runtime/runsc,
# runtime/runc), so that its pinned dependencies stay out of the product's.
# To move a pin: cd runtime/<name> && go get -tool <package>@<version>.
#
#   make runtimes   bin/runsc and bin/runc (runsc takes minutes the first time)
#   make payload    packs guest, runsc and runc into internal/payload/files

BIN ?= bin

RUNSC_MOD     := runtime/runsc/go.mod
RUNSC_VERSION := $(shell sed -n 's|^.*gvisor.dev/gvisor \(v[^ ]*\).*|\1|p' $(RUNSC_MOD))
RUNC_MOD      := runtime/runc/go.mod
RUNC_VERSION  := $(shell sed -n 's|^.*opencontainers/runc \(v[^ ]*\).*|\1|p' $(RUNC_MOD))

PAYLOAD_FILES := internal/payload/files

.PHONY: runtimes payload
runtimes: $(BIN)/runsc $(BIN)/runc

# A static binary without cgo. It is built beside its place and renamed, so
# that an interrupted build leaves no half executable.
$(BIN)/runsc: $(RUNSC_MOD) runtime/runsc/go.sum
	@mkdir -p $(BIN)
	@echo "building runsc $(RUNSC_VERSION) (a few minutes the first time)"
	@cd runtime/runsc && CGO_ENABLED=0 go build -trimpath \
		-ldflags "-s -w -X gvisor.dev/gvisor/runsc/version.version=$(RUNSC_VERSION)" \
		-o $(abspath $(BIN))/.runsc.new gvisor.dev/gvisor/runsc
	@mv $(BIN)/.runsc.new $@

# runc needs cgo and libseccomp (static library: libseccomp-dev). It is linked
# statically, so that the embedded copy runs on any distribution.
$(BIN)/runc: $(RUNC_MOD) runtime/runc/go.sum
	@mkdir -p $(BIN)
	@echo "building runc $(RUNC_VERSION)"
	@cd runtime/runc && CGO_ENABLED=1 go build -trimpath -buildmode=pie \
		-tags "seccomp urfave_cli_no_docs netgo osusergo" \
		-ldflags "-s -w -X main.gitCommit=$(RUNC_VERSION) -linkmode external -extldflags -static-pie" \
		-o $(abspath $(BIN))/.runc.new github.com/opencontainers/runc
	@mv $(BIN)/.runc.new $@

# The guest is built every time (the build cache makes that quick) and replaced
# only if it changed, so that it is not packed again for nothing.
.PHONY: always
always:
$(BIN)/guest: always
	@mkdir -p $(BIN)
	@CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o $(BIN)/.guest.new ./cmd/guest
	@if cmp -s $(BIN)/.guest.new $@; then rm $(BIN)/.guest.new; else mv $(BIN)/.guest.new $@; fi

payload: $(PAYLOAD_FILES)/guest.json $(PAYLOAD_FILES)/runsc.json $(PAYLOAD_FILES)/runc.json

$(PAYLOAD_FILES)/guest.json: $(BIN)/guest
	@go run ./internal/payload/pack -dir $(PAYLOAD_FILES) -name guest -version "$(or $(VERSION),dev)" $<

$(PAYLOAD_FILES)/runsc.json: $(BIN)/runsc
	@go run ./internal/payload/pack -dir $(PAYLOAD_FILES) -name runsc -version "$(RUNSC_VERSION)" $<

$(PAYLOAD_FILES)/runc.json: $(BIN)/runc
	@go run ./internal/payload/pack -dir $(PAYLOAD_FILES) -name runc -version "$(RUNC_VERSION)" $<
