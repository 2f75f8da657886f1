//! Floods of white space, backticks and blank lines take time in proportion to their length.

use std::fs;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use crate::{Options, Tools, oracle};

/// Returns the processor time of this thread, where the system tells it: other work on the machine is not in
/// it.
fn time_so_far() -> Duration {
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let counted = fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = counted.and_then(|text| text.split(' ').next()?.parse().ok());
    nanoseconds.map_or_else(|| BEGUN.elapsed(), Duration::from_nanos)
}

/// Time for a text in small pieces grows with its length, not with its square: sixteen times the flood costs
/// less than eighty times as much. (A square would cost 256 times, here minutes.)
#[test]
fn floods_take_linear_time() {
    let tools = Arc::new(Tools::from_json(oracle::TOOLS).unwrap());
    let call = "<tool_call>{\"name\":\"exec\",\"arguments\":{}}</tool_call>";
    let after_text = format!("Hm. {call}");
    for (before, flood) in [
        (call, "\n"),
        (call, " "),
        (after_text.as_str(), " <"),
        ("```python\n", "\n"),
        ("```python\n", " "),
        ("```python\n", "`"),
        ("x ", "`"),
        ("", "`"),
        ("", "\n"),
        ("```json\n", "\n"),
        ("<think>", "\n"),
        ("<|return|>", "\n"),
    ] {
        let time = |length: usize| {
            let text = format!("{before}{}", flood.repeat(length / flood.len()));
            let pieces: Vec<&str> =
                text.as_bytes().chunks(4).map(|piece| std::str::from_utf8(piece).unwrap()).collect();
            let begun = time_so_far();
            oracle::run(&tools, Options::default(), &pieces, false, false);
            time_so_far().saturating_sub(begun)
        };
        let short = time(20_000).max(Duration::from_millis(20));
        let long = time(320_000);
        assert!(long < short * 80, "{before:?} {flood:?}: {short:?}, then {long:?}");
    }
}

/// Once in the square of their number, 100,000 calls took 21 s.
#[test]
fn many_calls_take_linear_time() {
    let text = |count: usize| {
        let call = |index| {
            format!("<tool_call>{{\"name\":\"read\",\"arguments\":{{\"path\":\"{index}\"}}}}</tool_call>")
        };
        (0..count).map(call).collect::<Vec<_>>().concat()
    };
    let tools = Arc::new(Tools::from_json(oracle::TOOLS).unwrap());
    let seconds = |count: usize| {
        let text = text(count);
        let begun = time_so_far();
        let turn = oracle::run(&tools, Options::default(), &[&text], false, false);
        assert_eq!(turn.calls.len(), count);
        time_so_far().saturating_sub(begun).as_secs_f64()
    };
    let (few, many) = (seconds(1_000), seconds(16_000));
    assert!(many < 80.0 * few, "1,000 calls: {few} s; 16,000: {many} s");
}
