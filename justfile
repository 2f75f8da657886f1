# `just` lists these; `just ci` is what every change must pass.
default:
    @just --list

# Everything that CI runs.
ci:
    bash .ci/run

# The tests.
test:
    cargo test

# Every fault, and the memory each takes (some minutes); FAULT=name for some. What they are: docs/faults.md.
faults:
    cargo test --test faults -- --include-ignored --skip soak --nocapture

# 1,000 streams at once for ten minutes, with random faults among them, against the program in a process of its own.
soak:
    SOAK_STREAMS=1000 SOAK_SECONDS=600 SOAK_PACE=1200 SOAK_TIMEOUT=28 cargo test --release --test faults soak_ends -- --ignored --nocapture

# Format and fix what can be fixed.
fix:
    cargo fmt
    cargo clippy --fix --allow-dirty --all-targets

# Generated pages and snapshots.
generate:
    UPDATE_DOCS=1 cargo test -p tool-call-parser --lib
    UPDATE_DOCS=1 cargo test -p settings
    UPDATE_DOCS=1 cargo test -p alerts
    UPDATE_DOCS=1 cargo test --test it -- adapt captures_page the_table_of_levels
    UPDATE_DOCS=1 cargo test --test faults page
    INSTA_UPDATE=always cargo test
    scripts/prose --lower

# Phrases and names that readers stumble over, counted against a budget for each crate (`just prose --show all` lists them).
prose *OPTIONS:
    scripts/prose {{OPTIONS}}

# Every text that a person may read (errors, log messages, help, the page, the chat), by file, to be read as a whole.
messages:
    scripts/prose --messages

# What is shipped: static binary, archive, Debian package, checksums, bill of materials (into DIR). Needs musl-tools and cargo-cyclonedx.
dist DIR="target/dist-out":
    deploy/dist.sh {{DIR}}

# Build and install respool as releases are built, with a profile of the relay at work: a sixth faster, for two builds. Needs Python 3.
install:
    #!/usr/bin/env bash
    set -euo pipefail
    target=$(rustc -vV | sed -n 's/^host: //p')
    TARGET=$target deploy/profile.sh target/respool.profdata
    RUSTFLAGS="-Cprofile-use=$PWD/target/respool.profdata" cargo install --locked --path . --profile dist --target "$target"

# Install what `just dist` made on clean roots (as root).
dist-test DIR="target/dist-out":
    tests/dist/run.sh {{DIR}}

# Alerts against a real mail server and a strict ntfy; Prometheus's check of the rules, Grafana's of the dashboard.
alerts:
    tests/alerts/run.sh

# The page in a headless Chromium; pictures of all pages into DIR.
page DIR="target/page":
    tests/page/run.sh {{DIR}}

# The real OpenClaw against respool (installs into DIR, about 1 GB).
openclaw DIR:
    tests/openclaw/run.sh {{DIR}}

# A real vLLM on CPU behind respool (installs into DIR, about 6 GB).
vllm DIR:
    tests/vllm/run.sh {{DIR}}

# Side by side with nginx and others.
bench:
    benches/proxy/run.sh

# Does a request cost more than at the commit BASE? Fails when a test needs 3 % more instructions; the table goes into the commit message.
bench-gate BASE *OPTIONS:
    benches/proxy/gate.sh {{BASE}} {{OPTIONS}}

# Fuzz one target (parse, split, account, rewrite, repair; sse, responses, messages, wire_events) for that many seconds; what it finds lands in fuzz/artifacts. Needs cargo-fuzz.
fuzz TARGET SECONDS="600":
    #!/usr/bin/env bash
    set -euo pipefail
    [ -e fuzz/fuzz_targets/{{TARGET}}.rs ] || cd crates/tool-call-parser
    seeds=fuzz/corpus/{{TARGET}}
    [ -d "$seeds" ] || seeds=fuzz/corpus/parse
    case {{TARGET}} in responses | messages) longest=2000 ;; *) longest=600 ;; esac
    mkdir -p fuzz/grown/{{TARGET}}
    RUSTC_BOOTSTRAP=1 cargo fuzz run -s none {{TARGET}} fuzz/grown/{{TARGET}} "$seeds" -- -max_len=$longest -max_total_time={{SECONDS}}

# The same for the other wires without cargo-fuzz: random changes of seeds and recorded requests (responses, messages, wire_events).
mutate TARGET SECONDS="600":
    RESPOOL_TARGET={{TARGET}} RESPOOL_SECONDS={{SECONDS}} cargo test --lib wires_hold_on_mutations -- --nocapture

# What is too long for every change: 2,000 random schemas per dialect there and back, 20,000 random texts, all targets fuzzed.
nightly:
    RESPOOL_SCHEMAS=2000 RESPOOL_CASES=20000 cargo test --release --lib -p tool-call-parser
    for target in parse split account rewrite repair sse responses messages wire_events; do just fuzz "$target"; done

# What the agent's loop costs, and the memory of 200 runs at once.
bench-agent:
    cargo bench --bench agent

# What the queue costs beside bare commits, and how long a full store takes to start.
bench-queue:
    cargo test --release --test it queue_speed -- --ignored --nocapture --test-threads 1

# How fast the queue is that several processes share, on PostgreSQL and on files, beside bare commits.
bench-nodes:
    cargo test --release -p store --lib speed -- --ignored --nocapture

# How long a package of 200 files takes to validate.
bench-experts:
    cargo test --release --test it expert_speed -- --ignored --nocapture --test-threads 1

# What a release must pass beyond `just ci`: kills, the soak, mutants, and the real servers and clients (into DIR, about 10 GB).
release DIR SEED="1": kill-test (nodes SEED) soak (mutants SEED) (openclaw DIR) (vllm DIR)
    tests/vllm-suites/run.sh {{DIR}}
    tests/openclaw/run.sh {{DIR}} storms
    tests/openclaw/run.sh {{DIR}} misbehaviours
    tests/openclaw/run.sh {{DIR}} long-turns

# Change the code in small ways and see whether a test notices: 1 of 40 mutants, chosen by SEED. Needs cargo-mutants.
mutants SEED="1":
    cargo mutants --shard {{SEED}}/40 -p tool-call-parser
    cargo mutants --shard {{SEED}}/40 -p relay -f crates/relay/src/decide.rs
    cargo mutants --shard {{SEED}}/40 -p agent -f 'crates/agent/src/run/**'

# Kill, stop and cut off three processes on one PostgreSQL, and on one state_dir, a thousand times each, and restart the database 20 times.
nodes SEED="1":
    RESPOOL_SEED={{SEED}} RESPOOL_KILLS=1000 RESPOOL_RESTARTS=20 cargo test --test it nodes_harmed -- --nocapture --test-threads 1

# End the process a hundred times at random points of agents' runs.
kill-test:
    RESPOOL_KILLS=100 cargo test --test it agents_killed -- --nocapture
