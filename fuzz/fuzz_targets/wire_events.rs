//! The events of turns in both APIs, and chunks read back: `just fuzz wire_events`. The oracle says what must
//! hold.

#![no_main]

use libfuzzer_sys::fuzz_target;
use respool::translate::wire_oracle;

fuzz_target!(|input: &[u8]| wire_oracle::check_wire_events(input));
