//! `respool requests`: lists recorded requests from the rows on disk or in the database, while a server may
//! write more.

use std::io;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::failure::Failure;
use super::listing::{ListArgs, Noun, align_rows};
use super::running::{say_shown_alone, warn_of_unkept_records};
use super::running_requests::{describe_long_requests, list_running_requests};
use super::runtime::new_runtime;
use super::say::{columns_of, flat_text, say, say_on_stderr, say_sentences};
use relay::RelayConfig;
use server::{describe_fallback, describe_reason, describe_remedy, describe_repairs, describe_wait};
use settings::{Loaded, Settings};
use store::{Dimension, RequestQuery, Store, StoreError, UsageRows as _, UsageStore};
use usage::RunningRequest;
use wire::UsageRow;

#[derive(Args, Debug)]
pub(super) struct RequestsArgs {
    #[command(flatten)]
    pub(super) list: ListArgs,
    /// List the requests that the running respool works on now, the oldest first
    #[arg(long, conflicts_with_all = ["failed", "repaired", "outcome", "error", "text", "since"])]
    running: bool,
    /// List only failed requests
    #[arg(long, conflicts_with = "outcome")]
    failed: bool,
    /// List only requests that respool repaired: calls were read from text or repaired, the model was asked
    /// again, or a loop was ended
    #[arg(long)]
    repaired: bool,
    /// List only requests that ended in this way
    #[arg(long, value_parser = ["ok", "error", "client_gone", "loop_guard", "shutdown"])]
    outcome: Option<String>,
    /// List only requests in which an attempt failed with this code
    #[arg(long, value_name = "CODE")]
    error: Option<String>,
    /// List only requests that were for this model, or that it answered
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// List only requests of this client key
    #[arg(long, value_name = "NAME")]
    key: Option<String>,
    /// List only requests that this upstream was asked
    #[arg(long, value_name = "NAME")]
    upstream: Option<String>,
    /// List only requests for this agent or expert
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// List only requests that reached this node
    #[arg(long, value_name = "NAME", conflicts_with = "running")]
    node: Option<String>,
    /// List only requests that contain this text in an id, error, repair or name
    #[arg(long, default_value = "", hide_default_value = true)]
    text: String,
}

impl RequestsArgs {
    /// Returns true for a request in progress that the options name.
    fn selects(&self, request: &RunningRequest) -> bool {
        let is_wanted = |wanted: &Option<String>, name: &str| wanted.as_ref().is_none_or(|it| it == name);
        is_wanted(&self.model, &request.model)
            && is_wanted(&self.key, &request.key)
            && is_wanted(&self.upstream, &request.upstream)
            && is_wanted(&self.agent, &request.agent)
    }
}

/// Executes `respool requests`.
pub(super) fn list_requests(loaded: &Loaded, arguments: &RequestsArgs) -> Result<(), Failure> {
    if arguments.running {
        list_running_requests(&loaded.settings, &arguments.list, |request| arguments.selects(request));
        return Ok(());
    }
    let limit = arguments.list.limit;
    let runtime = new_runtime()?;
    let query = request_query(arguments, &loaded.settings.relay);
    let (mut rows, place) = runtime.block_on(find_rows(&loaded.settings, query))?;
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    if arguments.list.json {
        say(&format!("{:#}", rows.iter().map(row_json).collect::<Value>()));
        return Ok(());
    }
    describe_long_requests(&loaded.settings).iter().for_each(|long| say_on_stderr(long));
    for line in table_lines(&rows, columns_of(io::stdout())) {
        let line = flat_text(&line);
        if line.starts_with(NOTE) { say_sentences(&line) } else { say(&line) }
    }
    let count = Noun("request", "requests").count_things(rows.len());
    say_on_stderr(&match (rows.is_empty(), has_more) {
        (true, _) => {
            format!("No such requests in {place}. `respool serve` records them unless `[usage] keep` is 0s.")
        }
        (_, true) => format!("the newest {count}; --limit COUNT lists more"),
        _ => count,
    });
    Ok(())
}

