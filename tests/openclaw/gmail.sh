#!/usr/bin/env bash
# The gmail hook of a REAL OpenClaw gateway, pointed at respool: OpenClaw starts its mail watcher with respool's hook and secret, and what the
# watcher sends becomes one event per letter. Google is not asked: the watcher (gog) is a script that sends what gog sends.
# usage: gmail.sh DIR     installs what is missing into DIR (outside the repository)      GATEWAY_PORT=18840   RESPOOL=PATH a binary
set -euo pipefail
[ $# = 1 ] || { echo "usage: gmail.sh DIR" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd) top=$(cd "$(dirname "$0")/../.." && pwd)
export OC_VERSION=${OC_VERSION:-2026.9.6} GATEWAY_PORT=${GATEWAY_PORT:-18840} GATEWAY_TOKEN=respool-e2e
mkdir -p "$1"; dir=$(cd "$1" && pwd)
"$here/kit/setup.sh" "$dir" "$OC_VERSION"
mkdir -p "$dir/tmp"; run=$(mktemp -d "$dir/tmp/gmail.XXXXXX"); mkdir -p "$run/bin" "$run/main" "$run/experts/desk"
export OPENCLAW_STATE_DIR=$run/state HOOK_SECRET=a-secret-of-the-hook-0123456789 served=
fail() { echo "gmail.sh: $*" >&2; exit 1; }
finish() {
  "$here/kit/gateway.sh" "$dir" stop || true
  [ -z "$served" ] || kill "$served" 2>/dev/null || true
  echo "logs: $run $dir/gateway/gateway.log"
}
trap finish EXIT
respool=${RESPOOL:-$top/target/debug/respool}
[ -n "${RESPOOL:-}" ] || cargo build --manifest-path "$top/Cargo.toml"

# The watcher: notes how it was called, and sends two letters, of which one comes twice.
printf '#!/usr/bin/env bash\nnotes=%q\n' "$run/gog" > "$run/bin/gog"
cat >> "$run/bin/gog" <<'GOG'
printf '%s\n' "$@" > "$notes.$3"
[ "$3" = serve ] || exit 0
while [ $# -gt 0 ]; do case $1 in --hook-url) url=$2 ;; --hook-token) token=$2 ;; esac; shift; done
letter() { printf '{"id":"%s","threadId":"t1","from":"Sarah <Sarah@Acme.com>","subject":"Price","snippet":"","body":"Hello"}' "$1"; }
for push in "$(letter m1),$(letter m2)" "$(letter m2)"; do
  curl -s -m 20 -w '\n' "$url" -H "authorization: Bearer $token" -H 'content-type: application/json' \
    -d "{\"source\":\"gmail\",\"account\":\"me@example.org\",\"messages\":[$push]}" >> "$notes.answers"
done
sleep 600
GOG
chmod +x "$run/bin/gog"

cat > "$run/experts/desk/expert.yaml" <<'YAML'
spec: "1.0"
name: desk
version: "1.0.0"
description: Answers mail
components: {orchestrator: o.md, persona: [o.md], functions: [f.md], processes: [p.md]}
triggers:
  - {name: new_mail, type: webhook, preset: gmail, process: triage, dedupe_key: message_id, concurrency: serial_per_key, concurrency_key: contact_id}
YAML
echo "Go." > "$run/experts/desk/o.md"
printf -- '---\nname: f\ndescription: d\n---\nDo.\n' > "$run/experts/desk/f.md"
printf -- '---\nname: triage\ndescription: d\n---\nDo.\n' > "$run/experts/desk/p.md"
cat > "$run/respool.toml" <<TOML
listen = "127.0.0.1:0"
state_dir = "$run/respool"
client_keys = ["sk-0123456789abcdef"]
[experts]
dir = "$run/experts"
workspace = "$run/main"
[experts.desk]
hook_secret_env = { new_mail = "HOOK_SECRET" }
[[upstream]]
url = "http://127.0.0.1:9"
TOML
RESPOOL__LOG__FORMAT=json "$respool" serve --config "$run/respool.toml" > "$run/respool.log" 2>&1 & served=$!
for _ in $(seq 100); do
  address=$(sed -n 's/.*"listen":"\([^"]*\)".*/\1/p' "$run/respool.log" | head -n 1)
  [ -z "$address" ] || break; sleep 0.1
done
[ -n "$address" ] || fail "respool did not start: $(cat "$run/respool.log")"

cat > "$run/openclaw.json" <<JSON
{ "models": { "mode": "replace", "providers": { "none": { "baseUrl": "http://127.0.0.1:9/v1", "apiKey": "x",
    "api": "openai-completions", "models": [{ "id": "none", "name": "none" }] } } },
  "agents": { "defaults": { "model": { "primary": "none/none" }, "heartbeat": { "every": "0m" }, "skipBootstrap": true },
    "list": [ { "id": "main", "default": true, "workspace": "$run/main" } ] },
  "hooks": { "enabled": true, "token": "$HOOK_SECRET", "path": "/hooks",
    "gmail": { "account": "me@example.org", "topic": "projects/p/topics/t", "pushToken": "push-0123456789",
      "hookUrl": "http://$address/hooks/desk/new_mail" } },
  "plugins": { "entries": { "memory-core": { "config": { "dreaming": { "enabled": false } } } } },
  "logging": { "file": "$run/openclaw.log" }, "update": { "checkOnStart": false } }
JSON
export PATH=$run/bin:$PATH
"$here/kit/gateway.sh" "$dir" start "$run/openclaw.json"
for _ in $(seq 300); do [ "$(grep -c . "$run/gog.answers" 2>/dev/null || true)" = 2 ] && break; sleep 0.2; done
grep -qx "http://$address/hooks/desk/new_mail" "$run/gog.serve" || fail "OpenClaw did not start the watcher with the hook: $(cat "$run"/gog.* 2>&1)"
statuses=$(grep -o '"status":"[a-z]*"' "$run/gog.answers" | tr '\n' ' ')
[ "$statuses" = '"status":"accepted" "status":"accepted" "status":"duplicate" ' ] || fail "unexpected answers: $(cat "$run/gog.answers")"
grep -q '^## desk$' "$run/main/EXPERTS.md" || fail "EXPERTS.md is not in the main agent's workspace"
echo "ok: OpenClaw $OC_VERSION started its mail watcher with respool's hook; two letters were queued, one repeat was known"
