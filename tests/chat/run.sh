#!/usr/bin/env bash
# Drives `respool chat` in a real terminal (tmux) against a scripted model, in a real git repository: approves an edit, denies
# a command, interrupts a command and a reply, undoes, leaves, is killed, goes on. See README.md.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cargo build --quiet --locked --manifest-path "$root/Cargo.toml"
respool=${CARGO_TARGET_DIR:-$root/target}/debug/respool

dir=$(mktemp -d)
tmux() { command tmux -S "$dir/tmux" -f /dev/null "$@"; }
end() {
    status=$?
    if [ "$status" != 0 ]; then
        echo "--- the screen:" >&2
        screen >&2 || true
    fi
    tmux kill-server 2>/dev/null || true
    kill "$model" 2>/dev/null || true
    rm -rf "$dir"
    exit "$status"
}
trap end EXIT

python3 "$here/upstream.py" "$here/script.json" "$dir/port" "$dir/log" &
model=$!
for _ in $(seq 100); do [ -s "$dir/port" ] && break; sleep 0.05; done

repo=$dir/repo
mkdir "$repo" "$dir/home"
cat > "$dir/respool.toml" <<TOML
state_dir = "$dir/state"
[models.small]
target = "scripted"
context_window = 6000
[[upstream]]
url = "http://127.0.0.1:$(cat "$dir/port")"
TOML
cat > "$repo/calc.py" <<'PY'
def total(prices):
    result = 0
    for i in range(1, len(prices)):
        result += prices[i]
    return result


print(total([1, 2, 3]))
PY
echo "A calculator." > "$repo/README.md"
git -C "$repo" init -q
git -C "$repo" add -A
git -C "$repo" -c user.name=t -c user.email=t@example.org commit -qm first

screen() { tmux capture-pane -p -S - -t chat; }
keys() { tmux send-keys -t chat "$@"; }
say() { keys -l "$1"; keys Enter; }
fail() { echo "FAILED: $*" >&2; exit 1; }
# await TEXT [COUNT]: until the screen (or what scrolled off it) shows TEXT so often.
await() {
    for _ in $(seq 150); do
        [ "$(screen | grep -cF -- "$1")" -ge "${2:-1}" ] && return
        sleep 0.1
    done
    fail "the screen never showed: $1 (${2:-1} times)"
}
shows() { grep -qF -- "$1" <<<"$(screen)" || fail "the screen does not show: $1"; }
ok() { printf '  ok  %s\n' "$*"; }

# A second session keeps the server up between the chats.
tmux new-session -d -s keep "sleep 600"
start() {
    tmux kill-session -t chat 2>/dev/null || true
    tmux new-session -d -x 90 -y 40 -s chat \
        "cd '$repo' && PAGER=cat EDITOR='sed -i s/typed/edited/' TERM=xterm-256color '$respool' chat --config '$dir/respool.toml' $*; echo left with \$?; sleep 100"
}

start
await "asks before it changes or runs anything"
shows "settings: $dir/respool.toml"
say "The total is wrong. Fix it."
await "Change calc.py (+1 −1)?"
shows "git status --short && ls"
[ "$(screen | grep -cF "Run it?")" = 0 ] || fail "a command that only looks is asked about"
shows "-    for i in range(1, len(prices)):"
shows "+    for i in range(len(prices)):"
git -C "$repo" diff --quiet || fail "the file changed before the answer"
keys y
await "+1 −1"
await "python3 calc.py"
await "Run it?"
keys a
await "It now begins at 0"
await "4 model calls"
[ "$(python3 "$repo/calc.py")" = 6 ] || fail "the edit is not there"
shows "│before│5"
grep -qF '**' <<<"$(screen)" && fail "Markdown marks are on the screen"
[ -n "${SCREEN:-}" ] && screen | sed 's/ *$//' > "$SCREEN"
shows "/thinking shows its reasoning"
say "/thinking"
await "The loop starts at one, so the first price is skipped."
ok "an edit, asked for with its diff, approved, verified; the answer rendered"

say "Delete the readme."
await "Run it?" 2
shows "[a]lways this very command"
# Neither type-ahead nor an arrow is an answer.
keys Up
keys x
sleep 0.4
[ -e "$repo/README.md" ] || fail "an arrow approved"
sleep 5
keys n
await "You said no"
await "tokens in" 2
screen | grep -F "tokens in" | tail -1 | grep -qE "^[0-4]\." || fail "the time of a turn counts what a question waited for"
[ -e "$repo/README.md" ] || fail "a denied command ran"
grep -q "the person who was asked said no" "$dir/log" || fail "the model was not told of the denial"
ok "a denied command does not run, and the model is told"

