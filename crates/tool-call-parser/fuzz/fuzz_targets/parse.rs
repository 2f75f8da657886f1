//! Whatever the text, the calls that leave are valid: `just fuzz parse`. The oracle says how the input is
//! read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tool_call_parser::oracle;

fuzz_target!(|input: &[u8]| oracle::check_parse(input));
