#!/bin/bash
# Runs the client side of the MCP conformance suite against the MCP client of
# internal/upstream, and prints what each scenario found. Which scenarios: those of
# what that client does. It is no browser, so none of the logins that need one, and
# answers no question of a server (elicitation).
set -uo pipefail
cd "$(dirname "$0")"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
(cd ../.. && "${GO:-go}" build -o "$tmp/client" ./internal/upstream/conformanceclient) || exit 1
node=node
for built in node_modules/node-linux-*/bin/node; do "$built" --version >/dev/null 2>&1 && node=$built; done
failed=0
for scenario in initialize tools_call sse-retry auth/client-credentials-basic; do
  if said=$("$node" node_modules/@modelcontextprotocol/conformance/dist/index.js client --command "$tmp/client" --scenario "$scenario" --timeout 60000 -o "$tmp/out" 2>&1); then
    outcome=pass
  else
    outcome=FAIL failed=1
  fi
  echo "$outcome  $scenario  $(grep -oE 'Passed: .*' <<<"$said" | tail -1)"
  [ "$outcome" = pass ] || echo "$said" | tail -40
done
exit $failed
