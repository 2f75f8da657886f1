//! Bodies of `POST /v1/responses`, and a turn that answers each: `just fuzz responses`. The oracle says what
//! must hold.

#![no_main]

use libfuzzer_sys::fuzz_target;
use respool::translate::wire_oracle;

fuzz_target!(|input: &[u8]| wire_oracle::check_response_request(input));
