//! The engine's invariants on arbitrary text: `cargo +nightly fuzz run engine`. The first byte chooses the options.

#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use respool::tool_parser::{Options, Tools, oracle};

static TOOLS: LazyLock<Arc<Tools>> = LazyLock::new(|| Arc::new(Tools::from_json(oracle::TOOLS)));

fuzz_target!(|input: (u8, u16, &str)| {
    let (flags, cut, text) = input;
    let flag = |bit: u8| flags & (1 << bit) != 0;
    let options = Options { calls_wanted: !flag(0), parallel: !flag(1), json_wanted: flag(2), fuzzy: flag(3) };
    let cuts = [usize::from(cut) % (text.len() + 1)];
    oracle::check(&TOOLS, options, text, &cuts, flag(4), flag(5));
});
