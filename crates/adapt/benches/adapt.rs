//! The time that learned rules cost, on OpenClaw's request with all its tools (148 KB).
//!
//! `cargo bench -p adapt`. Targets: nothing measurable without rules; with learned changes at most 40 µs and
//! 1 ns for each byte, 190 µs here.

#![allow(clippy::unwrap_used, reason = "a benchmark ends where its input is wrong")]

use adapt::{Loss, RuleSet, adapt_object, rows};
use bytes::Bytes;
use divan::Bencher;
use wire::Object;

const REQUEST: &str = include_str!("../../../fixtures/openclaw/request-2026.9.6-fulltools.json");

fn main() {
    divan::main();
}

/// Measures the rules' own part: the request was read anyhow, and what they leave alone is not copied.
fn bench(bencher: Bencher<'_, '_>, rules: &RuleSet) {
    let original = Bytes::from_static(REQUEST.as_bytes());
    bencher.with_inputs(|| Object::parse(REQUEST).unwrap()).bench_values(|mut object| {
        let applied = adapt_object(&mut object, rules);
        (!applied.is_empty()).then(|| object.into_pieces(&original))
    });
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
    let without_consent = rows().filter(|row| matches!(row.loss, Loss::Lossless | Loss::Minor));
    bench(bencher, &without_consent.map(|row| row.rule.clone()).collect());
}
