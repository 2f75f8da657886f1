#!/bin/sh
# Sets up what is missing, builds respool and measures it beside a direct connection, nginx and a bare hyper proxy.
# Usage: run.sh [DIR] [--bin PATH] [--rounds N] [--tests a,b] [--peers a,b] [--cores LOAD,PROXY]
#   DIR (default: ~/.cache/respool-bench) gets the tools and the results; --bin names a binary that is already built.
# README.md explains the tests and the tables.
set -eu
kit=$(cd "$(dirname "$0")" && pwd)
case "${1:-}" in
    "" | -*) directory=${XDG_CACHE_HOME:-$HOME/.cache}/respool-bench ;;
    *) directory=$1; shift ;;
esac

"$kit/setup.sh" "$directory"
case " $* " in
    *" --bin"*) ;;
    *)
        cargo build --release --manifest-path "$kit/../../Cargo.toml"
        set -- --bin "${CARGO_TARGET_DIR:-$kit/../../target}/release/respool" "$@"
        ;;
esac
export PYTHONPATH="$kit" PYTHONDONTWRITEBYTECODE=1
# Python takes the place of this shell, so a signal sent to it reaches the code that stops every process by its PID.
exec python3 -m proxybench "$directory" "$@"
