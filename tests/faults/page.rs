//! docs/faults.md, written from the table.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::table::{CASES, ROWS, Row, Want};
use crate::support::api::OTHERS;

const HEAD: &str = "\
# Faults

What the upstream or the client can do wrong, and what the client then sees. Generated from the table that the tests play
(`tests/faults`); to regenerate it, run `UPDATE_DOCS=1 cargo test --test faults page`.

Each row is played on real sockets on every route (buffered with tools, live with tools, passthrough without), for a client that asks for a
stream and for one that asks for JSON, each time beside a second conversation without faults. Every case must satisfy these conditions:

- it ends in time, with the listed status and code, error event, or right answer (to the last byte);
- the stream is well formed (`tests/it/support/accumulate.rs`), and its text is a prefix of the right answer;
- the upstream request ends within 5 s of the client's, and there are no more upstream requests than permitted;
- the second conversation gets its own right answer, and no word of one conversation appears in another.

Each row is also played on `/v1/responses` and `/v1/messages`. There the upstream is asked for a stream wherever the route can read one, so
the stream columns apply to JSON too: an error is a status, or the event with which that API ends a failed stream.

After all cases, respool has no more descriptors and tasks than before, apart from idle connections to the upstream. The memory of one row
(all its cases at once, with their second conversations) may grow by 48 MiB; by 24 MiB for clients that do not read, and by 96 MiB where
bodies take megabytes.

The limits are small here: `commit_after` 1.5 s, `timeout` of the upstream 8 s, `client_timeout` 3 s, `max_body` 2 MiB;
`recovery.attempts` is 0. *Event* is an error event in a stream that has begun, after a prefix of the right answer; its
`code` is the status. A status that a stream\'s client would get becomes an event when the fault shows after `commit_after`.

";

fn seen(want: Want) -> String {
    match want {
        Want::Answer => "answer".into(),
        Want::Part => "what came".into(),
        Want::AsItCame => "as it came".into(),
        Want::Status(status, "") => format!("{status}"),
        Want::Status(status, code) => format!("{status} `{code}`"),
        Want::Event(status) => format!("event {status}"),
        Want::Failed(status) => format!("fails with {status}"),
        Want::Ended => "an end".into(),
        Want::Bare(status) => format!("{status}, no body"),
        Want::Closed => "closed".into(),
        Want::Nothing => "·".into(),
        Want::Skip => "-".into(),
    }
}

/// One cell for JSON, and one for the stream of each route.
fn cells(row: &Row) -> [String; 4] {
    let [buffered, tools, live, live_json, passed, plain] = row.wants.map(seen);
    assert_eq!(tools, live_json, "{}: without a stream there is no live route", row.name);
    let json = if tools == plain { plain } else { format!("{tools}; without tools {plain}") };
    [json, buffered, live, passed]
}

fn families() -> Vec<&'static str> {
    let mut families: Vec<&str> = ROWS.iter().map(|row| row.family).collect();
    families.dedup();
    families
}

fn page() -> String {
    let cases: usize = ROWS.iter().map(|row| row.cases().count()).sum();
    let others: usize = ROWS.iter().flat_map(|row| OTHERS.map(|api| row.cases_of(api).count())).sum();
    let (rows, families) = (ROWS.len() - 1, families());
    let mut page = HEAD.to_owned();
    writeln!(
        page,
        "**{rows} faults in {} families, {cases} cases of chat completions, {others} of the other APIs.**\n",
        families.len() - 1
    )
    .unwrap();
    for family in families {
        writeln!(page, "## {family}\n\n| fault | what happens | JSON | stream, buffered | stream, live | stream, passthrough |").unwrap();
        page.push_str("|-|-|-|-|-|-|\n");
        for row in ROWS.iter().filter(|row| row.family == family) {
            let [json, buffered, live, passed] = cells(row);
            let what = row.what.replace('|', "\\|");
            writeln!(page, "| {} | {what} | {json} | {buffered} | {live} | {passed} |", row.name).unwrap();
        }
        page.push('\n');
    }
    page + super::measured::TEXT
}

#[test]
fn the_page_of_faults_is_current() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/faults.md");
    let page = page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let current = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        page == current,
        "docs/faults.md is not current: run UPDATE_DOCS=1 cargo test --test faults page"
    );
}

#[test]
fn the_table_is_what_it_says() {
    let names: BTreeSet<&str> = ROWS.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names.len(), ROWS.len(), "a name is used twice");
    assert!(ROWS.len() > 60 && ROWS.iter().all(|row| row.cases().count() <= CASES.len()));
}
