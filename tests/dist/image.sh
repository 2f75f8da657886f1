#!/usr/bin/env bash
# Makes an image from a static binary and nothing else, as deploy/Containerfile does after its build, and starts it.
# usage: image.sh BINARY WORK
set -euo pipefail
binary=$1 work=$2
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
store=(--root "$work/containers" --runroot "$work/containers-run")
b() { buildah "${store[@]}" "$@"; }
container=$(b from scratch)
trap 'b rm "$container" >/dev/null 2>&1 || true' EXIT
b copy -q "$container" "$binary" /respool
mkdir -p "$work/empty"
for folder in /state /tmp; do b copy -q --chown 65532:65532 "$container" "$work/empty" "$folder"; done
b config --user 65532:65532 --workingdir /state --env RESPOOL__STATE_DIR=/state --env RESPOOL__LISTEN=0.0.0.0:8003 \
    --stop-signal SIGTERM --entrypoint '["/respool"]' --cmd serve "$container"
b commit -q "$container" respool:test >/dev/null
started=$(b from respool:test)
b run "$started" -- /respool --version | head -1 | grep -q '^respool '
b run "$started" -- /respool demo | grep -q 'the meeting is at nine'
b rm "$started" >/dev/null
