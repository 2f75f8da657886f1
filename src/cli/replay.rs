//! `respool replay`: lists the exchanges that `[capture]` kept, and runs the replies of one through this
//! version of respool, with the present configuration, to compare what the client got with what it gets now.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::assembly::app;
use super::failure::Failure;
use super::listing::{ListArgs, Noun};
use super::runtime::new_runtime;
use super::say::{flat_text, say, say_on_stderr};
use super::upstreams::start_replay;
use experts::ExpertsConfig;
use server::{ServerConfig, Stop, build_routes, run_server};
use settings::{Loaded, Settings};
use store::StoreConfig;
use telemetry::capture::Reply;
use telemetry::reply_text::{describe_reply, is_failure};
use telemetry::{CaptureConfig, Captures, Exchange, LogConfig, read_exchange};
use upstream::replay::{Recording, Replay};
use upstream::{Address, UpstreamConfig};
use usage::UsageConfig;
use wire::Object;

#[derive(Args, Debug)]
pub(super) struct ReplayArgs {
    /// The id of a request or its beginning, or the file of a kept exchange; without it, the kept exchanges
    /// are listed
    exchange: Option<String>,
    #[command(flatten)]
    list: ListArgs,
}

pub(super) fn run_replay(loaded: &Loaded, arguments: &ReplayArgs) -> Result<(), Failure> {
    let settings = &loaded.settings;
    let captures = Captures::new(&settings.store.state_dir, settings.capture.clone());
    let Some(name) = &arguments.exchange else {
        list_exchanges(&captures, &arguments.list);
        return Ok(());
    };
    let exchange = find_exchange(&captures, name)?;
    check_exchange(&exchange)?;
    let now = new_runtime()?.block_on(replay_exchange(settings, &exchange))?;
    let upstreams = upstream_names(&exchange);
    let then = describe_reply(&exchange.client_reply, &upstreams);
    let replayed = describe_reply(&now, &upstreams);
    if arguments.list.json {
        say(&format!("{:#}", comparison(&exchange, &then, &replayed)));
    } else {
        show_comparison(&exchange, &then, &replayed);
    }
    if then == replayed { Ok(()) } else { Err(Failure::Reported) }
}

fn list_exchanges(captures: &Captures, arguments: &ListArgs) {
    let kept = captures.newest(usize::MAX);
    let time = |exchange: &Exchange| exchange.at;
    let as_json = |exchange: &Exchange| {
        json!({
            "id": exchange.id, "at": clock::format_time(exchange.at), "key": exchange.key,
            "request": exchange.request, "model": model_of(exchange), "status": exchange.client_reply.status,
            "attempts": exchange.attempts.len(), "cut": exchange.is_cut,
            "stream": exchange.client_reply.is_stream(),
        })
    };
    let width = |text: fn(&Exchange) -> String| kept.iter().map(|it| text(it).chars().count()).max();
    let ids = width(|exchange| exchange.id.clone()).unwrap_or_default();
    let models = width(model_of).unwrap_or_default().max("model".len());
    let line = |exchange: &Exchange| {
        let at = clock::format_time(exchange.at);
        let status = match exchange.client_reply.status {
            0 => "–".to_owned(),
            status => status.to_string(),
        };
        let form = if exchange.client_reply.is_stream() { "stream" } else { "whole" };
        let cut = if exchange.is_cut { "  (cut)" } else { "" };
        let (id, model, key) = (&exchange.id, model_of(exchange), &exchange.key);
        format!("{at}  {id:<ids$}  {status:<6}  {form:<6}  {model:<models$}  {key}{cut}")
    };
    if kept.is_empty() && !arguments.json {
        let dir = captures.dir().display();
        say_on_stderr(&format!("No exchanges are kept in {dir}. Name keys in `[capture]` (docs/replay.md)."));
        return;
    }
    if !arguments.json {
        let (time, id, model) = ("time", "id", "model");
        say(&format!("{time:<20}  {id:<ids$}  status  reply   {model:<models$}  key"));
    }
    arguments.print_rows(kept, Noun("kept exchange", "kept exchanges"), time, as_json, line);
}

fn model_of(exchange: &Exchange) -> String {
    let sent = exchange.attempts.first().map_or("", |first| &*first.sent);
    let request = if exchange.client_request.is_empty() { sent } else { &exchange.client_request };
    let object = Object::parse(request).ok();
    object.and_then(|object| object.string("model")).unwrap_or_default()
}

fn find_exchange(captures: &Captures, name: &str) -> Result<Exchange, Failure> {
    let path = Path::new(name);
    if path.is_file() {
        return read_exchange(path).map_err(|error| format!("{name} cannot be replayed: {error}").into());
    }
    let id = match captures.ids_beginning(name).as_slice() {
        [id] => id.clone(),
        [_, _, ..] if captures.find(name, None).is_none() => {
            return Err(format!("several kept exchanges begin with `{name}`: write more of the id").into());
        }
        _ => name.to_owned(),
    };
    let dir = captures.dir().display();
    captures.find(&id, None).ok_or_else(|| {
        format!(
            "no exchange of the request `{name}` is kept in {dir}. `[capture]` keeps those of the keys that it \
             names (docs/replay.md)"
        )
        .into()
    })
}

