#!/usr/bin/env bash
# The official SDKs of OpenAI and Anthropic (Python and JavaScript) read what respool writes, with their own accumulators. Exit 0 if all is right.
# usage: run.sh [DIR]      DIR (default: ~/.cache/respool-sdk) gets the SDKs; RESPOOL=PATH names a binary that is already built
# Needs bash, Python 3.9 or later, Node 20 or later with npm, and the public registries the first time.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) top=$(cd "$(dirname "$0")/../.." && pwd)
[ $# -le 1 ] || { echo "usage: run.sh [DIR]" >&2; exit 2; }
dir=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/respool-sdk}
mkdir -p "$dir"; dir=$(cd "$dir" && pwd)

install_sdks() {
  local wanted; wanted=$(cat "$here/requirements.txt" "$here/package.json" | cksum)
  [ "$(cat "$dir/.installed" 2>/dev/null)" != "$wanted" ] || return 0
  python3 -m venv "$dir/venv"
  "$dir/venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
  cp "$here/package.json" "$dir/"
  npm install --prefix "$dir" --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error
  echo "$wanted" > "$dir/.installed"
}

run=$(mktemp -d); children=()
trap '[ ${#children[@]} = 0 ] || kill "${children[@]}" 2>/dev/null || true; rm -rf "$run"' EXIT
trap 'exit 1' INT TERM

# first_line FILE: waits for it
first_line() { for _ in $(seq 100); do [ ! -s "$1" ] || { head -n 1 "$1"; return; }; sleep 0.1; done; echo "run.sh: nothing in $1" >&2; exit 1; }
free_port() { node -e 's = require("net").createServer().listen(0, "127.0.0.1", () => { console.log(s.address().port); s.close(); })'; }

# An agent of whose tools `read` is its own; `stat` is the client's.
configure() {
  mkdir "$run/workspace"; printf 'hello from a.txt' > "$run/workspace/a.txt"
  cat > "$run/respool.toml" <<'TOML'
state_dir = "state"
[agents.helper]
model = "gpt-oss-120b"
tools = ["read"]
[tools.local]
workspace = "workspace"
[[tools.policy.rule]]
tool = "read"
then = "allow"
TOML
}

start_respool() {
  local port; port=$(free_port)
  # Short waits, so that heartbeats and errors after the head are seen in a fast test.
  (cd "$run" && RESPOOL_CONFIG=respool.toml RESPOOL__LIMITS__COMMIT_AFTER=300ms RESPOOL__LIMITS__HEARTBEAT=200ms \
    exec "$respool" serve --listen "127.0.0.1:$port" --upstream "${upstream%/v1}") > "$run/respool.log" 2>&1 & children+=($!)
  export BASE_URL=http://127.0.0.1:$port/v1
  for _ in $(seq 100); do curl -sf -m 2 -o /dev/null "http://127.0.0.1:$port/health" && return; sleep 0.1; done
  cat "$run/respool.log" >&2; echo "run.sh: respool did not start" >&2; exit 1
}

install_sdks
respool=${RESPOOL:-$top/target/debug/respool}
[ -n "${RESPOOL:-}" ] || cargo build --quiet --manifest-path "$top/Cargo.toml"
node "$here/../openclaw/scripted-upstream.mjs" > "$run/upstream.log" 2>&1 & children+=($!)
upstream=$(first_line "$run/upstream.log")
configure
start_respool

failed=0
for tests in sdk agent_apis; do
  "$dir/venv/bin/python" "$here/$tests.py" || failed=1
  cp "$here/$tests.mjs" "$dir/"  # so that it finds its node_modules
  node "$dir/$tests.mjs" || failed=1
done
[ $failed = 0 ] || { echo "--- upstream" >&2; tail -n 20 "$run/upstream.log" >&2; echo "--- respool" >&2; tail -n 20 "$run/respool.log" >&2; }
exit $failed
