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
    cargo test --test it faults -- --include-ignored --skip soak --nocapture

# 1,000 streams at once for ten minutes, with random faults among them, against the program in a process of its own.
soak:
    SOAK_STREAMS=1000 SOAK_SECONDS=600 SOAK_PACE=1200 SOAK_TIMEOUT=28 cargo test --release --test it soak_ends -- --ignored --nocapture

# Format and fix what can be fixed.
fix:
    cargo fmt
    cargo clippy --fix --allow-dirty --all-targets

# Generated pages and snapshots.
generate:
    UPDATE_DOCS=1 cargo test --lib config
    UPDATE_DOCS=1 cargo test --test it faults::page
    INSTA_UPDATE=always cargo test

# The real OpenClaw against respool (installs into DIR, about 1 GB).
openclaw DIR:
    tests/openclaw/run.sh {{DIR}}

# A real vLLM on CPU behind respool (installs into DIR, about 6 GB).
vllm DIR:
    tests/vllm/run.sh {{DIR}}

# Side by side with nginx and others.
bench:
    benches/proxy/run.sh