/// Checks that an exchange has everything that a replay needs.
fn check_exchange(exchange: &Exchange) -> Result<(), Failure> {
    let why = if exchange.is_cut {
        "it was larger than `capture.max_exchange` and is cut: raise it and keep another one"
    } else if exchange.client_request.is_empty() {
        "it has no request of a client: respool made this request for an agent"
    } else if exchange.attempts.last().is_none_or(|attempt| attempt.reply.status == 0) {
        "the model server that was asked last did not reply, which cannot be repeated"
    } else {
        return Ok(());
    };
    Err(format!("the exchange of the request `{}` cannot be replayed: {why}", exchange.id).into())
}

/// Sends the client's request to a relay of this version whose model server gives the kept replies.
async fn replay_exchange(settings: &Settings, exchange: &Exchange) -> Result<Reply, Failure> {
    telemetry::metrics::install_recorder();
    let stop = Stop::default();
    let home = tempfile::tempdir().map_err(|error| format!("no temporary directory can be made: {error}"))?;
    // How often a server is asked before respool gives up depends on its state at the time.
    let replay =
        Replay::answer_in_order(recordings_of(exchange)?).repeating_last(is_failure(&exchange.client_reply));
    let server = start_replay(Arc::new(replay), &stop.abort).await?;
    let settings = replay_settings(settings, exchange, &server, home.path().to_owned());
    let app = app(&settings, &stop.abort).await.map_err(|found| format!("{found:?}"))?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(|error| error.to_string())?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    let running = tokio::spawn(run_server(listener, build_routes(app), stop.clone()));
    let reply = send_request(&format!("http://{address}"), exchange).await;
    stop.drain.cancel();
    stop.abort.cancel();
    running.await.map_err(|error| error.to_string())?;
    reply.map_err(|error| format!("the request could not be sent to the relay: {error}").into())
}

/// Returns the names of the upstreams that were asked, each once.
fn upstream_names(exchange: &Exchange) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for attempt in &exchange.attempts {
        if !names.contains(&attempt.upstream.as_str()) {
            names.push(&attempt.upstream);
        }
    }
    names
}

fn recordings_of(exchange: &Exchange) -> Result<Vec<Recording>, Failure> {
    let model = model_of(exchange);
    let replied = exchange.attempts.iter().filter(|attempt| attempt.reply.status != 0);
    let recording = |reply: &Reply| {
        let body = reply.body.clone().into();
        Recording::from_parts(&model, reply.status, &reply.content_type, body)
            .map_err(|error| format!("a kept reply cannot be sent: {error}").into())
    };
    replied.map(|attempt| recording(&attempt.reply)).collect()
}

/// Returns the settings that decide how a reply is read, with the upstreams of the attempts and nothing that
/// outlasts the replay.
fn replay_settings(settings: &Settings, exchange: &Exchange, url: &Address, home: PathBuf) -> Settings {
    let upstream =
        |name: &str| UpstreamConfig { name: name.to_owned(), url: url.clone(), ..UpstreamConfig::default() };
    Settings {
        upstreams: upstream_names(exchange).into_iter().map(upstream).collect(),
        relay: settings.relay.clone(),
        server: ServerConfig { limits: settings.server.limits.clone(), ..ServerConfig::default() },
        log: LogConfig { errors_dir: home.join("logs"), ..LogConfig::default() },
        capture: CaptureConfig::default(),
        usage: UsageConfig { keep: std::time::Duration::ZERO, ..UsageConfig::default() },
        experts: ExpertsConfig {
            dir: home.join("experts"),
            workspace: home.join("workspace"),
            ..ExpertsConfig::default()
        },
        store: StoreConfig { state_dir: home, ..StoreConfig::default() },
        ..Settings::default()
    }
}

async fn send_request(address: &str, exchange: &Exchange) -> Result<Reply, reqwest::Error> {
    let path = exchange.request.split_once(' ').map_or("/v1/chat/completions", |(_, path)| path);
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).build()?;
    let request = client.post(format!("{address}{path}")).header("content-type", "application/json");
    let reply = request.body(exchange.client_request.clone()).send().await?;
    let content_type = reply.headers().get("content-type").and_then(|value| value.to_str().ok());
    let (status, content_type) = (reply.status().as_u16(), content_type.unwrap_or_default().to_owned());
    Ok(Reply { status, content_type, body: reply.text().await? })
}

fn show_comparison(exchange: &Exchange, then: &[String], now: &[String]) {
    let key = if exchange.key.is_empty() { String::new() } else { format!(", key {}", exchange.key) };
    let at = clock::format_time(exchange.at);
    say(&flat_text(&format!("{} for {}, {at}{key}", exchange.request, model_of(exchange))));
    say(&flat_text(&format!("Replies that respool {} kept:", exchange.respool)));
    for (index, attempt) in exchange.attempts.iter().enumerate() {
        let Reply { status, content_type, body } = &attempt.reply;
        say(&flat_text(&match status {
            0 => format!("  {}. {}: no reply", index + 1, attempt.upstream),
            _ => format!(
                "  {}. {}: HTTP {status}, {content_type}, {} bytes",
                index + 1,
                attempt.upstream,
                body.len()
            ),
        }));
    }
    say("\nThe client got:");
    then.iter().for_each(|line| say(&format!("  {line}")));
    if then == now {
        say("\nFrom the same replies, it gets the same now.");
        return;
    }
    say("\nFrom the same replies, it gets now:");
    for line in now {
        let mark = if then.contains(line) { ' ' } else { '>' };
        say(&format!("{mark} {line}"));
    }
}

fn comparison(exchange: &Exchange, then: &[String], now: &[String]) -> Value {
    json!({
        "id": exchange.id, "at": clock::format_time(exchange.at), "request": exchange.request,
        "model": model_of(exchange), "kept_by": exchange.respool, "same": then == now, "then": then, "now": now,
    })
}
