//! Rules that hold for every text and every split of it. The fuzz targets use the same oracles (`oracle`).
//!
//! `RESPOOL_SCHEMAS=2000` raises the number of random schemas per dialect in the round trips from 100,
//! `RESPOOL_CASES` the number of random texts from 1,000.

mod corpus;
mod floods;
mod round_trip;
mod texts;

use std::sync::Arc;

use proptest::prelude::*;

use self::texts::{broken_texts, near_calls};
use super::{Options, Tools, oracle};

/// Text in which no mark can begin.
fn unmarked() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9 .,;:!?éß漢字🙂()\\-+*/#\n]{0,400}".prop_filter("no dialect begins", |text| {
        let words =
            ["call:", "Action:", "analysis", "commentary", "assistant", "read(", "exec(", "functions."];
        !words.iter().any(|word| text.contains(word))
    })
}

fn cases() -> u32 {
    std::env::var("RESPOOL_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(1000)
}

fn tools() -> Arc<Tools> {
    Arc::new(Tools::from_json(oracle::TOOLS).unwrap())
}

#[test]
fn space_after_an_end_may_come_in_pieces() {
    for token in ["<|return|>", "<|start|><|end|>"] {
        for (space, count) in [("\r\n", 24), ("\u{2028}", 18), (" ", 900), ("\n", 1_100)] {
            for next in ["", "<|", "<|start|>", "x"] {
                let text = format!("{token}{}{next}", space.repeat(count));
                oracle::check(&tools(), Options::default(), &text, &[], false, false);
            }
        }
    }
}

#[test]
fn headers_without_their_end_token_swallow_nothing() {
    for text in
        ["<|channel|>to=final<|tool_call>call:exec{", "<|channel|>[commentary to=analysis{\"path\": \"a\"}"]
    {
        for calls_wanted in [true, false] {
            let options = Options { calls_wanted, ..Options::default() };
            oracle::check(&tools(), options, text, &[], false, false);
        }
    }
}

/// Regression: a property found it. The broken call's note came before that on a name, char by char only.
#[test]
fn notes_may_change_places() {
    let call = " to=functions.read{\"path\":\"a\"}";
    let broken = "<tool_calls:x1>\n<tool_call:x1>read<tool_sep:x1>\n<arg_key:x1>path<<tool_call>/arg_key:x1>\
        <arg_value:x1>b \"c\" <d> 'e' \\ é</arg_value:x1>\n</tool_call:x1>\n</tool_calls:x1>";
    let text = format!("{call}{call}<|start|>{broken}");
    for options in [Options::default(), Options::for_whole_reply()] {
        for cut in [false, true] {
            oracle::check(&tools(), options, &text, &[], cut, false);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_keeps_the_invariants(text in near_calls(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        cut in any::<bool>(), reasoning in any::<bool>()) {
        let cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        oracle::check(&tools(), Options::default(), &text, &cuts, cut, reasoning);
        oracle::check(&tools(), Options::for_whole_reply(), &text, &cuts, cut, reasoning);
    }

    #[test]
    fn broken_calls_keep_the_invariants(text in broken_texts(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        cut in any::<bool>(), reasoning in any::<bool>()) {
        let cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        oracle::check(&tools(), Options::default(), &text, &cuts, cut, reasoning);
        oracle::check(&tools(), Options::for_whole_reply(), &text, &cuts, cut, reasoning);
    }

    #[test]
    fn every_option_keeps_the_invariants(text in near_calls(), calls in any::<bool>(), parallel in any::<bool>(), json in any::<bool>()) {
        let options = Options { calls_wanted: calls, parallel, json_wanted: json, ..Options::default() };
        oracle::check(&tools(), options, &text, &[text.len() / 2], false, false);
    }

    #[test]
    fn arbitrary_text_keeps_the_invariants(text in ".{0,200}", at in any::<prop::sample::Index>()) {
        oracle::check(&tools(), Options::default(), &text, &[at.index(text.len() + 1)], false, false);
    }

    #[test]
    fn near_json_keeps_the_invariants(text in "[\\[{]([\\[\\]{},: ]|\"[a\\\\\"n<:,}]{0,4}\"|'[a\"]{0,3}'|//x\n|true|None|-?[0-9]{1,3}|[a-z]{1,3}){0,16}[\\]}]?") {
        oracle::check_json(&text);
    }

    #[test]
    fn valid_json_is_read_as_it_is(text in "(\"([ -!#-\\[\\]-~]|\\\\[\"\\\\n]|é){0,12}\", ?){1,5}1") {
        oracle::check_json(&format!("[{text}]"));
        oracle::check_json(&format!("{{\"k\": [{text}], \"a\\\"\": {{\"b\" : [{text}] }} }}"));
    }

    #[test]
    fn text_without_marks_is_untouched(text in unmarked()) {
        let turn = oracle::run(&tools(), Options::default(), &[&text], false, false);
        prop_assert_eq!(turn.content, text);
        prop_assert!(turn.calls.is_empty() && turn.notes.is_empty());
    }
}
