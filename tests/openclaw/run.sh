#!/usr/bin/env bash
# Drives the REAL OpenClaw through respool in front of a scripted, vLLM-like upstream. Exit 0 only if every turn is right.
# usage: run.sh DIR              install what is missing into DIR (outside the repository), build respool, run all turns
#        run.sh DIR statuses     measure, without respool, how OpenClaw takes errors (status-cases.mjs; CASES=REGEX)
#        run.sh DIR words        measure, without respool, which words of a final error OpenClaw punishes (word-cases.mjs; CASES=REGEX;
#                                FORM=event in a stream; FALLBACK=backup with a fallback model; PARALLEL=4;
#                                WORDS=FILE merges the outcome into such a file as measured-words.jsonl)
#        run.sh DIR misbehaviours   every misbehaviour of a model or server, once and always; ROUTE=live for tools_mode = "live"
#        run.sh DIR storms       servers that stay broken, that start late, replies that end a turn, calls that must not be made
#                                (storm-cases.mjs): the requests of one user turn, and when the user knows. ROUTES="direct respool before" (default: direct respool), where
#                                `before` is another binary, RESPOOL_BEFORE=PATH; ONLY=REGEX; ROUTE=live; PARALLEL=6; FALLBACK=backup
#                                with a healthy fallback model
#        run.sh DIR long-turns   turns of twelve calls while the model server spoils each reply with a probability: long-turns.mjs says how many
#                                must end right; ROUTES="direct respool" (default: respool), TURNS=25, SPOIL="10 20 30 40 50 60", SEED=1
#        run.sh DIR agents   an agent of respool's as OpenClaw's model: own tools, and own and OpenClaw's together
#        run.sh DIR experts  an expert as OpenClaw's model, EXPERTS.md in the main agent's workspace, tasks handed over with sessions_spawn and
#                            sessions_send; delivery into the main session, approvals by the plugin's command, a chat message as a trigger
#        run.sh DIR channel  a real channel, OpenClaw's Telegram in front of a Bot API on loopback: a message as a trigger, approvals by its owner's
#                            command, a stranger's refused, alerts through it while the model server is down
#        run.sh DIR nodes    four respools on one PostgreSQL behind nginx (both from Debian), of which three are killed: one in the middle of a turn
#                            with tools, one in that of an agent's run, one in that of an expert's
#        run.sh DIR direct       the turns without respool: shows what the scripts find when nothing is repaired
#   OC_VERSION=2026.2.26 the old client   RESPOOL=PATH a binary in place of a build   ONLY=REGEX some of the turns
#   GATEWAY_PORT=18840 (OpenClaw also takes some of the next ports)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) top=$(cd "$(dirname "$0")/../.." && pwd)
usage() { echo "usage: run.sh DIR [statuses|words|misbehaviours|storms|long-turns|agents|experts|channel|nodes|direct]" >&2; exit 2; }
[ $# -ge 1 ] && [ $# -le 2 ] || usage
mode=${2:-relay}
case $mode in relay | statuses | words | misbehaviours | storms | long-turns | agents | experts | channel | nodes | direct) ;; *) usage ;; esac
export OC_VERSION=${OC_VERSION:-2026.9.6} GATEWAY_PORT=${GATEWAY_PORT:-18840} GATEWAY_TOKEN=respool-e2e
mkdir -p "$1"; dir=$(cd "$1" && pwd)

