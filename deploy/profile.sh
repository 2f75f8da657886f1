#!/usr/bin/env bash
# Writes a profile of respool at work to FILE, for a faster program: `PROFILE_DATA=FILE deploy/dist.sh`. It builds a program that
# counts, and relays short and long replies, streams and tool calls through it for half a minute.
# usage: profile.sh FILE
#   TARGET=x86_64-unknown-linux-musl   as for dist.sh; a profile fits this target alone, and this machine must be able to run it
# Needs Python 3 and `rustup component add llvm-tools`.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# = 1 ] || { echo "usage: profile.sh FILE" >&2; exit 2; }
file=$(realpath -m "$1") target=${TARGET:-x86_64-unknown-linux-musl}
merge=$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin/llvm-profdata
[ -x "$merge" ] || rustup component add llvm-tools
work=$PWD/target/profile counts=$(mktemp -d)
mkdir -p "$work" "$(dirname "$file")"
trap 'rm -rf "$counts"' EXIT

CARGO_TARGET_DIR=$work RUSTFLAGS="${RUSTFLAGS:-} -Cprofile-generate=$counts" \
    cargo build --locked --profile dist --target "$target" --bin respool
benches/proxy/setup.sh "$work/bench" --tools
LLVM_PROFILE_FILE=$counts/%p-%m.profraw PYTHONPATH=benches/proxy PYTHONDONTWRITEBYTECODE=1 \
    python3 -m proxybench "$work/bench" --bin "$work/$target/dist/respool" --rounds 1 --peers respool \
    --tests small,big,stream_c1,stream_c16,tools,leak
"$merge" merge --output "$file" "$counts"
