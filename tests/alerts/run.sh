#!/usr/bin/env bash
# Alerts against real receivers: a mail server (aiosmtpd), a strict ntfy, Prometheus's own check of the rules, the Grafana dashboard
# read by Grafana's own model of it. About a minute; needs the network once, for PyPI and Debian.
set -euo pipefail
cd "$(dirname "$0")/../.."

need() { # need COMMAND DEBIAN_PACKAGE
    command -v "$1" >/dev/null 2>&1 || { apt-get update -qq && apt-get install -y -qq "$2" >/dev/null; }
}
need python3 python3
need promtool prometheus
python3 -c 'import ensurepip' 2>/dev/null || { apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null; }

promtool check rules deploy/prometheus/*.yml

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check 'aiosmtpd>=1.4,<2' grafana-foundation-sdk
"$work/venv/bin/python" tests/alerts/dashboard.py deploy/grafana/respool.json

[ -n "${RESPOOL:-}" ] || { cargo build --quiet --locked; RESPOOL="${CARGO_TARGET_DIR:-target}/debug/respool"; }
RESPOOL="$(realpath "$RESPOOL")" "$work/venv/bin/python" tests/alerts/sinks.py "$work"
