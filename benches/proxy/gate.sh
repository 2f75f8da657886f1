#!/bin/sh
# Compares what a request costs with an earlier commit; ends with 1 when a test needs 3 % more instructions, with 2 without a result.
# Usage: gate.sh BASE [--new COMMIT] [--rounds N] [--no-time] [--cores LOAD,PROXY]
# Needs valgrind. BENCH_GATE (default: target/gate) names the folder that keeps the builds: a second run compiles only what changed.
# README.md explains it.
set -eu
kit=$(cd "$(dirname "$0")" && pwd)
directory=${BENCH_GATE:-$kit/../../target/gate}

"$kit/setup.sh" "$directory" --tools
export PYTHONPATH="$kit" PYTHONDONTWRITEBYTECODE=1
exec python3 -m proxybench.gate --directory "$directory" "$@"
