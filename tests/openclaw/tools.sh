#!/usr/bin/env bash
# respool's gateway tools, and deploy/openclaw-plugin, on a REAL OpenClaw gateway. Exit 0 only if every call is right.
# usage: tools.sh DIR     installs what is missing into DIR (outside the repository)      GATEWAY_PORT=18840
#   OC_VERSION=2026.2.26 the old client
set -euo pipefail
[ $# = 1 ] || { echo "usage: tools.sh DIR" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd) top=$(cd "$(dirname "$0")/../.." && pwd)
export OC_VERSION=${OC_VERSION:-2026.9.6} GATEWAY_PORT=${GATEWAY_PORT:-18840} GATEWAY_TOKEN=respool-e2e
mkdir -p "$1"; dir=$(cd "$1" && pwd)
"$here/kit/setup.sh" "$dir" "$OC_VERSION"
mkdir -p "$dir/tmp"; run=$(mktemp -d "$dir/tmp/tools.XXXXXX"); mkdir "$run/workspace" "$run/main"
export OPENCLAW_STATE_DIR=$run/state
trap '"$here/kit/gateway.sh" "$dir" stop || true; echo "logs: $dir/gateway/gateway.log"' EXIT
dreaming=', "memory-core": { "config": { "dreaming": { "enabled": false } } }' config={} also=
# Dreaming is not in its schema; it offers optional tools only where they are allowed, and does not tell them the workspace.
[ "$OC_VERSION" != 2026.2.26 ] ||
  dreaming='' config="{ \"workspace\": \"$run/workspace\" }" also=', "tools": { "alsoAllow": ["respool-host-tools"] }'
cat > "$run/openclaw.json" <<JSON
{ "models": { "mode": "replace", "providers": { "none": { "baseUrl": "http://127.0.0.1:9/v1", "apiKey": "x",
    "api": "openai-completions", "models": [{ "id": "none", "name": "none" }] } } },
  "agents": { "defaults": { "model": { "primary": "none/none" }, "heartbeat": { "every": "0m" }, "skipBootstrap": true },
    "list": [ { "id": "main", "default": true, "workspace": "$run/main", "tools": { "deny": ["host_exec"] } },
      { "id": "respool", "workspace": "$run/workspace"$also } ] },
  "plugins": { "load": { "paths": ["$top/deploy/openclaw-plugin"] },
    "entries": { "respool-host-tools": { "enabled": true, "config": $config }$dreaming } },
  "logging": { "file": "$run/openclaw.log" }, "update": { "checkOnStart": false } }
JSON
"$here/kit/gateway.sh" "$dir" start "$run/openclaw.json"
# It knows no session before its first turn; what comes of this one does not matter.
[ "$OC_VERSION" != 2026.2.26 ] || curl -s -m 60 -o /dev/null "http://127.0.0.1:$GATEWAY_PORT/v1/chat/completions" \
  -H "authorization: Bearer $GATEWAY_TOKEN" -H 'content-type: application/json' -H 'x-openclaw-session-key: agent:respool:main' \
  -d '{"model": "openclaw:respool", "messages": [{"role": "user", "content": "hi"}]}'
OPENCLAW_URL=http://127.0.0.1:$GATEWAY_PORT OPENCLAW_TOKEN=$GATEWAY_TOKEN \
  cargo test --manifest-path "$top/Cargo.toml" --test it tools_real::openclaws_gateway -- --ignored