"$here/kit/setup.sh" "$dir" "$OC_VERSION"
node=$dir/node24/node_modules/node/bin/node
mkdir -p "$dir/tmp" "$dir/gateway/workspace"
run=$(mktemp -d "$dir/tmp/run.XXXXXX"); children=()
export OPENCLAW_STATE_DIR=$run/state  # fresh: a provider disabled in an earlier run would still be
finish() {
  "$here/kit/gateway.sh" "$dir" stop || true
  [ ${#children[@]} = 0 ] || kill "${children[@]}" 2>/dev/null || true
  echo "logs: $run $dir/gateway/gateway.log"
}
trap finish EXIT
trap 'exit 1' INT TERM

free_port() { "$node" -e 's = require("net").createServer().listen(0, "127.0.0.1", () => { console.log(s.address().port); s.close(); })'; }
fail() { echo "run.sh: $*" >&2; exit 1; }

start_upstream() { # its base URL lands in UPSTREAM
  "$node" "$here/scripted-upstream.mjs" "$@" > "$run/upstream.log" 2>&1 & UPSTREAM_PID=$!; children+=($!)
  for _ in $(seq 50); do UPSTREAM=$(head -n 1 "$run/upstream.log" 2>/dev/null || true); [ -z "$UPSTREAM" ] || break; sleep 0.1; done
  case $UPSTREAM in http://*) export UPSTREAM ;; *) fail "the scripted upstream did not start: $UPSTREAM" ;; esac
}

start_respool() { # NAME UPSTREAM_URL [BINARY]: its base URL lands in `base`
  local port; port=$(free_port); base=http://127.0.0.1:$port/v1
  (cd "$run" && exec env RESPOOL__LOG__FORMAT=json RESPOOL_CONFIG="$([ ! -e respool.toml ] || echo respool.toml)" "${3:-$respool}" serve --listen "127.0.0.1:$port" --upstream "$2") > "$run/$1.log" 2>&1 & children+=($!)
  for _ in $(seq 100); do "$node" -e "fetch('http://127.0.0.1:$port/health').then((r) => process.exit(r.ok ? 0 : 1), () => process.exit(1))" && return; sleep 0.1; done
  cat "$run/$1.log" >&2; fail "respool ($1) did not start"
}

start_database() { # its URL lands in `database`
  local programs; programs=$(dirname "$(ls /usr/lib/postgresql/*/bin/postgres | tail -n 1)")
  local port data; port=$(free_port) data=$(mktemp -d /tmp/respool-e2e-pg.XXXXXX)
  local as=(); [ "$(id -u)" != 0 ] || { as=(setpriv --reuid postgres --regid postgres --clear-groups); chown postgres: "$data"; }
  (cd / && "${as[@]}" "$programs/initdb" -D "$data" -A trust -U respool -E UTF8 --locale=C >/dev/null)
  (cd / && exec "${as[@]}" "$programs/postgres" -D "$data" -p "$port" -h 127.0.0.1 -k "$data") > "$run/postgres.log" 2>&1 & children+=($!)
  for _ in $(seq 100); do "$programs/pg_isready" -q -h 127.0.0.1 -p "$port" && break; sleep 0.1; done
  database="postgres://respool@127.0.0.1:$port/postgres?sslmode=disable"
}

build_respool() {
  respool=${RESPOOL:-$top/target/release/respool}
  [ -n "${RESPOOL:-}" ] || cargo build --release --manifest-path "$top/Cargo.toml"
}

write_agent() { # respool.toml, with an agent that reads one file, which holds $OWN
  mkdir -p "$run/own"; echo "$OWN" > "$run/own/note.txt"
  cat > "$run/respool.toml" <<TOML
[agents.helper]
model = "gpt-oss-120b"
tools = ["read"]
[tools.local]
workspace = "$run/own"
[[tools.policy.rule]]
tool = "read"
then = "allow"
TOML
}

write_desk() { # TIER: an expert whose only tool is a CRM that keeps a journal; to be called after respool.toml is begun
  export JOURNAL=$run/journal
  mkdir -p "$run/experts/desk" "$run/expert-config/desk"
  cat > "$run/experts/desk/expert.yaml" <<YAML
spec: "1.0"
name: desk
version: "1.0.0"
description: Sorts mail
requires: {tools: [crm]}
components: {orchestrator: o.md, persona: [o.md], functions: [f.md], processes: [p.md], tools: [crm.yaml]}
policy: {approval: {default: $1}}
YAML
  printf 'name: crm\noperations:\n  - {name: update_deal_stage, description: Moves a deal}\n' > "$run/experts/desk/crm.yaml"
  printf -- '---\nname: move\ndescription: Moves a deal\ntools: [crm]\n---\nSCRIPT {"tag":"expert-move","calls":[["crm__update_deal_stage",{"deal_id":"d-1","stage":"4"}]]}\n' > "$run/experts/desk/p.md"
  printf 'tools:\n  crm: {type: mcp, server: crm-fake}\n' > "$run/expert-config/desk/bindings.yaml"
  echo "Sort." > "$run/experts/desk/o.md"
  printf -- '---\nname: sort-mail\ndescription: Sorts a mail\n---\n%s\n' "$OWN" > "$run/experts/desk/f.md"
  cat >> "$run/respool.toml" <<TOML
[experts]
dir = "$run/experts"
model = "gpt-oss-120b"
[tools.mcp.crm-fake]
command = "python3"
args = ["$top/examples/experts-demo/servers/fake_mcp.py", "$top/examples/experts-demo/servers/crm.json", "$JOURNAL"]
TOML
}

make_fixture() {
  export FIXTURE=fixture-$$-7731; echo "$FIXTURE" > "$dir/gateway/workspace/fixture.txt"
  echo draft > "$dir/gateway/workspace/draft.txt"
}

start_gateway() { # NAME=BASE_URL...
  "$node" "$here/kit/config.mjs" "$OC_VERSION" "$dir/openclaw.log" "$dir/gateway/workspace" "$@" > "$run/openclaw.json"
  "$here/kit/gateway.sh" "$dir" start "$run/openclaw.json"
}

case $mode in
  experts | channel)
    [ "$mode $OC_VERSION" != 'channel 2026.2.26' ] || fail "the old client has no plugin of respool's"
    export RELAY_LOG=$run/respool.log OWN=own-$$-7731
    build_respool
    start_upstream
    heard=webchat
    if [ "$mode" = channel ]; then
      heard=telegram
      : > "$run/telegram.log"
      "$node" "$here/telegram-api.mjs" > "$run/telegram.log" 2>&1 & children+=($!)
      for _ in $(seq 50); do TELEGRAM=$(head -n 1 "$run/telegram.log"); [ -z "$TELEGRAM" ] || break; sleep 0.1; done
      case $TELEGRAM in http://*) export TELEGRAM UPSTREAM_PID ;; *) fail "the Bot API did not start: $TELEGRAM" ;; esac
    fi
    # Keys: OpenClaw's own, the operator's (the plugin has it), the hook's.
    export CLIENT_KEYS=sk-local OPERATOR_KEYS=sk-operator-0123456789 ASK_SECRET=ask-secret-0123456789
    # Of the environment only OPENCLAW_* reaches the gateway (kit/openclaw.sh).
    export RESPOOL_OPERATOR_KEY=$OPERATOR_KEYS OPENCLAW_OPERATOR_KEY=$OPERATOR_KEYS OPENCLAW_ASK_SECRET=$ASK_SECRET
    echo "state_dir = \"$run/runs\"" > "$run/respool.toml"
    write_desk confirm
    printf 'triggers:\n  - {name: ask, type: channel, process: move, dedupe_key: message_id, concurrency: serial}\n' >> "$run/experts/desk/expert.yaml"
    printf 'triggers:\n  ask: {channels: [%s]}\n' "$heard" >> "$run/expert-config/desk/bindings.yaml"
    sed -i "s|^\[experts\]|&\nworkspace = \"$dir/gateway/workspace\"|" "$run/respool.toml"
    cat >> "$run/respool.toml" <<TOML
[experts.desk]
hook_secret_env = { ask = "ASK_SECRET" }
[tools.gateway]
url = "http://127.0.0.1:$GATEWAY_PORT"
token = "$GATEWAY_TOKEN"
TOML
    [ "$mode" != channel ] || cat >> "$run/respool.toml" <<TOML
[alerts]
group = "1s"
[[alerts.sink]]
type = "openclaw"
url = "http://127.0.0.1:$GATEWAY_PORT"
token = "$GATEWAY_TOKEN"
channel = "telegram"
to = "4711"
TOML
    # These two stand before the first table.
    sed -i '1i client_keys_env = "CLIENT_KEYS"\noperator_keys_env = "OPERATOR_KEYS"' "$run/respool.toml"
    start_respool respool "${UPSTREAM%/v1}"; RELAY=$base
    export RELAY OPENCLAW="$here/kit/openclaw.sh $dir"
    telegram=""
    [ "$mode" != channel ] || telegram=$(cat <<JSON
  "channels": { "telegram": { "enabled": true, "botToken": "1:e2e", "apiRoot": "$TELEGRAM", "dmPolicy": "open", "allowFrom": ["*"] } },
  "commands": { "ownerAllowFrom": ["telegram:4711"] },
JSON
    )
    [ "$OC_VERSION" = 2026.2.26 ] || EXTRA=$(cat <<JSON
{ "gateway": { "tools": { "allow": ["sessions_send"] } }, $telegram
  "plugins": { "load": { "paths": ["$top/deploy/openclaw-experts"] }, "entries": { "respool-experts": { "enabled": true,
    "hooks": { "allowConversationAccess": true }, "config": { "url": "${RELAY%/v1}", "keyEnv": "OPENCLAW_OPERATOR_KEY",
      "triggers": [{ "channel": "$heard", "url": "${RELAY%/v1}/hooks/desk/ask", "secretEnv": "OPENCLAW_ASK_SECRET" }] } } } } }
JSON
    )
    export EXTRA=${EXTRA:-{\}}
    start_gateway "respool=$RELAY" "respool-expert=$RELAY"
    RESPOOL=$respool RESPOOL_CONFIG=$run/respool.toml "$node" "$here/$mode.mjs"
    exit ;;
  agents)
    export RELAY_LOG=$run/respool.log OWN=own-$$-7731
    build_respool
    start_upstream
    write_agent
    sed -i "1i state_dir = \"$run/runs\"" "$run/respool.toml"
    start_respool respool "${UPSTREAM%/v1}"; RELAY=$base
    start_gateway "respool-agent=$RELAY" "respool=$RELAY"
    "$node" "$here/agents.mjs"
    exit ;;
  nodes)
    export OWN=own-$$-7731
    build_respool
    start_upstream
    start_database
    write_agent
    write_desk auto
    printf '[store]\nurl = "%s"\n' "$database" >> "$run/respool.toml"
    nodes=()
    for name in a b c d; do
      export RESPOOL__NODE__NAME=$name RESPOOL__STATE_DIR=$run/state-$name
      start_respool "$name" "${UPSTREAM%/v1}"; nodes+=("${base%/v1}")
    done
    front=$(free_port)
    # Debian's nginx is too old for `resolve`, which addresses do not need.
    sed -e "s/ resolve / /; s/server b:8003\(.*\)/server ${nodes[1]#http://}\1 server ${nodes[2]#http://}\1 server ${nodes[3]#http://}\1/" \
      -e "s/a:8003/${nodes[0]#http://}/; s/listen 8080/listen 127.0.0.1:$front/; s/tries 2/tries 4/" "$top/deploy/compose/nginx.conf" > "$run/nginx.conf"
    nginx -p "$run" -c "$run/nginx.conf" -e "$run/nginx.log" -g "daemon off; pid $run/nginx.pid;" & children+=($!)
    start_gateway "respool=http://127.0.0.1:$front/v1" "respool-agent=http://127.0.0.1:$front/v1" "respool-expert=http://127.0.0.1:$front/v1"
    NODES="${nodes[*]}" PIDS="${children[*]: -5:4}" "$node" "$here/nodes.mjs"
    exit ;;
  misbehaviours)
    export ROUTE=${ROUTE:-buffered} RELAY_LOG=$run/respool.log
    build_respool
    if [ "$ROUTE" = live ]; then export RESPOOL__TOOLS_MODE=live; start_upstream --live; else start_upstream; fi
    start_respool respool "${UPSTREAM%/v1}"; RELAY=$base
    make_fixture
    start_gateway "respool=$RELAY"
    "$node" "$here/misbehaviours.mjs"
    exit ;;
  long-turns)
    export ROUTES=${ROUTES:-respool} RELAY_LOG=$run/respool.log
    build_respool
    start_upstream --direct
    start_respool respool "${UPSTREAM%/v1}"; RELAY=$base
    for part in {0..11}; do echo "part $part of the story" > "$dir/gateway/workspace/part-$part.txt"; done
    start_gateway "respool=$RELAY" "direct=$UPSTREAM"
    "$node" "$here/long-turns.mjs"
    exit ;;
  storms)
    export ROUTES=${ROUTES:-direct respool}
    case " $ROUTES " in *" respool "*) build_respool ;; *) respool=${RESPOOL_BEFORE:-} ;; esac
    case " $ROUTES " in *" before "*) [ -x "${RESPOOL_BEFORE:-}" ] || fail "RESPOOL_BEFORE is no program: ${RESPOOL_BEFORE:-}" ;; esac
    [ "${ROUTE:-buffered}" != live ] || export RESPOOL__TOOLS_MODE=live
    export RESPOOL__LIMITS__MAX_BODY=2MiB
    make_fixture
    # shellcheck disable=SC2086
    "$node" "$here/storm-upstream.mjs" $ROUTES > "$run/storms.log" 2>&1 & children+=($!)
    for _ in $(seq 100); do grep -qx ready "$run/storms.log" && break; sleep 0.1; done
    grep -qx ready "$run/storms.log" || fail "the scripted servers did not start: $(cat "$run/storms.log")"
    CONTROL=$(sed -n 's/^control //p' "$run/storms.log"); export CONTROL
    providers=()
    while read -r at route url; do
      case $route in direct) base=$url/v1 ;; before) start_respool "before-$at" "$url" "$RESPOOL_BEFORE" ;; *) start_respool "respool-$at" "$url" ;; esac
      providers+=("c$at-$route=$base")
      [ "$at" != warm ] || [ -z "${FALLBACK:-}" ] || providers+=("$FALLBACK=$base")
    done < <(grep -E '^([0-9]+|warm) ' "$run/storms.log")
    start_gateway "${providers[@]}"
    export PROVIDERS="${providers[*]}"
    "$node" "$here/storms.mjs"
    exit ;;
  statuses)
    start_upstream --direct
    mapfile -t providers < <("$node" "$here/status-cases.mjs")
    start_gateway "${providers[@]/%/=$UPSTREAM}"
    "$node" "$here/statuses.mjs"
    exit ;;
  words)
    start_upstream --direct
    mapfile -t providers < <("$node" -e "import('$here/word-cases.mjs').then(({ CASES }) => CASES.forEach((_, at) => console.log('w' + at)))")
    start_gateway "${providers[@]/%/=$UPSTREAM}" "backup=${UPSTREAM%/v1}/healthy/v1"
    "$node" "$here/words.mjs"
    exit ;;
  relay)
    build_respool
    start_upstream
    start_respool respool "${UPSTREAM%/v1}"; RELAY=$base
    start_respool respool-down "http://127.0.0.1:$(free_port)"; down=$base ;;
  direct)
    start_upstream --direct
    RELAY=$UPSTREAM down=http://127.0.0.1:$(free_port)/v1 ;;
esac
export RELAY DOWN_LOG=$run/respool-down.log
make_fixture
# The failing turns have providers of their own: OpenClaw punishes a provider, not a model.
start_gateway "respool=$RELAY" "respool-plain=$RELAY" "respool-minimal=$RELAY" "respool-dies=$RELAY" "respool-refused=$RELAY" "respool-errors=$RELAY" "respool-down=$down"
"$node" "$here/turns.mjs"
