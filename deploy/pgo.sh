#!/usr/bin/env bash
# Records what requests run, so that `PGO_PROFILE=FILE deploy/dist.sh` can optimise the shipped binary for it (about 15 minutes).
# usage: pgo.sh FILE
#   TARGET, PROFILE   as for dist.sh: the record fits only a build for the same target with the same cargo profile
# The load is that of benches/proxy, whose tools it builds; rustup brings llvm-profdata.
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: pgo.sh FILE" >&2; exit 2; }
record=$(realpath -m "$1")
cd "$(dirname "$0")/.."
target=${TARGET:-x86_64-unknown-linux-musl} profile=${PROFILE:-dist}
directory=${CARGO_TARGET_DIR:-target}/pgo
mkdir -p "$directory" "$(dirname "$record")"; directory=$(cd "$directory" && pwd)

rustup target list --installed | grep -qx "$target" || rustup target add "$target"
merge=$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin/llvm-profdata
[ -x "$merge" ] || rustup component add llvm-tools

RUSTFLAGS="${RUSTFLAGS:-} -C profile-generate=$directory/raw" CARGO_TARGET_DIR="$directory/build" \
    cargo build --locked --profile "$profile" --target "$target" --bin respool
rm -rf "$directory/raw"
benches/proxy/run.sh "$directory/bench" --bin "$directory/build/$target/$profile/respool" --rounds 1 --peers direct,respool \
    --tests small_c1,small_c32,stream_c1,stream_c16,stream_d10_c32,tools,leak
"$merge" merge --output "$record" "$directory"/raw/*.profraw
ls -l "$record"