say "Write a poem."
await "[y]es  [n]o  [a]lways write_file  [t]ell it instead  [v]iew all"
shows "Change poem.txt (+60 −0)?"
shows "… 27 more rows, not shown: [v]iew"
keys v
await "rows to 38 of 61"
keys Space
await "+verse 60"
await "[v]iew all" 2
keys t
await "Tell it:"
say "Two lines, please."
await "No poem."
grep -q "the person who was asked says instead: Two lines, please." "$dir/log" || fail "the model was not told"
[ -e "$repo/poem.txt" ] && fail "a denied file was written"
say "Write two poems."
await "Change two.txt"
say "tNone of them, please."
await "Tell it: None of them, please."
await "No poems."
grep -q "the person said at an earlier call of this reply what to do instead" "$dir/log" || fail "a call is asked about"
[ -e "$repo/redirected.txt" ] && fail "a command ran against the person's words"
ok "a long change is shown whole on request; instead of consent the model gets a sentence"

say "Wait for me."
await "Run it?" 3
keys x
await "That is not an answer: after a moment"
keys y
sleep 0.5
[ -e "$repo/begun.txt" ] && fail "a letter of a text is an answer"
keys Enter
await "Run it?" 4
keys x
await "That is not an answer: after a moment" 2
sleep 2.2
keys y
for _ in $(seq 50); do [ -e "$repo/begun.txt" ] && break; sleep 0.1; done
pgrep -f "sleep 300.{1,2}echo ended" >/dev/null || fail "the command does not run"
keys C-c
await "└ stopped"
for _ in $(seq 20); do pgrep -f "sleep 300.{1,2}echo ended" >/dev/null || break; sleep 0.1; done
pgrep -f "sleep 300.{1,2}echo ended" >/dev/null && fail "the command still runs"
say "Write a lot."
await "three four"
keys C-c
await "stopped" 3
for _ in $(seq 20); do grep -q hung_up "$dir/log" && break; sleep 0.1; done
grep -q hung_up "$dir/log" || fail "the model call was not dropped"
say "Are you there?"
await "Yes."
ok "Ctrl-C ends the command and the model call, and the conversation goes on"

say "Take your time."
await "word word"
say "/cost"
await "context: about"
say "/nope"
await "there is no command /nope"
say "/model scripted-too"
await "❯ /model scripted-too ⏎ · runs when this turn ends"
say "Are you there?"
say "/model scripted"
await "the next turn goes to scripted" 2
await "Yes." 2
grep -qE '/(cost|nope|model)' "$dir/log" && fail "the model got a command"
grep -qF '"model": "scripted-too"' "$dir/log" || fail "the message overtook the command"
ok "during a turn, commands that look are answered; others and messages follow it one by one"

say "/undo"
await "restored: calc.py"
git -C "$repo" diff --quiet || fail "calc.py is not as it was"
say "/undo"
await "no file change"
say "/cost"
await "context: about" 2
shows "no price of scripted is known"
echo "result = 1" > "$repo/new file.py"
echo "" > "$repo/README.md"
say "/diff"
await "● new file.py"
shows "-A calculator."
shows "1 +result = 1"
rm "$repo/new file.py"
git -C "$repo" checkout -q README.md
say "/diff"
await "● begun.txt" 2
keys -l "/c"
keys Tab
await "/compact"
keys C-c
keys -l "/mo"
keys Tab
sleep 0.3
keys Enter
await "● scripted"
keys -l "alpha"
keys M-Enter
keys -l "omega"
await "omega"
keys C-c
keys C-c
await "Ctrl-C again"
keys C-c
await "respool chat --continue goes on"
await "left with 0"
ok "/undo, /cost, completion, several lines, leaving"

start --continue
await "continuing the last conversation (9 turns)"
say "What did we do?"
await "you undid it"
grep -qE "(restored|removed): calc.py" "$dir/log" || fail "the model does not know of the undo"
pid=$(pgrep -f "respool chat --config $dir/respool.toml --continue" | tail -1)
kill -KILL "$pid"
await "left with 137"
start --continue
await "continuing the last conversation (10 turns)"
keys Up
await "❯ What did we do?"
keys C-c
keys C-d
await "left with 0"
start --resume
await "  The total is wrong. Fix it."
keys 1 Enter
await "› What did we do?"
say "/clear"
say "/resume"
await "Number (Enter keeps this conversation)"
keys 1 Enter
await "› What did we do?" 2
keys C-d
await "left with 0"
start --resume
await "Number (Enter begins a new conversation)"
keys 7 Enter
await "\`7\` is not a number from 1 to"
keys Enter
await "asks before it changes or runs anything"
keys C-d
await "left with 0"
ok "--continue, also after kill -9; --resume; history"

