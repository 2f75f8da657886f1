//! `respool requests --running`: lists the requests that the running respool works on, as it noted them in
//! its state directory a moment ago.

use std::time::Duration;

use serde_json::{Value, json};

use super::listing::{ListArgs, Noun, align_rows};
use super::running::{find_listener, is_answering};
use super::say::{flat_text, say, say_on_stderr};
use settings::Settings;
use usage::{RunningList, RunningRequest};

/// The age of a request that is named above other lists, in milliseconds.
const LONG: u64 = 120_000;

const HEADS: [&str; 8] = ["for", "phase", "model", "key", "upstream", "agent", "attempts", "id"];

/// Executes `respool requests --running`.
pub(super) fn list_running_requests(
    settings: &Settings,
    arguments: &ListArgs,
    selects: impl Fn(&RunningRequest) -> bool,
) {
    let now = clock::now();
    let list = RunningList::read(&settings.store.state_dir, now);
    let wanted: Vec<&RunningRequest> = list.requests.iter().filter(|it| selects(it)).collect();
    let shown = &wanted[..wanted.len().min(arguments.limit)];
    if arguments.json {
        let all = shown.iter().map(|request| request_json(request, now));
        return say(&format!("{:#}", all.collect::<Value>()));
    }
    table_lines(shown, now).iter().for_each(|line| say(&flat_text(line)));
    let listen = find_listener(settings);
    let count = Noun("request", "requests");
    say_on_stderr(&match (list.count, shown.len()) {
        (0, _) if !is_answering(&listen) => {
            format!("No respool answers at {listen}, so nothing is in progress.")
        }
        (0, _) => "No request is in progress.".to_owned(),
        (all, shown) if shown < all => format!("{shown} of {} in progress", count.count_things(all)),
        (all, _) => format!("{} in progress", count.count_things(all)),
    });
}

/// Says that requests have been in progress for long; `None`: none has been.
pub(super) fn describe_long_requests(settings: &Settings) -> Option<String> {
    let now = clock::now();
    describe_list(&RunningList::read(&settings.store.state_dir, now), now)
}

fn describe_list(list: &RunningList, now: u64) -> Option<String> {
    let oldest = list.requests.first().filter(|oldest| now.saturating_sub(oldest.since) >= LONG)?;
    let place = if oldest.upstream.is_empty() { String::new() } else { format!(" at {}", oldest.upstream) };
    let are = if list.count == 1 { "is" } else { "are" };
    Some(format!(
        "{} {are} in progress, the oldest for {}{place}: `respool requests --running` lists them.",
        Noun("request", "requests").count_things(list.count),
        describe_age(oldest, now)
    ))
}

fn describe_age(request: &RunningRequest, now: u64) -> String {
    let seconds = Duration::from_millis(now.saturating_sub(request.since)).as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3_600),
    }
}

fn table_lines(requests: &[&RunningRequest], now: u64) -> Vec<String> {
    if requests.is_empty() {
        return Vec::new();
    }
    let or_dash = |text: &str| if text.is_empty() { "–".to_owned() } else { text.to_owned() };
    let cells = |request: &&RunningRequest| {
        let texts = [&request.phase, &request.model, &request.key, &request.upstream, &request.agent];
        let mut cells = vec![describe_age(request, now)];
        cells.extend(texts.map(|text| or_dash(text)));
        cells.extend([request.attempts.to_string(), request.id.clone()]);
        cells
    };
    let heads = HEADS.map(str::to_owned).to_vec();
    let rows: Vec<Vec<String>> = std::iter::once(heads).chain(requests.iter().map(cells)).collect();
    align_rows(&rows, |column| column != 0 && column != 6)
}

fn request_json(request: &RunningRequest, now: u64) -> Value {
    json!({
        "at": clock::format_time(request.since), "id": request.id, "route": request.route, "key": request.key,
        "model": request.model, "upstream": request.upstream, "agent": request.agent, "run": request.run,
        "phase": request.phase, "attempts": request.attempts,
        "duration_ms": now.saturating_sub(request.since),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_requests_are_named() {
        let request = |since, upstream: &str| RunningRequest {
            id: "r1".into(),
            since,
            model: "qwen".into(),
            upstream: upstream.into(),
            phase: "waiting for the model".into(),
            attempts: 1,
            ..RunningRequest::default()
        };
        let (now, oldest) = (1_000_000, request(550_000, "gpu1"));
        let list = |requests: Vec<RunningRequest>| RunningList { at: now, count: requests.len(), requests };
        let expected = "2 requests are in progress, the oldest for 7 min at gpu1: `respool requests --running` lists them.";
        let both = list(vec![oldest.clone(), request(990_000, "gpu2")]);
        assert_eq!(describe_list(&both, now).as_deref(), Some(expected));
        assert_eq!(describe_list(&list(vec![request(990_000, "gpu2")]), now), None);
        assert_eq!(describe_list(&list(vec![]), now), None);
        assert_eq!(
            table_lines(&[&oldest, &request(990_000, "")], now),
            [
                "  for  phase                  model  key  upstream  agent  attempts  id",
                "7 min  waiting for the model  qwen   –    gpu1      –             1  r1",
                " 10 s  waiting for the model  qwen   –    –         –             1  r1",
            ]
        );
    }
}
