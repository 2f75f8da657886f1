#!/usr/bin/env bash
# Alerts against real receivers: a mail server (aiosmtpd), a strict ntfy, a real Prometheus with the rules and the dashboard's queries, the
# Grafana dashboard read by Grafana's own model of it and checked against the types of its schema. About two minutes; needs the network
# once, for PyPI, npm and Debian.
set -euo pipefail
cd "$(dirname "$0")/../.."

need() { # need COMMAND DEBIAN_PACKAGE
    command -v "$1" >/dev/null 2>&1 || { apt-get update -qq && apt-get install -y -qq "$2" >/dev/null; }
}
need python3 python3
need promtool prometheus
need npm npm
python3 -c 'import ensurepip' 2>/dev/null || { apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null; }

promtool check rules deploy/prometheus/*.yml
promtool test rules tests/alerts/rules.test.yml

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check 'aiosmtpd>=1.4,<2' grafana-foundation-sdk
"$work/venv/bin/python" tests/alerts/dashboard.py deploy/grafana/respool.json
# TypeScript is strict about a literal: a field that the schema does not have is an error.
(cd "$work" && npm init -y >/dev/null && npm install --silent --no-audit --no-fund @grafana/schema@13 typescript@5 >/dev/null)
{
    printf 'import type { Dashboard } from "@grafana/schema";\nexport const dashboard: Dashboard = '
    cat deploy/grafana/respool.json
} > "$work/dashboard.ts"
(cd "$work" && npx tsc --noEmit --strict --skipLibCheck --module nodenext --moduleResolution nodenext --target es2022 dashboard.ts)

[ -n "${RESPOOL:-}" ] || { cargo build --quiet --locked; RESPOOL="${CARGO_TARGET_DIR:-target}/debug/respool"; }
RESPOOL="$(realpath "$RESPOOL")" "$work/venv/bin/python" tests/alerts/sinks.py "$work"
RESPOOL="$(realpath "$RESPOOL")" "$work/venv/bin/python" tests/alerts/prometheus.py "$work"