for signal in TERM HUP; do
    start --continue
    await "continuing the last conversation"
    say "Wait for me."
    await "Run it?"
    keys y
    for _ in $(seq 50); do pgrep -f "sleep 300.{1,2}echo ended" >/dev/null && break; sleep 0.1; done
    pgrep -f "sleep 300.{1,2}echo ended" >/dev/null || fail "the command does not run"
    pid=$(pgrep -f "respool chat --config $dir/respool.toml --continue" | tail -1)
    kill -"$signal" "$pid"
    await "left with 143"
    pgrep -f "sleep 300.{1,2}echo ended" >/dev/null && fail "SIG$signal left the command running"
    tty=$(tmux display-message -p -t chat '#{pane_tty}')
    grep -qE '(^| )echo( |;|$)' <<<"$(stty -a < "$tty" | tr '\n' ' ')" || fail "SIG$signal left the terminal without echo"
done
start --continue
await "continuing the last conversation (12 turns)"
say "Are you there?"
await "Yes."
ok "SIGTERM and SIGHUP end the command, keep the conversation and leave the terminal as it was"
say "Wait for me."
await "Run it?"
keys C-c
await "└ not done"
say "Write a lot."
await "one two three four"
tmux resize-window -t chat -x 50 -y 40
sleep 1.5
keys C-c
await "stopped" 2
[ "$(screen | grep -c "writing ·")" -le 1 ] || fail "a terminal that became narrower is full of spinners"
keys C-d
await "left with 0"
ok "a question that is stopped, a terminal that becomes narrower"

seq -f "line %g of a long file" 1 1500 > "$repo/long.txt"
start --model small
say "Read both."
# The script has this answer only to a prompt that ends with the summary.
await "Both are read."
grep -q "Summarise the following work" "$dir/log" || fail "nothing was summarised"
grep -qF "THE SUMMARY" <<<"$(screen)" && fail "the summary is on the screen"
keys C-d
await "left with 0"
ok "a summary is the model's business"

printf 'import os\nprint("x")\n' > "$repo/a.py"
git -C "$repo" add a.py
mkdir "$repo/evil"
printf '#!/bin/sh\ntouch pwned.txt\n' > "$repo/evil.sh"
chmod +x "$repo/evil.sh"
start
await "asks before it changes"
say "Try to trick me."
await "Run it?"
keys y
await "No such device or address"
await "give only one of them"
await "Run it in evil?"
keys n
await "echo ok⟨120 spaces⟩; touch hidden.txt"
keys n
await "Run it?" 3
shows "git grep --open-files-in-pager=./evil.sh import"
keys n
await "Change .envrc (+1 −0)? [y]es  [n]o"
grep -q "lways write_file" <<<"$(screen)" && fail "always is offered for a hidden file"
keys n
await "Caught."
[ -e "$repo/pwned.txt" ] && fail "a command that only looks ran a program that writes"
[ -e "$repo/hidden.txt" ] && fail "a hidden command ran"
[ -e "$repo/.git/hooks/pre-commit" ] && fail "a hook was written as a readme"
keys C-d
await "left with 0"
ok "what is asked for is shown whole, by its real name; commands have no terminal; always covers no more than was seen"

cat > "$repo/respool.toml" <<TOML
[[upstream]]
url = "http://127.0.0.1:1"
api_key_env = "HOME"
[tools.policy]
default = "allow"
TOML
tmux kill-session -t chat
tmux new-session -d -x 90 -y 40 -s chat \
    "cd '$repo' && HOME='$dir/home' TERM=xterm-256color '$respool' chat --upstream http://127.0.0.1:$(cat "$dir/port"); echo left with \$?; sleep 100"
await "asks before it changes or runs anything"
tr -s '\n ' ' ' <<<"$(screen)" | grep -q "respool.toml is not read" || fail "the ignored file is not told"
shows "upstream: http://127.0.0.1:$(cat "$dir/port")"
shows "settings: defaults, no file"
keys C-d
await "left with 0"
rm "$repo/respool.toml"
ok "a respool.toml of the repository has no effect, and that is told"

# gone TEXT: until the screen no longer shows TEXT.
gone() {
    for _ in $(seq 50); do
        grep -qF -- "$1" <<<"$(screen)" || return 0
        sleep 0.1
    done
    fail "the screen still shows: $1"
}
seq -f "row %g" 200 > "$dir/paste"
tmux load-buffer "$dir/paste"
start
await "asks before it changes"
keys -l "Count: "
tmux paste-buffer -p -t chat
await "❯ Count: [pasted: 200 lines]"
keys BSpace
gone "pasted"
tmux paste-buffer -p -t chat
await "❯ Count: [pasted: 200 lines]"
say "Now."
await "They are 200."
grep -qF "row 150" <<<"$(screen)" && fail "a pasted text is on the screen"
grep -qF 'Count: row 1\nrow 2\n' "$dir/log" || fail "the pasted text was not sent whole"
keys Up
await "❯ Count: [pasted: 200 lines]" 2
keys C-c
ok "a long paste is one mark, also in the history; it is sent whole"

