#!/usr/bin/env bash
# Puts respool before a REAL vLLM (0.32.0 on CPU, or VERSION=0.33.0; tiny models that say what they are told to) and
# checks what comes out, of respool as a relay and of its agents.
# usage: run.sh DIR [qwen|gptoss]      DIR, outside the repository, gets vLLM: 6 GB, once; exit 0 only if all checks pass
#   RESPOOL=PATH a binary in place of a build   PART=relay|agents one part   ONLY=REGEX some of its checks   READY_S=600 bounds the wait for a server
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) top=$(cd "$(dirname "$0")/../.." && pwd)
[ $# -ge 1 ] && [ $# -le 2 ] || { echo "usage: run.sh DIR [qwen|gptoss]" >&2; exit 2; }
export PYTHONDONTWRITEBYTECODE=1
# The key that vLLM asks for; one respool knows it, the other does not.
key=sk-e2e-vllm
# Small enough for an overflow that costs little, large enough for an agent's prompt.
context=8192

"$here/kit/setup.sh" "$1"
dir=$(cd "$1" && pwd) models=${2:-qwen gptoss} parts=${PART:-relay agents} failed=0 children=()
respool=${RESPOOL:-$top/target/release/respool}
[ -n "${RESPOOL:-}" ] || cargo build --release --manifest-path "$top/Cargo.toml"
run=$(mktemp -d "$dir/run.XXXXXX")

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
stop() {
  for pid in ${children[@]+"${children[@]}"}; do kill "$pid" 2>/dev/null || true; done
  for pid in ${children[@]+"${children[@]}"}; do
    for _ in $(seq 80); do kill -0 "$pid" 2>/dev/null || break; sleep 0.25; done
    kill -9 "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  children=()
}
trap 'stop; echo "logs: $run"' EXIT
trap 'exit 1' INT TERM

# await URL PID NAME SECONDS
await() {
  local began=$SECONDS
  until curl -sf -m 2 -o /dev/null "$1"; do
    if ! kill -0 "$2" 2>/dev/null || [ $((SECONDS - began)) -gt "$4" ]; then
      tail -n 20 "$run/$3.log" >&2; echo "run.sh: $3 did not become ready" >&2; exit 1
    fi
    sleep 0.5
  done
}
start_vllm() { # MODEL: its address lands in `vllm`
  local port; port=$(free_port); vllm=http://127.0.0.1:$port
  "$here/kit/serve.sh" "$dir" "$1" "$port" --max-model-len "$context" --api-key "$key" > "$run/$1.log" 2>&1 & children+=($!)
  await "$vllm/health" $! "$1" "${READY_S:-600}"
}
start_respool() { # NAME [VARIABLE=VALUE...]: its address lands in `base`
  local port name=$1; port=$(free_port); base=http://127.0.0.1:$port; shift
  (cd "$run" && exec env RESPOOL__LOG__FORMAT=json RESPOOL__UPSTREAM__0__URL="$vllm" "$@" "$respool" serve --listen "127.0.0.1:$port") > "$run/$name.log" 2>&1 & children+=($!)
  await "$base/health" $! "$name" 10
}

for model in $models; do
  began=$SECONDS
  start_vllm "$model"
  # A script is for one reply: a second attempt with more tokens would go on where it ends, at random.
  start_respool "respool-$model" RESPOOL__UPSTREAM__0__API_KEY="$key" RESPOOL__RECOVERY__ATTEMPTS=0; relay=$base
  start_respool "respool-$model-no-key"; stranger=$base
  echo "$model: vLLM and respool ready after $((SECONDS - began)) s"
  for part in $parts; do
    case $part in
      relay) python3 "$here/checks.py" "$dir" "$model" "$vllm" "$relay" "$stranger" || failed=1 ;;
      agents) python3 "$here/agents.py" "$dir" "$model" "$vllm" "$key" "$respool" "$run" || failed=1 ;;
    esac
  done
  stop
done
exit $failed
