#!/usr/bin/env bash
# Checks openclaw.example.json with the real `openclaw config validate`. Installs OpenClaw into DIR when it is missing.
# usage: check-example.sh DIR [FILE]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 1 ] && [ $# -le 2 ] || { echo "usage: check-example.sh DIR [FILE]" >&2; exit 2; }
unset OC_VERSION  # only the current client can validate
"$here/kit/setup.sh" "$1" > /dev/null
"$here/kit/validate.sh" "$1" "${2:-$here/../../openclaw.example.json}"
