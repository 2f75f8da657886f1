//! SSE frames, and the chunks in them, on arbitrary bytes: `just fuzz sse`. The oracle says how the input is
//! read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use respool::translate::oracle;

fuzz_target!(|input: &[u8]| oracle::check_stream(input));
