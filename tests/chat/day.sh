#!/usr/bin/env bash
# Counts how often `respool chat` asks in a day's work: clone, look, edit, test and commit, twice, in a Rust, a Python (with an
# activated venv) and a Node project, with cold and then warm caches. Every question is answered with "always" where that is
# offered, else with "yes". Prints a table; fails when the work is not done. See README.md.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
respool=${RESPOOL:-${CARGO_TARGET_DIR:-$root/target}/debug/respool}

# Not below /tmp, which commands have for themselves.
dir=$(mktemp -d "${DAY_PARENT:-$HOME}/respool-day-XXXXXX")
export HOME=$dir/home CARGO_HOME=$dir/home/.cargo RUSTUP_HOME=${RUSTUP_HOME:-$HOME/.rustup} PIP_CACHE_DIR=
export GIT_CONFIG_NOSYSTEM=1
unset PIP_CACHE_DIR
tmux() { command tmux -S "$dir/tmux" -f /dev/null "$@"; }
model= origin=
end() {
    status=$?
    [ "$status" = 0 ] || tmux capture-pane -p -S - -t day >&2 || true
    tmux kill-server 2>/dev/null || true
    kill $model $origin 2>/dev/null || true
    rm -rf "$dir"
    exit "$status"
}
trap end EXIT

mkdir -p "$HOME" "$dir/origin" "$dir/src"
git config --global user.name t
git config --global user.email t@example.org
git config --global init.defaultBranch main

# project NAME: makes the repository that is cloned, from the files in the current directory.
project() {
    git init -q && git add -A && git commit -qm first
    git clone -q --bare . "$dir/origin/$1.git"
    git -C "$dir/origin/$1.git" update-server-info
}
mkdir "$dir/rust" && cd "$dir/rust"
cargo init -q --lib --name total --vcs none
echo 'itoa = "1"' >> Cargo.toml
printf 'target\n' > .gitignore
cat > src/lib.rs <<'RS'
pub fn total(prices: &[u32]) -> String {
    itoa::Buffer::new().format(prices.iter().skip(1).sum::<u32>()).to_owned()
}

#[test]
fn all_prices_count() {
    assert_eq!(total(&[1, 2, 3]), "6");
}
RS
project rust
mkdir "$dir/python" && cd "$dir/python"
printf '.venv\n__pycache__\n*.egg-info\nbuild\n' > .gitignore
printf 'idna\n' > requirements.txt
cat > total.py <<'PY'
import idna


def total(prices):
    return sum(prices[1:]) if idna.__version__ else 0
PY
cat > test_total.py <<'PY'
from total import total


def test_total():
    assert total([1, 2, 3]) == 6
PY
project python
mkdir "$dir/node" && cd "$dir/node"
printf 'node_modules\n' > .gitignore
cat > package.json <<'JS'
{"name": "total", "version": "1.0.0", "type": "commonjs", "scripts": {"test": "node --test"}, "dependencies": {"ms": "2.1.3"}}
JS
cat > total.js <<'JS'
const ms = require("ms");
exports.total = (prices) => prices.slice(1).reduce((sum, price) => sum + price, ms("0s"));
JS
cat > total.test.js <<'JS'
const { test } = require("node:test");
const assert = require("node:assert");
test("total", () => assert.equal(require("./total").total([1, 2, 3]), 6));
JS
project node

# Commands of the chat reach no directory elsewhere, so the projects are cloned over HTTP.
python3 -u -m http.server 0 --bind 127.0.0.1 --directory "$dir/origin" > "$dir/served" 2>/dev/null &
origin=$!
for _ in $(seq 100); do [ -s "$dir/served" ] && break; sleep 0.05; done
url=http://127.0.0.1:$(sed 's/.* port \([0-9]*\).*/\1/;q' "$dir/served")