say "List."
await "Listed."
shows "… 44 earlier lines (/output 1 shows all)"
await "tokens in" 2
say "/output 1"
await "    17"
keys -l "half a "
keys C-o
await "    17" 2
say "question"
await "Half answered."
await "tokens in" 3
say "/output 9"
await "there is no output 9"
ok "/output and Ctrl-O show the whole output; Ctrl-O keeps the line"

say "Say it slowly."
await "one two"
say "Are you there?"
await "sent when this turn ends"
await "Yes."
say "Write a lot."
await "three four"
keys -l "typed"
keys Escape
await "stopped"
await "❯ typed"
keys C-g
await "❯ edited"
keys C-c
say "!test -t 1 && read -r name && echo Hello \$name"
keys Anna Enter
await "Hello Anna"
say "!printf '\033[31mown\033[0m %s\n' \$((40+2)); exit 3"
await "exit code 3"
shows "own 42"
grep -qF 'u{1b}' <<<"$(screen)" && fail "colours of a command are on the screen as codes"
say "And now?"
await "It is forty-two."
await "tokens in" 6
grep -q "The person ran .* themselves (exit code 3). Its output:" "$dir/log" || fail "the model did not learn it"
keys -l "Read @calc"
keys Tab
await "❯ Read @calc.py"
keys Enter
await "@calc.py · 8 lines"
await "Read it is."
await "tokens in" 7
say "/resume"
await "Number (Enter keeps this conversation)"
keys Escape
await "no conversation was chosen"
say "/compact"
await "summarised: the conversation had about"
say "Are you there?"
await "Yes." 2
grep -q '\[respool\] What has been done so far' "$dir/log" || fail "the summary does not stand for the conversation"
keys C-d
await "left with 0"
ok "Esc stops; Ctrl-G edits; !command, @file, /compact"

touch "$dir/port.slow"
start --continue
await "starting: asking the model server"
keys -l "Are you there?"
rm "$dir/port.slow"
await "asks before it changes"
await "❯ Are you there?"
keys C-c
say "/model scripted-too"
await "the next turn goes to scripted-too"
# A terminal that does not mark a paste.
printf 'line one\nline two\n\tline three\nAre you there?' | tmux load-buffer -
tmux paste-buffer -t chat
await "❯ line one"
await "line three"
[ "$(screen | grep -c "line one")" = 1 ] || fail "the first line of a paste is there twice"
grep -q '"last": .*line one' "$dir/log" && fail "a paste was sent"
keys Enter
await "Yes." 2
grep -qF 'line one\nline two\n\tline three\nAre you there?' "$dir/log" || fail "a paste has lost lines"
tmux send-keys -t chat "Are you there?" Enter
await "Yes." 3
keys C-d
await "left with 0"
start -c
await "the next turn goes to scripted-too, as the last one did"
say "Are you there?"
await "Yes." 2
tail -1 "$dir/log" | grep -q '"model": "scripted-too"' || fail "another model was asked"
say "/cost"
await "no price of scripted, scripted-too"
keys C-d
await "left with 0"
touch "$dir/port.slow"
start --continue
await "starting: asking the model server"
keys C-d
await "left with 0"
rm "$dir/port.slow"
ok "what is typed while it starts is kept; bursts lose no line; --continue keeps the model"

once() { (cd "$repo" && "$respool" chat --config "$dir/respool.toml" "$@" < /dev/null 2> /dev/null); }
once -p "Say it slowly." > "$dir/words" &
slow=$!
for _ in $(seq 100); do grep -q "two" "$dir/words" && break; sleep 0.1; done
grep -q "six" "$dir/words" && fail "-p does not stream"
wait "$slow"
[ "$(cat "$dir/words")" = "one two three four five six" ] || fail "-p wrote: $(cat "$dir/words")"
once -p "Say the number." --json > "$dir/events"
python3 - "$dir/events" <<'PY' || fail "--json wrote: $(cat "$dir/events")"
import json, sys
events = [json.loads(line) for line in open(sys.argv[1])]
assert "".join(event["text"] for event in events if event["type"] == "text").strip() == "42"
result = events[-1]
assert (result["type"], result["answer"], result["error"], result["exit_code"]) == ("result", "42", None, 0)
assert result["usage"]["prompt_tokens"] == 1200 and result["model_calls"] == 1
PY
ok "-p streams; --json writes events"

start --yes "'Run it.'"
await "runs everything without asking"
await "❯ Run it."
await "Denied or done."
[ -e "$repo/ran.txt" ] || fail "--yes did not run the command"
grep -q '"problem"' "$dir/log" && fail "a request broke the protocol: $(grep '"problem"' "$dir/log")"
keys C-d
await "left with 0"
ok "--yes"
