#!/usr/bin/env bash
# `respool setup openclaw` with the real OpenClaw, both versions, on a fresh and on a grown configuration. The current one validates what
# was written; then each version answers a turn through respool, before the replay of `respool demo --serve`.
# usage: setup.sh DIR RESPOOL      DIR as for run.sh
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# -eq 2 ] && [ -x "$2" ] || { echo "usage: setup.sh DIR RESPOOL" >&2; exit 2; }
mkdir -p "$1"; dir=$(cd "$1" && pwd) respool=$(realpath "$2")
work=$(mktemp -d); children=()
trap 'for child in ${children[@]+"${children[@]}"}; do kill "$child" 2>/dev/null || true; done; wait; rm -rf "$work"' EXIT
ok() { printf '  ok    %s\n' "$*"; }
fail() { printf '  FAIL  %s\n' "$*" >&2; exit 1; }

"$respool" demo --serve --listen 127.0.0.1:0 > "$work/demo" 2>&1 & children+=($!)
for _ in $(seq 100); do grep -q 'The recorded server:' "$work/demo" && break; sleep 0.3; done
upstream=$(sed -n 's|.*The recorded server: *\(http://[^/]*\)/v1.*|\1|p' "$work/demo")
[ -n "$upstream" ] || fail "the recorded server did not start"
url=http://127.0.0.1:18913
(cd "$work" && HOME=$work exec "$respool" serve --listen 127.0.0.1:18913 --upstream "$upstream" > "$work/serve.log" 2>&1) & children+=($!)
for _ in $(seq 50); do curl -sf $url/ready >/dev/null && break; sleep 0.2; done

for version in 2026.9.6 2026.2.26; do
    "$here/kit/setup.sh" "$dir" "$version" >/dev/null
    mkdir -p "$work/$version/bin"
    printf '#!/bin/sh\nOC_VERSION=%s exec "%s" "%s" "$@"\n' "$version" "$here/kit/openclaw.sh" "$dir" > "$work/$version/bin/openclaw"
    chmod +x "$work/$version/bin/openclaw"
    for config in fresh grown; do
        state=$work/$version/$config; mkdir -p "$state"
        if [ $config = grown ]; then
            cat > "$state/openclaw.json" <<JSON
// my assistant
{
  models: { providers: {
    // the box under the desk
    box: { baseUrl: '$upstream/v1', apiKey: 'sk-mine', api: 'openai-completions',
      models: [ { id: 'slow-model', name: "slow", contextWindow: 200000, }, ], },
  } },
  agents: { defaults: {
    model: { primary: 'box/slow-model', fallbacks: ["box/native-call"] }, /* both on the box */
    heartbeat: { every: "0m" }, skipBootstrap: true,
  } },
  update: { checkOnStart: false, },
}
JSON
            mkdir -p "$state/agents/main/agent"; echo '{"providers":{}}' > "$state/agents/main/agent/models.json"
        fi
        cp "$state/openclaw.json" "$work/before" 2>/dev/null || : > "$work/before"
        run() { HOME=$work/home OPENCLAW_STATE_DIR=$state PATH=$work/$version/bin:$PATH "$respool" setup openclaw --yes --url $url --upstream "$upstream" --model slow-model "$@"; }
        run > "$work/said" 2>&1 || fail "$version, $config: $(cat "$work/said")"
        grep -q 'respool answers with slow-model.' "$work/said" || fail "$version, $config: $(cat "$work/said")"
        if [ $version = 2026.9.6 ]; then
            grep -q 'OpenClaw 2026.9.6 accepts the new file' "$work/said" || fail "not validated: $(cat "$work/said")"
        fi
        [ $config = fresh ] || grep -q 'the box under the desk' "$state/openclaw.json" || fail "the comments are gone"
        [ ! -e "$state/agents/main/agent/models.json" ] || fail "the old copy of the providers is still there"
        provider=respool; [ $config = fresh ] || provider=box
        ok "$version, $config: written, validated where that is possible, and tried"
        if [ $version = 2026.9.6 ]; then
            said=$(OC_VERSION=$version OPENCLAW_STATE_DIR=$work/exec-$config "$here/kit/openclaw.sh" "$dir" agent exec 'Say hello' \
                --config "$state/openclaw.json" --model $provider/slow-model --json --timeout 60 2>/dev/null) || true
        else
            said=$(OC_VERSION=$version OPENCLAW_STATE_DIR=$state OPENCLAW_CONFIG_PATH=$state/openclaw.json "$here/kit/openclaw.sh" "$dir" \
                agent --local --agent main --message 'Say hello' --json 2>/dev/null) || true
        fi
        grep -q 'Hello!' <<< "$said" || fail "$version, $config: the turn says: ${said:0:600}"
        ok "$version, $config: a real turn is answered through respool"
        run --undo > "$work/said" 2>&1 || fail "undo: $(cat "$work/said")"
        if [ -s "$work/before" ]; then cmp -s "$work/before" "$state/openclaw.json"; else [ ! -e "$state/openclaw.json" ]; fi ||
            fail "$version, $config: not as it was"
        ok "$version, $config: restored"
    done
done
