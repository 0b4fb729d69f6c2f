#!/usr/bin/env bash
# Upload a file, have Python read it in a sandbox, print the result, close the
# session, download the file again. Needs curl and jq, a server (make run), and
# an execution key:
#
#   WORKBENCH_KEY=wbk_d_… examples/hello/hello.sh
set -euo pipefail

server=${WORKBENCH_SERVER:-http://127.0.0.1:8080}
: "${WORKBENCH_KEY:?set WORKBENCH_KEY to an execution key (workbench key create --tenant demo --user you)}"

# The key goes through a pipe, not the command line, where others on this
# machine could read it.
call() {
  curl --silent --show-error --fail-with-body --config <(printf 'header = "Authorization: Bearer %s"\n' "$WORKBENCH_KEY") "$@"
}
json=(--header 'Content-Type: application/json')

session=$(call "${json[@]}" "$server/v1/workbench/sessions" --data '{
  "agent": "Report helper", "tools": [], "connections": []
}' | jq -r .id)

file=$(printf hello | call --header 'Content-Type: text/plain' --data-binary @- \
  "$server/v1/workbench/sessions/$session/artifacts?name=input.txt" | jq -r .id)

run=$(jq -n --arg file "$file" --arg key "hello-$session" '{
  language: "python", code: "print(open(\"input.txt\").read().upper())",
  artifactIds: [$file], idempotencyKey: $key
}' | call "${json[@]}" --data @- "$server/v1/workbench/sessions/$session/runs" | jq -r .id)

call "$server/v1/workbench/runs/$run?waitMs=30000" | jq -r '.stdout'

call --request POST "$server/v1/workbench/sessions/$session/close" > /dev/null
call "$server/v1/workbench/artifacts/$file/content"
echo