/// Finds the rows, and where they are: those of all nodes in the database, or else this node's own.
async fn find_rows(settings: &Settings, query: RequestQuery) -> Result<(Vec<UsageRow>, String), Failure> {
    let config = &settings.store;
    if config.store.url.is_some() {
        let of_all = async {
            let store = Store::open_in_place(config)?;
            let Some(shared) = store.shared_usage() else { return Ok((Vec::new(), store.place())) };
            Ok::<_, StoreError>((shared.find(query.clone()).await?, store.place()))
        };
        match of_all.await {
            Ok(found) => {
                warn_of_unkept_records(settings).await;
                return Ok(found);
            }
            Err(error) => say_shown_alone(&error),
        }
    } else {
        warn_of_unkept_records(settings).await;
    }
    let rows = UsageStore::open_to_read(&config.state_dir)?.find(query).await?;
    Ok((rows, config.state_dir.display().to_string()))
}

fn request_query(arguments: &RequestsArgs, relay: &RelayConfig) -> RequestQuery {
    let outcome = arguments.outcome.clone().or_else(|| arguments.failed.then(|| "error".to_owned()));
    let chosen = [
        (Dimension::Outcome, outcome),
        (Dimension::Error, arguments.error.clone()),
        (Dimension::Key, arguments.key.clone()),
        (Dimension::Upstream, arguments.upstream.clone()),
        (Dimension::Agent, arguments.agent.clone()),
        (Dimension::Node, arguments.node.clone()),
    ];
    let chosen = chosen.into_iter().filter_map(|(dimension, value)| Some((dimension, value?)));
    let models = arguments.model.iter().flat_map(|model| relay.names_of(model));
    RequestQuery {
        since: arguments.list.since.map(clock::time_ago).unwrap_or_default(),
        only: chosen.chain(models.map(|name| (Dimension::Model, name.to_owned()))).collect(),
        text: arguments.text.clone(),
        repaired: arguments.repaired,
        most: arguments.list.limit.saturating_add(1),
        ..RequestQuery::default()
    }
}

fn row_json(row: &UsageRow) -> Value {
    let list = |names: &str| names.split(',').filter(|name| !name.is_empty()).collect::<Value>();
    json!({
        "at": clock::format_time(row.at), "id": row.id, "route": row.route, "refused": row.details.refused, "passed": row.details.passed, "client": row.details.client,
        "outcome": row.outcome,
        "status": row.status, "error_code": row.error_code, "error": row.error, "key": row.key,
        "model": row.model, "upstream": row.upstream, "agent": row.agent, "run": row.run, "node": row.node, "stream": row.stream,
        "attempts": row.attempts, "earlier_attempts": row.details.earlier_attempts, "fallback": row.details.fallback,
        "dialects": list(&row.dialects), "repairs": list(&row.repairs), "dropped": list(&row.details.dropped),
        "recovery": list(&row.recovery), "loop_stopped": row.loop_stopped,
        "trimmed": row.details.trimmed, "prefix_lost": row.details.prefix_lost,
        "prompt_tokens": row.usage.map(|usage| usage.prompt),
        "completion_tokens": row.usage.map(|usage| usage.completion),
        "first_byte_ms": row.first_byte.map(clock::to_millis), "waited_ms": clock::to_millis(row.waited),
        "duration_ms": clock::to_millis(row.duration),
    })
}

/// The last one is left out where no request names its node.
const HEADS: [&str; 10] =
    ["time", "outcome", "status", "model", "key", "upstream", "tokens", "seconds", "id", "node"];
/// The columns of texts.
const TEXTS: [usize; 7] = [0, 1, 3, 4, 5, 8, 9];
/// The columns of a narrow terminal; the others are in the notes.
const NARROW: [usize; 6] = [0, 1, 2, 3, 6, 7];

/// The beginning of a line below a request.
const NOTE: &str = "    ";

fn cells(row: &UsageRow) -> Vec<String> {
    let or_dash = |text: &str| if text.is_empty() { "–".to_owned() } else { text.to_owned() };
    let outcome = if row.error_code.is_empty() { &row.outcome } else { row.error_code.as_str() };
    let status = match (row.status, &*row.outcome) {
        (0, _) => String::new(),
        // The reply had begun.
        (200, "error") => "in stream".to_owned(),
        (status, _) => status.to_string(),
    };
    vec![
        clock::format_time(row.at),
        outcome.to_owned(),
        or_dash(&status),
        or_dash(if row.model.is_empty() { row.details.request_line() } else { &row.model }),
        or_dash(if row.key.is_empty() { &row.details.client } else { &row.key }),
        or_dash(&row.upstream),
        row.usage.map_or_else(|| "–".to_owned(), |usage| usage.total_tokens().to_string()),
        format!("{:.1}", row.duration.as_secs_f64()),
        row.id.clone(),
        or_dash(&row.node),
    ]
}

/// The shortest wait that is named.
const NOTABLE_WAIT: Duration = Duration::from_secs(1);

