#!/usr/bin/env bash
# `respool service` with a real systemd: a user manager in mount namespaces of its own, so that nothing outside sees it. Installs the
# service before the replay of `respool demo --serve`, kills it, breaks its configuration, removes it. Needs root and systemd.
# usage: run.sh RESPOOL
set -euo pipefail
[ $# -eq 1 ] && [ -x "$1" ] || { echo "usage: run.sh RESPOOL" >&2; exit 2; }
respool=$(realpath "$1")
if [ -z "${INSIDE:-}" ]; then
    if [ ! -x /lib/systemd/systemd ] || ! unshare --mount true 2>/dev/null; then
        echo "not tested: this needs systemd's files, root and namespaces" >&2
        exit 0
    fi
    work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
    INSIDE=$work timeout 180 unshare --mount --propagation private bash "$0" "$respool"
    exit
fi
ok() { printf '  ok    %s\n' "$*"; }
fail() { printf '  FAIL  %s\n' "$*" >&2; tail -20 "$INSIDE/systemd.log" >&2; exit 1; }

# systemd believes in its own boot where this directory is; the runtime directory is this namespace's alone.
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system /run/user/0; chmod 700 /run/user/0
export HOME=$INSIDE/home XDG_RUNTIME_DIR=/run/user/0 DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/0/bus
unset XDG_CONFIG_HOME XDG_STATE_HOME
mkdir -p "$HOME"
/lib/systemd/systemd --user --log-target=console > "$INSIDE/systemd.log" 2>&1 & manager=$!
"$respool" demo --serve --listen 127.0.0.1:0 > "$INSIDE/demo" 2>&1 & demo=$!
trap 'systemctl --user stop respool >/dev/null 2>&1 || true; kill $demo $manager 2>/dev/null || true; wait' EXIT
for _ in $(seq 100); do
    state=$(systemctl --user is-system-running 2>/dev/null || true)
    [[ $state == running || $state == degraded ]] && grep -q 'The recorded server:' "$INSIDE/demo" && break
    sleep 0.3
done
upstream=$(sed -n 's|.*The recorded server: *\(http://[^/]*\)/v1.*|\1|p' "$INSIDE/demo")
[ -n "$upstream" ] || fail "the recorded server did not start"
port=18903

"$respool" service install --upstream "$upstream" --listen 127.0.0.1:$port > "$INSIDE/said" 2>&1 || fail "$(cat "$INSIDE/said")"
grep -q "respool is ready. Point clients at http://127.0.0.1:$port/v1." "$INSIDE/said" || fail "$(cat "$INSIDE/said")"
[ "$(stat -c %a "$HOME/.config/respool/respool.env")" = 600 ] || fail "the environment file is readable to others"
curl -sf "http://127.0.0.1:$port/v1/models" | grep -q native-call || fail "the service does not serve"
[ "$(systemctl --user is-enabled respool)" = enabled ] || fail "the service does not start by itself"
ok "installed, started, ready (systemd $(systemctl --version | awk 'NR == 1 { print $2 }'))"
"$respool" service status | grep -q 'The service is running.' || fail "status"
ok "status"

main=$(systemctl --user show respool --property=MainPID --value)
kill -9 "$main"
for _ in $(seq 60); do curl -sf "http://127.0.0.1:$port/ready" >/dev/null && break; sleep 0.2; done
[ "$(systemctl --user show respool --property=MainPID --value)" != "$main" ] || fail "the killed process still runs"
curl -sf "http://127.0.0.1:$port/ready" > /dev/null || fail "systemd did not start it again"
ok "started again after it was killed"

"$respool" service install > "$INSIDE/said" 2>&1 || fail "a second install: $(cat "$INSIDE/said")"
grep -q "URL=$upstream" "$HOME/.config/respool/respool.env" || fail "the second install lost the environment file"
ok "a second install keeps the environment file"

echo 'lissten = "x"' > "$HOME/.config/respool/respool.toml"
! "$respool" service install > "$INSIDE/said" 2>&1 || fail "a wrong configuration was called ready"
grep -q 'the service stays as it is' "$INSIDE/said" || fail "$(cat "$INSIDE/said")"
curl -sf "http://127.0.0.1:$port/ready" > /dev/null || fail "the service was stopped"
systemctl --user restart respool || true
for _ in $(seq 60); do systemctl --user is-failed -q respool && break; sleep 0.2; done
! "$respool" service status > "$INSIDE/said" 2>&1 || fail "a wrong configuration was called ready"
grep -q 'its configuration is wrong' "$INSIDE/said" || fail "$(cat "$INSIDE/said")"
[ "$(systemctl --user show respool --property=NRestarts --value)" -le 1 ] || fail "systemd goes on trying"
ok "a wrong configuration is said, and not tried again"
rm "$HOME/.config/respool/respool.toml"; systemctl --user reset-failed respool
"$respool" service install > "$INSIDE/said" 2>&1 || fail "$(cat "$INSIDE/said")"

kill $demo; wait $demo || true
! "$respool" service status > "$INSIDE/said" 2>&1 || fail "ready without a model server"
grep -q 'its model server does not answer' "$INSIDE/said" || fail "$(cat "$INSIDE/said")"
ok "a model server that is gone is said"

"$respool" service uninstall > "$INSIDE/said" || fail "uninstall"
[ ! -e "$HOME/.config/systemd/user/respool.service" ] && ! curl -s "http://127.0.0.1:$port/health" >/dev/null || fail "it still runs"
ok "removed"

# What a package brings is no file of the user's.
mkdir -p /run/systemd/user
sed "s|%h/.local/bin/respool|$respool|" "$(dirname "$0")/../../deploy/respool.service" > /run/systemd/user/respool.service
systemctl --user daemon-reload
! "$respool" service status > "$INSIDE/said" 2>&1 || fail "a stopped unit of a package was called running"
grep -q 'A package brought the unit /run/systemd/user/respool.service' "$INSIDE/said" || fail "$(cat "$INSIDE/said")"
grep -q 'systemctl --user enable --now respool' "$INSIDE/said" || fail "$(cat "$INSIDE/said")"
systemctl --user start respool
for _ in $(seq 60); do curl -sf "http://127.0.0.1:$port/health" >/dev/null && break; sleep 0.2; done
"$respool" service status > "$INSIDE/said" 2>&1 || true
grep -q 'The service is running.' "$INSIDE/said" || fail "$(cat "$INSIDE/said")"
"$respool" service uninstall > "$INSIDE/said" && grep -q 'systemctl --user disable --now respool' "$INSIDE/said" || fail "$(cat "$INSIDE/said")"
ok "a unit that a package brought is found"