# The model's steps: what a coding agent does first and last in each project.
python3 - "$dir/script.json" "$url" <<'PY'
import json, sys
shell = lambda command: [["shell_command", {"command": command}]]
edit = lambda path, old, new: [["edit_file", {"file_path": path, "old_string": old, "new_string": new}]]
work = {
    "rust": ("src/lib.rs", ".skip(1)", "", "total(prices", "// The sum of all prices.\npub fn total(prices", "cargo test"),
    "python": ("total.py", "prices[1:]", "prices", "def total", "# The sum of all prices.\ndef total", "python3 -m pytest -q"),
    "node": ("total.js", ".slice(1)", "", "exports.total", "// The sum of all prices.\nexports.total", "npm test"),
}
prepare = {"python": "pip install -q -r requirements.txt", "node": "npm install"}
script = {}
for name, (path, bug, fix, before, after, test) in work.items():
    before = before.replace("total(prices", "pub fn total(prices") if name == "rust" else before
    steps = [shell("git status --short && ls"), [["read_file", {"file_path": path}]]]
    steps += [shell(prepare[name])] if name in prepare else []
    for old, new, message in ((bug, fix, "Count all prices"), (before, after, "Say what it does")):
        steps += [edit(path, old, new), shell(test), shell("git diff --stat"), shell(f"git add -A && git commit -qm '{message}'")]
    script[f"Clone {name}."] = [{"calls": shell(f"git clone -q {sys.argv[2]}/{name}.git {name}")}, {"content": "It is cloned."}]
    script[f"Fix {name}."] = [{"calls": step} for step in steps] + [{"content": "All of it is done."}]
    # In the conversation that cloned it.
    steps = [shell(f"cd {name} && {test}"), edit(f"{name}/{path}", bug, fix), shell(f"cd {name} && git add -A && git commit -qm fixed && git log --format=%s -1")]
    script[f"Fix {name} there."] = [{"calls": step} for step in steps] + [{"content": "All of it is done."}]
json.dump(script, open(sys.argv[1], "w"))
PY
python3 "$here/upstream.py" "$dir/script.json" "$dir/port" "$dir/log" &
model=$!
for _ in $(seq 100); do [ -s "$dir/port" ] && break; sleep 0.05; done
cat > "$dir/respool.toml" <<TOML
state_dir = "$dir/state"
[[upstream]]
url = "http://127.0.0.1:$(cat "$dir/port")"
[tools.local]
loopback_ports = [${url##*:}]
TOML
tmux new-session -d -s keep "sleep 3600"

screen() { tmux capture-pane -p -S - -t day; }
# work DIRECTORY WORDS UNTIL: has a new chat do something, answers its questions and counts them in $asked.
work() {
    asked=0
    tmux kill-session -t day 2>/dev/null || true
    tmux new-session -d -x 150 -y 200 -s day "cd '$1' && $before TERM=xterm-256color '$respool' chat --config '$dir/respool.toml'; echo left with \$?; sleep 100"
    for _ in $(seq 300); do grep -qF "asks before it" <<<"$(screen)" && break; sleep 0.1; done
    tmux send-keys -t day -l "$2"
    tmux send-keys -t day Enter
    for _ in $(seq 3000); do
        shown=$(screen)
        grep -qF "$3" <<<"$shown" && return
        if [ "$(grep -cE '\[y\]es +\[n\]o' <<<"$shown")" -gt "$asked" ]; then
            asked=$((asked + 1))
            grep -E '\[y\]es +\[n\]o' <<<"$shown" | tail -1 >> "$dir/questions"
            if grep -E '\[y\]es +\[n\]o' <<<"$shown" | tail -1 | grep -qF '[a]lways'; then key=a; else key=y; fi
            tmux send-keys -t day "$key"
        fi
        sleep 0.1
    done
    echo "the chat never showed: $3" >&2
    exit 1
}

echo '| project | caches | questions for clone | for the work | of which outside the sandbox |'
echo '|---|---|---|---|---|'
for caches in cold warm; do
    for name in rust python node; do
        rm -rf "$dir/src/$name"
        : > "$dir/questions"
        before=
        work "$dir/src" "Clone $name." "It is cloned."
        cloned=$asked
        if [ "$name" = python ]; then
            (cd "$dir/src/python" && python3 -m venv --system-site-packages .venv)
            before=". .venv/bin/activate &&"
        fi
        work "$dir/src/$name" "Fix $name." "All of it is done."
        [ "$(git -C "$dir/src/$name" log --oneline | wc -l)" = 3 ] || { echo "$name: the commits are not there" >&2; exit 1; }
        outside=$(grep -c "once more" "$dir/questions" || true)
        echo "| $name | $caches | $cloned | $asked | $outside |"
        [ -z "${QUESTIONS:-}" ] || sed 's/^/    /' "$dir/questions"
    done
done
