//! Replays the fuzz targets' corpus (`fuzz/corpus/`) through the same oracles, so that an ordinary test run
//! guards what fuzzing has found.

use std::fs;
use std::path::Path;

use crate::oracle;

/// Returns every input of one target.
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

/// Fuzzing took the `</s>` that goes between two openings of a turn for lost text.
#[test]
fn an_end_token_between_openings_is_accounted_for() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/parse");
    oracle::check_account(&fs::read(folder.join("9c84a7ac9506d88549b3d4f14f2bb953e7a81091")).unwrap());
}

#[test]
fn lenient_json_holds_on_its_corpus() {
    let texts = corpus("repair");
    texts.iter().filter_map(|input| std::str::from_utf8(input).ok()).for_each(oracle::check_json);
}
