//! Lenient JSON on arbitrary text: `just fuzz repair`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tool_call_parser::oracle;

fuzz_target!(|text: &str| oracle::check_json(text));
