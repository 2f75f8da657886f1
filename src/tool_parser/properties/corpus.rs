//! Replays the fuzz targets' corpus (`fuzz/corpus/`) through the same oracles, so that an ordinary test run guards what
//! fuzzing has found.

use std::fs;
use std::path::Path;

use crate::tool_parser::oracle;

/// Every input of one target.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let inputs: Vec<Vec<u8>> =
        fs::read_dir(folder).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect();
    assert!(inputs.len() >= 20, "{target} has {} inputs", inputs.len());
    inputs
}

#[test]
fn the_engine_holds_on_its_corpus() {
    corpus("engine").iter().for_each(|input| oracle::check_engine(input));
}

#[test]
fn lenient_json_holds_on_its_corpus() {
    let texts = corpus("lenient_json");
    texts.iter().filter_map(|input| std::str::from_utf8(input).ok()).for_each(oracle::check_json);
}

#[test]
fn streams_hold_on_their_corpus() {
    corpus("sse").iter().for_each(|input| crate::translate::oracle::check_stream(input));
}