/// Returns the lines below a request: the error, and what went before its last attempt.
fn notes(row: &UsageRow) -> impl Iterator<Item = String> {
    let error = Some(&row.error).filter(|error| !error.is_empty()).cloned();
    let fallback =
        (!row.details.fallback.is_empty()).then(|| format!("in place of {}", describe_fallback(row)));
    let mut named = "";
    let earlier = row.details.earlier_attempts.iter();
    let earlier = earlier.map(|attempt| {
        // Attempts of one request mostly fail alike.
        let is_known = attempt.error.is_empty() || attempt.error == named;
        let error = if is_known { String::new() } else { format!(": {}", attempt.error) };
        named = &attempt.error;
        let remedy = Some(&attempt.remedy).filter(|remedy| !remedy.is_empty());
        let remedy = remedy.map(|remedy| format!("; {}", describe_remedy(remedy))).unwrap_or_default();
        format!("{} ({}{error}{remedy})", attempt.upstream, describe_reason(&attempt.why))
    });
    let earlier: Vec<String> = earlier.collect();
    let earlier = (!earlier.is_empty()).then(|| format!("asked before: {}", earlier.join("; ")));
    let waited = (row.waited >= NOTABLE_WAIT)
        .then(|| format!("waited {:.1} s {}", row.waited.as_secs_f64(), describe_wait(row)));
    // The line of earlier attempts says it in full.
    let is_told = earlier.is_some();
    let row_of_repairs = is_told.then(|| UsageRow { recovery: String::new(), attempts: 1, ..row.clone() });
    let repairs =
        Some(describe_repairs(row_of_repairs.as_ref().unwrap_or(row))).filter(|repairs| !repairs.is_empty());
    let lost = Some(&row.details.prefix_lost).filter(|lost| !lost.is_empty());
    let lost =
        lost.map(|lost| format!("the prompt differs from that of the conversation's last request: {lost}"));
    [error, repairs, fallback, earlier, waited, lost]
        .into_iter()
        .flatten()
        .map(|note| format!("{NOTE}{note}"))
}

/// Returns the cells of a narrow terminal; of the time, only that of the day.
fn narrow_cells(cells: &[String]) -> Vec<String> {
    let time = cells[0].get(11..19).unwrap_or(&cells[0]);
    std::iter::once(time)
        .chain(NARROW[1..].iter().map(|column| cells[*column].as_str()))
        .map(str::to_owned)
        .collect()
}

/// Returns the note with the cells that a narrow terminal has no column for.
fn narrow_note(cells: &[String]) -> String {
    let named =
        |word: &str, cell: &str| if cell == "–" { String::new() } else { format!(" {word} {cell}") };
    let date = cells[0].get(..10).unwrap_or_default();
    let node = cells.get(9).map(|node| named("on node", node)).unwrap_or_default();
    format!("{NOTE}id {}, on {date}{}{}{node}", cells[8], named("by", &cells[4]), named("at", &cells[5]))
}

