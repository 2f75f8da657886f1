//! Bodies of `POST /v1/messages`, and a turn that answers each: `just fuzz messages`. The oracle says what
//! must hold.

#![no_main]

use libfuzzer_sys::fuzz_target;
use respool::translate::wire_oracle;

fuzz_target!(|input: &[u8]| wire_oracle::check_message_request(input));
