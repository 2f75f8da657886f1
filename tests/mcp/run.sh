#!/usr/bin/env bash
# The MCP reference servers from the npm registry (filesystem and everything, 2026.8.31) as sources of respool's tools, over
# standard input and output and over streamable HTTP. Exit 0 only if every call is right.
# usage: run.sh DIR     installs the servers into DIR (outside the repository, 60 MB the first time)
set -euo pipefail
[ $# = 1 ] || { echo "usage: run.sh DIR" >&2; exit 2; }
top=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1"; dir=$(cd "$1" && pwd)
[ -e "$dir/node_modules/.bin/mcp-server-everything" ] || npm install --prefix "$dir" --no-audit --no-fund --loglevel=error \
  @modelcontextprotocol/server-filesystem@2026.8.31 @modelcontextprotocol/server-everything@2026.8.31
port=$(node -e 's = require("net").createServer().listen(0, "127.0.0.1", () => { console.log(s.address().port); s.close(); })')
PORT=$port "$dir/node_modules/.bin/mcp-server-everything" streamableHttp > "$dir/http.log" 2>&1 & server=$!
trap 'kill $server 2>/dev/null || true' EXIT
for _ in $(seq 100); do node -e "require('net').connect($port, '127.0.0.1').on('connect', () => process.exit(0)).on('error', () => process.exit(1))" && break; sleep 0.1; done
MCP_SERVERS=$dir MCP_URL=http://127.0.0.1:$port/mcp \
  cargo test --manifest-path "$top/Cargo.toml" --test it tools_real::the_reference_mcp_servers -- --ignored --nocapture