/// Writes a heading, a line for each request, and its notes below it; `width` is that of the terminal.
fn table_lines(rows: &[UsageRow], width: Option<usize>) -> Vec<String> {
    if rows.is_empty() {
        return Vec::new();
    }
    let heads = HEADS.map(str::to_owned).to_vec();
    let mut all: Vec<Vec<String>> = std::iter::once(heads).chain(rows.iter().map(cells)).collect();
    if rows.iter().all(|row| row.node.is_empty()) {
        all.iter_mut().for_each(|cells| cells.truncate(HEADS.len() - 1));
    }
    let mut aligned = align_rows(&all, |column| TEXTS.contains(&column));
    let is_narrow = width.is_some_and(|width| aligned.iter().any(|line| line.chars().count() > width));
    if is_narrow {
        let narrow: Vec<Vec<String>> = all.iter().map(|cells| narrow_cells(cells)).collect();
        aligned = align_rows(&narrow, |column| TEXTS.contains(&NARROW[column]));
    }
    let mut lines = vec![aligned.remove(0)];
    for ((row, cells), line) in rows.iter().zip(&all[1..]).zip(aligned) {
        lines.push(line);
        lines.extend(is_narrow.then(|| narrow_note(cells)));
        lines.extend(notes(row));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::EarlierAttempt;

    #[test]
    fn a_failure_is_explained_below_its_line() {
        let good = UsageRow {
            id: "r1".into(),
            at: 1_795_223_698_000,
            outcome: "ok".into(),
            status: 200,
            model: "qwen".into(),
            duration: Duration::from_millis(1_250),
            ..UsageRow::default()
        };
        let bad = UsageRow {
            id: "r2".into(),
            outcome: "error".into(),
            status: 503,
            error_code: "upstream_refused".into(),
            error: "upstream `box` refused the connection".into(),
            key: "alice".into(),
            upstream: "box".into(),
            ..good.clone()
        };
        let of_node = UsageRow { node: "b".into(), ..bad.clone() };
        assert!(table_lines(std::slice::from_ref(&of_node), None)[1].ends_with("  r2  b"));
        let narrow = table_lines(&[of_node], Some(60));
        assert_eq!(narrow[2], "    id r2, on 2026-11-21 by alice at box on node b");
        let mut moved = good.clone();
        let failed = EarlierAttempt {
            upstream: "box".into(),
            why: "failover".into(),
            error: "HTTP 500".into(),
            ..EarlierAttempt::default()
        };
        moved.details.earlier_attempts =
            vec![failed.clone(), EarlierAttempt { why: "fallback".into(), ..failed }];
        moved.details.fallback = "big:7b:failed".into();
        moved.waited = Duration::from_millis(2_500);
        let found = table_lines(&[moved], None);
        let waited = "    waited 2.5 s for a free place, or for the upstream to return";
        assert_eq!(
            found[2..],
            [
                "    in place of big:7b (failed)",
                "    asked before: box (the server failed, so another one was asked: HTTP 500); box (another model was asked in its place)",
                waited
            ]
        );
        let expected = [
            "time                  outcome           status  model  key    upstream  tokens  seconds  id",
            "2026-11-21T01:14:58Z  upstream_refused     503  qwen   alice  box            –      1.2  r2",
            "    upstream `box` refused the connection",
            "2026-11-21T01:14:58Z  ok                   200  qwen   –      –              –      1.2  r1",
        ];
        assert_eq!(table_lines(&[bad.clone(), good.clone()], None), expected);
        let mended = UsageRow { dialects: "hermes".into(), repairs: "renamed".into(), ..good };
        let expected = [
            "time      outcome           status  model  tokens  seconds",
            "01:14:58  upstream_refused     503  qwen        –      1.2",
            "    id r2, on 2026-11-21 by alice at box",
            "    upstream `box` refused the connection",
            "01:14:58  ok                   200  qwen        –      1.2",
            "    id r1, on 2026-11-21",
            "    read from text (hermes); repaired: renamed",
        ];
        assert_eq!(table_lines(&[bad, mended], Some(60)), expected);
    }

    #[test]
    fn json_lists_what_was_done() {
        let row = row_json(&UsageRow { dialects: "hermes".into(), ..UsageRow::default() });
        assert_eq!((&row["dialects"], &row["recovery"]), (&json!(["hermes"]), &json!([])));
    }

    /// Regression: two lines said it.
    #[test]
    fn why_a_model_was_asked_again_is_said_once() {
        let useless = EarlierAttempt {
            upstream: "box".into(),
            why: "empty_reply".into(),
            remedy: "correction".into(),
            ..EarlierAttempt::default()
        };
        let mut again =
            UsageRow { recovery: "empty_reply,correction".into(), attempts: 2, ..UsageRow::default() };
        again.details.earlier_attempts = vec![useless];
        assert_eq!(
            table_lines(&[again], None)[2..],
            ["    asked before: box (the reply was empty; it got a note about the fault)"]
        );
    }

    #[test]
    fn options_select_rows() {
        use clap::Parser;
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            arguments: RequestsArgs,
        }
        let line = ["x", "--failed", "--repaired", "--key", "alice", "--text", "refused", "--limit", "3"];
        let relay: RelayConfig = toml::from_str("[models.fast]\ntarget = 'qwen'").unwrap();
        let query = request_query(&Line::parse_from(line).arguments, &relay);
        let only = vec![(Dimension::Outcome, "error".to_owned()), (Dimension::Key, "alice".to_owned())];
        assert_eq!((query.only, &*query.text, query.most, query.since), (only, "refused", 4, 0));
        assert!(query.repaired);
        let of_model = request_query(&Line::parse_from(["x", "--model", "qwen"]).arguments, &relay);
        let names: Vec<&str> = of_model.only.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["qwen", "fast"], "a request under its other name is for it, too");
        assert!(Line::try_parse_from(["x", "--failed", "--outcome", "ok"]).is_err());
    }
}
