#!/usr/bin/env bash
# The page in a real headless Chromium: clicks through it on empty and on full data (10,000 rows), narrow and wide, and fails on any error
# of the console, anything loaded from elsewhere, anything wider than the screen, and what axe finds against WCAG AA. Screenshots go to the folder named as argument.
set -euo pipefail
cd "$(dirname "$0")/../.."

need() { # need COMMAND DEBIAN_PACKAGE
    command -v "$1" >/dev/null 2>&1 || { apt-get update -qq && apt-get install -y -qq "$2" >/dev/null; }
}
need chromium chromium
need node nodejs
need npm npm
need python3 python3

shots="${1:-}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cargo build --quiet --locked
binary="${CARGO_TARGET_DIR:-target}/debug/respool"
(cd "$work" && npm init -y >/dev/null && npm install --silent --no-audit --no-fund playwright-core@1 axe-core@4 >/dev/null)
cp tests/page/click_through.mjs tests/page/fill.py "$work/"
RESPOOL="$(realpath "$binary")" EXPERT="$PWD/examples/experts/support-desk" SHOTS="$shots" node "$work/click_through.mjs" "$work"
