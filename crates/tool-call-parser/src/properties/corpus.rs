//! Replays the fuzz targets' corpus (`fuzz/corpus/`) through the same oracles, so that an ordinary test run guards what
//! fuzzing has found.

use std::fs;
use std::path::Path;

use crate::oracle;

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
    for input in corpus("parse") {
        oracle::check_engine(&input);
        oracle::check_parse(&input);
        oracle::check_rewrite(&input);
    }
}

#[test]
fn lenient_json_holds_on_its_corpus() {
    let texts = corpus("repair");
    texts.iter().filter_map(|input| std::str::from_utf8(input).ok()).for_each(oracle::check_json);
}
