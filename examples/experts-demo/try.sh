#!/bin/sh
# Installs the support desk into a directory of its own, binds it to fake MCP servers, and executes one process on recorded replies. Needs no
# model and no network. RESPOOL is the program; the first argument is a directory that is kept.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
respool=${RESPOOL:-respool}
dir=${1:-$(mktemp -d)}
mkdir -p "$dir"
cat > "$dir/respool.toml" <<TOML
state_dir = "$dir/state"
[log]
level = "warn"
errors_dir = "$dir/logs"
[[upstream]]
url = "replay:$here/replies"
[experts]
dir = "$dir/experts"
workspace = "$dir/workspace"
model = "desk-model"
[tools.mcp.tickets-fake]
command = "python3"
args = ["$here/servers/fake_mcp.py", "$here/servers/tickets.json", "$dir/journal"]
[tools.mcp.status-fake]
command = "python3"
args = ["$here/servers/fake_mcp.py", "$here/servers/status.json", "$dir/journal"]
TOML
cd "$dir"
"$respool" expert --config respool.toml install "$here/../experts/support-desk"
"$respool" expert --config respool.toml bind support-desk tickets tickets-fake
"$respool" expert --config respool.toml bind support-desk status status-fake
"$respool" expert --config respool.toml validate support-desk
"$respool" expert --config respool.toml run support-desk --process answer-mail --payload "@$here/mail.json"
echo "The calls that reached the fake servers:"
cat "$dir/journal"
