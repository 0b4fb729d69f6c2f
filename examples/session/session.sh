#!/usr/bin/env bash
# A scripted session: variables, a chart, a pause in which the sandbox goes, and
# a workspace with a history. Needs curl and jq, a server (make run), and an
# execution key:
#
#   WORKBENCH_KEY=wbk_d_… examples/session/session.sh
#
# It waits until the server has suspended the idle sessions, which takes half a
# minute unless the server was started with another --suspend-after. chart.png
# goes into the current directory, or into the one named as the argument.
set -euo pipefail

server=${WORKBENCH_SERVER:-http://127.0.0.1:8080}
: "${WORKBENCH_KEY:?set WORKBENCH_KEY to an execution key (workbench key create --tenant demo --user you)}"
out=${1:-.}

# The key goes through a pipe, not the command line, where others on this
# machine could read it.
call() {
  local path=$1
  shift
  curl --silent --show-error --fail-with-body --header 'Content-Type: application/json' \
    --config <(printf 'header = "Authorization: Bearer %s"\n' "$WORKBENCH_KEY") "$@" "$server/v1/workbench$path"
}

# receipt RUN: the receipt, once the run has ended.
receipt() {
  local r
  until r=$(call "/runs/$1?waitMs=30000") && jq -e '.status | IN("succeeded", "failed", "timed_out", "cancelled", "unknown")' <<<"$r" >/dev/null; do :; done
  printf '%s\n' "$r"
}

# cell SESSION CODE: runs a cell in the context "default", which needs no
# creating, and prints its receipt.
cell() {
  local run
  run=$(jq -n --arg code "$2" '{language: "python", code: $code, contextId: "default"}' | call "/sessions/$1/runs" --data @- | jq -r .id)
  receipt "$run"
}

value() { jq -r '[.results[] | select(.type == "value")][-1].data["text/plain"]'; }
notices() { jq -r '.notices[]? | "  \(.code): \(.detail)"'; }

# suspended SESSION: waits until the session is.
suspended() {
  for _ in {1..240}; do
    if call "/sessions/$1" | jq -e .suspended >/dev/null; then return; fi
    sleep 0.5
  done
  echo "session $1 was not suspended within two minutes: was the server started with --suspend-after 0?" >&2
  return 1
}

echo "1. Two sessions: one keeps its memory while nothing happens, one does not"
kept=$(call /sessions --data '{"agent": "Scripted session", "keepMemory": true}' | jq -r .id)
plain=$(call /sessions --data '{"agent": "Scripted session"}' | jq -r .id)

echo "2. A variable"
for session in "$kept" "$plain"; do
  cell "$session" 'sales = {"May": 3, "June": 5, "July": 8}
open("notes.txt", "w").write("May to July\n")
sum(sales.values())' | value
done

echo "3. A chart of it"
chart=$(cell "$kept" 'import matplotlib.pyplot as plt
plt.bar(list(sales), sales.values())
plt.show()')
index=$(jq '[.results[] | select(.data["image/png"])][0].index' <<<"$chart")
call "/runs/$(jq -r .id <<<"$chart")/results/$index?type=image/png" --output "$out/chart.png"
echo "$out/chart.png: $(wc -c <"$out/chart.png") bytes"

echo "4. Nobody calls until both sandboxes are gone"
suspended "$kept"
suspended "$plain"
call "/sessions/$kept" | jq -r '"with keepMemory: \(.suspended.memoryBytes) bytes of sealed memory"'

echo "5. With keepMemory the variable is there"
back=$(cell "$kept" 'sales["August"] = 13
open("notes.txt", "w").write("May to August\n")
sum(sales.values())')
value <<<"$back"
notices <<<"$back"

echo "6. What the last cell changed"
call "/runs/$(jq -r .id <<<"$back")/diff" --header 'Accept: text/x-diff'

echo "7. Back to what the chart's cell left; the variables stay"
call "/sessions/$kept/rollback" --data "$(jq -n --arg run "$(jq -r .id <<<"$chart")" '{run: $run}')" | jq -r '"memory: \(.memory)"'
cell "$kept" 'print(open("notes.txt").read().strip()); sum(sales.values())' | jq -rj '.stdout, .results[0].data["text/plain"], "\n"'

echo "8. A fork of what that cell left, which goes its own way"
fork=$(call "/sessions/$kept/fork" --data "$(jq -n --arg run "$(jq -r .id <<<"$back")" '{run: $run}')" | jq -r .id)
changed=$(cell "$fork" 'open("notes.txt", "a").write("and a forecast\n"); open("forecast.txt", "w").write("21\n")')
call "/commits/$(jq -r .commit <<<"$changed")/diff" | jq -r '.items[] | "\(.change) \(.path)"'

echo "9. Without keepMemory the cell is refused, for it needs what is gone"
jq -n '{language: "python", code: "sum(sales.values())", contextId: "default"}' |
  call "/sessions/$plain/runs" --data @- --no-fail-with-body | jq -r '"  \(.code): \(.detail)"'
echo "The files are there, and it goes on when it is told to begin anew"
again=$(jq -n '{language: "python", code: "print(\"sales\" in globals(), open(\"notes.txt\").read().strip())", contextId: "default", onLostContext: "restart"}' |
  call "/sessions/$plain/runs" --data @- | jq -r .id)
again=$(receipt "$again")
jq -rj .stdout <<<"$again"
notices <<<"$again"

for session in "$kept" "$plain" "$fork"; do call "/sessions/$session/close" --request POST >/dev/null; done
