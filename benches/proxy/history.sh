#!/bin/sh
# Counts the instructions that a request costs at each of several commits: in which of them did it become dearer?
# Usage: history.sh COMMIT…|PEER… [--build-only], where a peer is hyper, or hyper with a feature: hyper-read, hyper-json, hyper-log, hyper-row
# Needs valgrind. BENCH_GATE (default: target/gate) names the folder that keeps the builds, which gate.sh uses too.
set -eu
kit=$(cd "$(dirname "$0")" && pwd)
directory=${BENCH_GATE:-$kit/../../target/gate}

case " $* " in *" hyper-row "* | *" hyper-all "*) export BENCH_FEATURES=row ;; esac
"$kit/setup.sh" "$directory" --tools
export PYTHONPATH="$kit" PYTHONDONTWRITEBYTECODE=1
exec python3 -m proxybench.history --directory "$directory" "$@"
