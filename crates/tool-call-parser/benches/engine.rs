//! The tool-call engine's speed: text without marks, text dense with near-marks, and replies full of calls.
//!
//! `cargo bench -p tool-call-parser`. Targets: 500 MB/s, 100 MB/s, and a time per byte for 10 MB
//! that is within 1.5 times that for 100 KB.

#![allow(clippy::unwrap_used, reason = "a benchmark ends where its input is wrong")]

use std::hint::black_box;
use std::sync::Arc;

use divan::Bencher;
use divan::counter::BytesCount;
use tool_call_parser::{End, Engine, Event, Field, Options, Tools};

const TOOLS: &str = r#"[{"type":"function","function":{"name":"write","parameters":{"type":"object",
    "required":["path","content"],"properties":{"path":{"type":"string"},"content":{"type":"string"}}}}}]"#;

fn main() {
    divan::main();
}

fn prose(length: usize) -> String {
    let line =
        "The quick brown fox jumps over the lazy dog, twice; then it rests (for a while) and looks around.\n";
    line.repeat(length / line.len() + 1)
}

fn near_marks(length: usize) -> String {
    let line = "if a < b && c[i] > {d} then <div> x=`y` <tool_b> {\"name\": \"x\"} [1] <|x|> to=z\n";
    line.repeat(length / line.len() + 1)
}

fn calls(count: usize, size: usize) -> String {
    let content = "line of \\\"content\\\" with <b>tags</b>\\n".repeat(size / 40);
    let call = format!(
        "<tool_call>\n{{\"name\": \"write\", \"arguments\": {{\"path\": \"f.txt\", \"content\": \"{content}\"}}}}\n</tool_call>\n"
    );
    (0..count).map(|index| call.replace("f.txt", &format!("f{index}.txt"))).collect()
}

fn run(tools: &Arc<Tools>, text: &str, piece: usize) -> usize {
    let mut engine = Engine::new(Arc::clone(tools), Options::default());
    let mut out: Vec<Event> = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (head, tail) = rest.split_at(piece.min(rest.len()));
        engine.push(Field::Content, black_box(head), &mut out);
        rest = tail;
    }
    engine.finish(End::default(), &mut out);
    black_box(out).len()
}

fn bench(bencher: Bencher<'_, '_>, text: &str, piece: usize) {
    let tools = Arc::new(Tools::from_json(TOOLS).unwrap());
    bencher.counter(BytesCount::new(text.len())).bench(|| run(&tools, text, piece));
}

#[divan::bench]
fn prose_whole(bencher: Bencher<'_, '_>) {
    bench(bencher, &prose(4 << 20), usize::MAX);
}

#[divan::bench]
fn prose_in_pieces_of_16(bencher: Bencher<'_, '_>) {
    bench(bencher, &prose(1 << 20), 16);
}

#[divan::bench]
fn near_marks_whole(bencher: Bencher<'_, '_>) {
    bench(bencher, &near_marks(4 << 20), usize::MAX);
}

#[divan::bench]
fn near_marks_in_pieces_of_16(bencher: Bencher<'_, '_>) {
    bench(bencher, &near_marks(1 << 20), 16);
}

#[divan::bench]
fn calls_100_kb(bencher: Bencher<'_, '_>) {
    bench(bencher, &calls(10, 10_000), usize::MAX);
}

#[divan::bench(sample_count = 10)]
fn calls_10_mb(bencher: Bencher<'_, '_>) {
    bench(bencher, &calls(1000, 10_000), usize::MAX);
}

#[divan::bench(sample_count = 10)]
fn calls_10_mb_in_pieces_of_16(bencher: Bencher<'_, '_>) {
    bench(bencher, &calls(1000, 10_000), 16);
}

#[divan::bench(sample_count = 10)]
fn one_call_of_10_mb_in_pieces_of_16(bencher: Bencher<'_, '_>) {
    bench(bencher, &calls(1, 10_000_000), 16);
}
