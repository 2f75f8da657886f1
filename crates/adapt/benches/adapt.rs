//! The time that learned rules cost, on OpenClaw's request with all its tools (148 KB).
//!
//! `cargo bench -p adapt`. Targets: nothing measurable without rules; with learned changes at most 40 µs and
//! 1 ns for each byte, 190 µs here.

#![allow(clippy::unwrap_used, reason = "a benchmark ends where its input is wrong")]

use adapt::{Loss, RuleSet, TABLE, adapt};
use divan::Bencher;

const REQUEST: &str = include_str!("../../../fixtures/openclaw/request-2026.9.6-fulltools.json");

fn main() {
    divan::main();
}

fn bench(bencher: Bencher<'_, '_>, rules: &RuleSet) {
    bencher.bench(|| adapt(divan::black_box(REQUEST), rules).applied.len());
}

#[divan::bench]
fn without_rules(bencher: Bencher<'_, '_>) {
    bench(bencher, &RuleSet::new());
}

#[divan::bench]
fn tools(bencher: Bencher<'_, '_>) {
    bench(bencher, &["tools.pattern", "tools.grammar_limits"].map(|name| name.parse().unwrap()).into());
}

#[divan::bench]
fn messages(bencher: Bencher<'_, '_>) {
    bench(
        bencher,
        &["messages.system_first", "messages.alternate_roles"].map(|name| name.parse().unwrap()).into(),
    );
}

#[divan::bench]
fn all_lossless_rules(bencher: Bencher<'_, '_>) {
    let rows = TABLE.iter().filter(|row| row.loss == Loss::Lossless);
    bench(bencher, &rows.map(|row| row.rule.clone()).collect());
}
