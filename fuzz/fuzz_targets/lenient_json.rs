//! Lenient JSON on arbitrary text: `just fuzz lenient_json`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use respool::tool_parser::oracle;

fuzz_target!(|text: &str| oracle::check_json(text));
