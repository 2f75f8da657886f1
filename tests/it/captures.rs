//! Every captured reply of a model server, replayed behind respool: whatever it was, what leaves is flawless
//! or an honest error, and where both forms come from the same turn, both tell the same.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use upstream::replay::{Replay, serve_replay};

use crate::live::direct;
use crate::support::accumulate::{Choice, Rules};
use crate::support::client::{Reply, Request, exchange};
use crate::support::respool::{ONCE, Respool};

/// The essence of a reply: its choices, or the status of its error.
pub(crate) type Told = Result<Vec<Choice>, u16>;

/// The captures of one version, and respool in front of them.
pub(crate) struct Version {
    pub(crate) set: PathBuf,
    pub(crate) replay: Arc<Replay>,
    respool: Respool,
    live: bool,
    _upstream: DropGuard,
}

impl Version {
    /// `settings`: TOML for respool, before its upstream.
    pub(crate) async fn start(set: PathBuf, settings: &str) -> Self {
        let replay = Arc::new(Replay::load(&set).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        tokio::spawn(serve_replay(listener, Arc::clone(&replay), stop.clone()));
        Self {
            set,
            replay,
            respool: Respool::configured(&format!("{settings}\n{ONCE}[[upstream]]\nurl = \"{url}\"")).await,
            live: settings.contains("live"),
            _upstream: stop.drop_guard(),
        }
    }

    /// The request that a capture answered, asked of its recording; none when it was of another route, or no
    /// JSON.
    pub(crate) fn request(&self, model: &str, stream: bool) -> Option<Value> {
        let forms = [format!("{model}.nonstream.req.http"), format!("{model}.req.http")];
        let text = forms.iter().find_map(|file| std::fs::read_to_string(self.set.join(file)).ok());
        let mut body = match text.as_deref().and_then(|text| text.split_once("\r\n\r\n")) {
            Some((head, body)) if head.starts_with("POST /v1/chat/completions ") => {
                serde_json::from_str(body).ok()?
            }
            Some(_) => return None,
            None => without_its_request(),
        };
        if model.starts_with("raw-") {
            // It was asked for unparsed text, as respool asks after a failure of the server's parser.
            body.as_object_mut()?.remove("tool_choice");
        }
        body["model"] = json!(model);
        body["stream"] = json!(stream);
        Some(body)
    }

    /// Asks and judges; an `Err` is the flaw.
    pub(crate) async fn ask(&self, request: &Value) -> Result<Told, String> {
        let reply = exchange(self.respool.address, &Request::chat(request)).await;
        let rules = Rules {
            choices: request["n"].as_u64().map_or(1, |n| n.try_into().unwrap()),
            continuous_usage: request["stream_options"]["continuous_usage_stats"] == true,
            as_it_came: self.live,
            ..Rules::default()
        };
        let told = catch_unwind(AssertUnwindSafe(|| told(&reply, request["stream"] == true, &rules)));
        let told = told.map_err(|panic| panic.downcast_ref::<String>().cloned().unwrap_or_default())?;
        let upstream = self.replay.last_posted().ok_or("upstream was not asked")?;
        let body = String::from_utf8_lossy(&upstream.answer_body);
        let failed =
            upstream.answer_status != 200 || body.contains("\"error\":{") || body.contains("\"error\": {");
        let excused = body.contains("\"finish_reason\":\"length\"") || lost(&upstream.answer_body);
        match &told {
            Ok(_) if failed => Err(format!("a success made of {} {body}", upstream.answer_status)),
            Err(status) if !failed && !excused => Err(format!("status {status} made of {body}")),
            _ => Ok(told),
        }
    }
}

/// True when the server gave nothing of what the model wrote, or a call without arguments that can be used:
/// such a turn may end in an error.
fn lost(body: &[u8]) -> bool {
    let usable = |arguments: &str| {
        let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
        arguments.as_object().is_some_and(|object| !object.is_empty())
    };
    direct(body).values().all(|(reasoning, content, calls, _)| {
        // What is left of a swallowed reply may be the end of its reasoning.
        let content = content.replace("</think>", "");
        let nothing = format!("{reasoning}{content}").trim().is_empty() && calls.is_empty();
        nothing || calls.values().any(|(_, arguments)| !usable(arguments))
    })
}

/// The request of the capture `v0.10.2-serving-code-gptoss`.
fn without_its_request() -> Value {
    let tool = |name: &str, parameter: &str| {
        let properties = json!({parameter: {"type": "string"}});
        let parameters = json!({"type": "object", "properties": properties, "required": [parameter]});
        json!({"type": "function", "function": {"name": name, "parameters": parameters}})
    };
    let messages = json!([{"role": "user", "content": "hi"}]);
    json!({"messages": messages, "tools": [tool("read", "path"), tool("exec", "command")]})
}

fn told(reply: &Reply, stream: bool, rules: &Rules) -> Told {
    if reply.status != 200 {
        reply.error();
        return Err(reply.status);
    }
    let turn = if stream { reply.stream(rules) } else { reply.completion(rules) };
    let mut choices: Vec<Choice> = turn.choices.into_values().collect();
    // Ids are replaced where the recorded one could not be kept.
    choices.iter_mut().flat_map(|choice| &mut choice.tool_calls).for_each(|call| call.id.clear());
    match turn.error {
        Some(error) => Err(error["code"].as_u64().and_then(|code| code.try_into().ok()).unwrap_or_default()),
        None => Ok(choices),
    }
}

/// The directories of captures, one per server, version and model.
pub(crate) fn sets() -> Vec<PathBuf> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let sets_of = |server: &str| {
        let all = std::fs::read_dir(fixtures.join(server)).unwrap();
        let mut sets: Vec<PathBuf> = all.map(|set| set.unwrap().path()).collect();
        sets.sort();
        sets
    };
    ["vllm", "llama.cpp", "sglang"].into_iter().flat_map(sets_of).collect()
}

#[tokio::test]
async fn captured_replies_leave_flawless_in_both_forms() {
    let mut flaws = Vec::new();
    let mut count = 0;
    for set in sets() {
        let version = Version::start(set, "").await;
        for model in version.replay.models() {
            let place = format!("{}/{model}", version.set.file_name().unwrap().display());
            let (Some(whole), Some(stream)) = (version.request(model, false), version.request(model, true))
            else {
                continue;
            };
            let same_turn = whole["tools"].as_array().is_some_and(|tools| !tools.is_empty());
            let whole = version.ask(&whole).await;
            let stream = version.ask(&stream).await;
            count += 1;
            if same_turn && whole.is_ok() && stream.is_ok() && whole != stream {
                flaws.push(format!("{place}: the forms differ: {whole:#?}\n{stream:#?}"));
            }
            flaws.extend(
                [whole.err(), stream.err()].into_iter().flatten().map(|flaw| format!("{place}: {flaw}")),
            );
        }
    }
    assert!(count > 400, "only {count} captures were asked");
    assert!(flaws.is_empty(), "{} flaws in {count} captures:\n{}", flaws.len(), flaws.join("\n\n"));
}
