# `just` lists these; `just ci` is what every change must pass.
default:
    @just --list

# Everything that CI runs.
ci:
    bash .ci/run

# The tests.
test:
    cargo test

# Format and fix what can be fixed.
fix:
    cargo fmt
    cargo clippy --fix --allow-dirty --all-targets

# Generated pages and snapshots.
generate:
    UPDATE_DOCS=1 cargo test --lib config
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

# What the agent's loop costs, and the memory of 200 runs at once.
bench-agent:
    cargo bench --bench agent

# End the process a hundred times at random points of agents' runs.
kill-test:
    RESPOOL_KILLS=100 cargo test --test it agents_killed -- --nocapture
