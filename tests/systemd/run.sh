#!/usr/bin/env bash
# Starts the unit of deploy/ under a real systemd and has an agent run commands in it: the sandbox has to work within the unit's
# own limits, and the unit has to start, stop and give up as it says. See README.md.
#
# A manager for one user (`systemd --user`) runs in namespaces of its own, with a /run and a cgroup tree of its own, so nothing of
# the machine's own systemd is touched, and none needs to run. Needs root, for these namespaces.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

if [ "${1:-}" != inside ]; then
    respool=${RESPOOL:-}
    if [ -z "$respool" ]; then
        cargo build --quiet --locked --manifest-path "$root/Cargo.toml"
        respool=${CARGO_TARGET_DIR:-$root/target}/debug/respool
    fi
    if [ ! -x /lib/systemd/systemd ] || ! unshare -m -p -C -f --mount-proc true 2>/dev/null; then
        echo "not tested: this needs systemd's files, root and namespaces" >&2
        exit 0
    fi
    unshare -m -p -C -f --mount-proc "$here/run.sh" inside "$(realpath "$respool")"
    exit
fi

# Not below /tmp, which commands have for themselves.
respool=$2 dir=/mnt
mount -t tmpfs tmpfs /mnt
fail() { echo "FAILED: $*" >&2; tail -n 20 "$dir"/*.log >&2 || true; exit 1; }
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
# The manager, and all that it starts, belong to somebody who is nobody else.
user=54321
mkdir -p /run/systemd/system "/run/user/$user" /sys/fs/cgroup/respool-test
chmod 700 "/run/user/$user"
export XDG_RUNTIME_DIR=/run/user/$user HOME=$dir/home
unset DBUS_SESSION_BUS_ADDRESS
# Everything here ends with this shell, but the cgroups would stay.
end() {
    status=$?
    echo 1 > /sys/fs/cgroup/respool-test/cgroup.kill
    sleep 0.3
    find /sys/fs/cgroup/respool-test -depth -type d -exec rmdir {} +
    exit "$status"
}
trap end EXIT
as_user() { setpriv --reuid="$user" --regid="$user" --clear-groups "$@"; }

python3 "$here/upstream.py" "$dir/port" "$dir/seen.log" &
for _ in $(seq 100); do [ -s "$dir/port" ] && break; sleep 0.1; done

# As deploy/README.md says.
install -D "$respool" "$HOME/.local/bin/respool"
install -D -m 644 "$root/deploy/respool.service" "$HOME/.config/systemd/user/respool.service"
mkdir -p "$HOME/work"
git -C "$HOME/work" init -q
git -C "$HOME/work" config user.name a
git -C "$HOME/work" config user.email b@c
cat > "$HOME/.config/respool.toml" <<TOML
listen = "127.0.0.1:0"
[log]
file = "$dir/respool.log"
[tools]
local = { workspace = "$HOME/work", sandbox = "require", network = true }
policy.default = "allow"
[agents.helper]
model = "scripted"
tools = ["exec"]
max_iterations = 30
[[upstream]]
url = "http://127.0.0.1:$(cat "$dir/port")"
TOML
install -D -m 600 "$HOME/.config/respool.toml" "$HOME/.config/respool/respool.toml"

# What is wrong with the unit itself, or not known to this systemd.
systemd-analyze verify --user "$HOME/.config/systemd/user/respool.service" || fail "systemd finds fault with the unit"

chown -R "$user:$user" "$dir" "/run/user/$user" /sys/fs/cgroup/respool-test
if command -v dbus-daemon > /dev/null; then
    # The bus wants to know its user.
    cp /etc/passwd "$dir/passwd"
    echo "respool-test:x:$user:$user::$HOME:/bin/sh" >> "$dir/passwd"
    mount --bind "$dir/passwd" /etc/passwd
    as_user dbus-daemon --session --address="unix:path=$XDG_RUNTIME_DIR/bus" --nofork --nopidfile > "$dir/bus.log" 2>&1 &
    for _ in $(seq 100); do [ -S "$XDG_RUNTIME_DIR/bus" ] && break; sleep 0.1; done
fi
(
    echo "$BASHPID" > /sys/fs/cgroup/respool-test/cgroup.procs
    exec setpriv --reuid="$user" --regid="$user" --clear-groups /lib/systemd/systemd --user --log-target=console
) > "$dir/systemd.log" 2>&1 &
for _ in $(seq 100); do [ -S "$XDG_RUNTIME_DIR/systemd/private" ] && break; sleep 0.1; done
unit() { as_user systemctl --user --no-pager "$@"; }
property() { unit show respool --property "$1" --value; }

# What commands have under the unit's rules; systemd-run needs a bus.
if command -v dbus-daemon > /dev/null; then
    as_user "$HOME/.local/bin/respool" service check > "$dir/check.log" 2>&1 || true
    grep -q 'ok    sandbox of commands: bubblewrap, Landlock and seccomp; with a network' "$dir/check.log" || fail "no full sandbox"
    if grep -q 'services on this machine' "$dir/check.log"; then fail "no network of the commands' own"; fi
fi

unit start respool || fail "the unit did not start"
[ "$(property ActiveState)" = active ] || fail "the unit is $(property ActiveState)"
pid=$(property MainPID)
for _ in $(seq 100); do
    port=$(python3 "$here/port.py" "$pid") && break || sleep 0.1
done
[ -n "${port:-}" ] || fail "respool does not listen"
grep -q '^NoNewPrivs:[[:space:]]*1' "/proc/$pid/status" || fail "new privileges are permitted"
grep -q '^Seccomp:[[:space:]]*2' "/proc/$pid/status" || fail "no system calls are filtered"

# The scripted model calls `exec` once for each line of script.json; the results stand in seen.log.
curl -sf "http://127.0.0.1:$port/v1/chat/completions" -H 'content-type: application/json' \
    -d '{"model": "helper", "messages": [{"role": "user", "content": "Go on."}]}' > "$dir/answer" || fail "no answer: $(cat "$dir/answer")"
python3 "$here/verdict.py" "$dir/seen.log" || fail "the sandbox does not hold, or does not work, within the unit"

began=$(date +%s)
unit stop respool
[ "$(property Result)" = success ] || fail "it did not stop in peace: $(property Result)"
[ $(($(date +%s) - began)) -lt 10 ] || fail "stopping took too long"

# A wrong configuration is not tried again.
echo 'nonsense = 1' >> "$HOME/.config/respool/respool.toml"
unit start respool || true
for _ in $(seq 50); do [ "$(property ActiveState)" = failed ] && break; sleep 0.1; done
[ "$(property ExecMainStatus)" = 78 ] || fail "it ended with $(property ExecMainStatus)"
sleep 1.5
[ "$(property NRestarts)" = 0 ] || fail "it was started again"
echo "the unit holds"
