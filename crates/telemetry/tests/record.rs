//! The rows that requests leave in the usage ledger.

use telemetry::{Outcome, RequestRecord};
use testing::rows::row_of;
use wire::turn::Usage;

fn check(happens: impl FnOnce(&RequestRecord), expected: [&str; 3]) {
    let row = row_of(happens);
    assert_eq!([&*row.outcome, &row.error, &row.error_code], expected);
}

#[test]
fn how_a_request_ended() {
    check(|_| {}, ["client_gone", "", ""]);
    check(RequestRecord::mark_whole, ["ok", "", ""]);
    check(
        |it| it.record_failure(Outcome::Error, "It is down.", Some("code")),
        ["error", "It is down.", "code"],
    );
    // The log has the cause in its own words, where there is one.
    let by_upstream = |it: &RequestRecord| {
        it.record_failed_attempts(Some(500), "box: refused".into());
        it.record_failure(Outcome::Error, "It is down.", Some("code"));
    };
    check(by_upstream, ["error", "box: refused", "code"]);
    let by_loop_guard = |it: &RequestRecord| {
        it.record_loop_stop("repeated");
        it.mark_whole();
    };
    check(by_loop_guard, ["loop_guard", "", ""]);
}

#[test]
fn the_usage_of_a_model_call_includes_discarded_replies() {
    let (first, second) = (Usage { prompt: 7, ..Usage::default() }, Usage { prompt: 9, ..Usage::default() });
    let row = row_of(|it| {
        it.record_second_attempt("empty", "repeat", first);
        it.set_usage(Some(second));
        it.record_model_call_end(true, None, None);
    });
    assert_eq!((row.usage.map(|usage| usage.prompt), &*row.recovery), (Some(16), "empty,repeat"));
}
