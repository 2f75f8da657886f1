//! The table of keys: every key of the configuration, with its type, default, meaning and an example.
//!
//! It drives the checks, the reading of the environment, `config show` and the generated page; a test holds it against
//! the structs. To add a key, add a field to its module's struct and a row here.

mod schema;

pub(super) use schema::{Node, Section, schema};

use crate::agent::{OnDisconnect, Parser, Progress, ReadFirst};
use crate::alerts::{QuietHours, Rule, SinkKind};
use crate::observe::{Level, LogFormat};
use crate::relay::{FinalErrors, OnOverflow, ReasoningField, ToolParsing, ToolsMode};
use crate::server::Listen;
use crate::tools::{SandboxMode, Verdict};
use crate::upstream::{Address, OwnWire};

/// One key of the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its path: `limits.max_body`, `upstream[].url` (a list of tables), `models.<ID>.target` (a name of the user's).
    pub path: &'static str,
    /// What one value is.
    pub scalar: Scalar,
    /// One value or several.
    pub shape: Shape,
    /// The default as TOML; empty when there is none.
    pub default: &'static str,
    /// What it means that the key is not set; only where there is no default.
    pub unset: &'static str,
    /// True when its section is of no use without it.
    pub required: bool,
    /// True when it is never shown.
    pub secret: bool,
    /// What it is for.
    pub meaning: &'static str,
    /// A value as TOML.
    pub example: &'static str,
}

/// What one value is.
#[derive(Clone, Copy, Debug)]
pub enum Scalar {
    /// Text, not empty where it is a value of its own.
    Text,
    /// A path; a leading `~/` is the home directory.
    Path,
    /// One of these words.
    Word(&'static [&'static str]),
    /// `true` or `false`.
    Switch,
    /// A whole number, at least this.
    Count(u64),
    /// A number between these.
    Number(f64, f64),
    /// A duration with unit; `false` when it may not be zero.
    Duration(bool),
    /// A size with unit, not zero.
    Size,
    /// Text of a form: what the form is called, and its parser.
    Form(&'static str, fn(&str) -> Result<(), String>),
}

/// One value or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One.
    One,
    /// A list.
    List,
    /// A table whose keys are the user's.
    Table,
}

impl Key {
    const fn new(path: &'static str, scalar: Scalar, default: &'static str, meaning: &'static str) -> Self {
        let (shape, required, secret) = (Shape::One, false, false);
        Self { path, scalar, shape, default, unset: "", required, secret, meaning, example: default }
    }

    const fn optional(
        path: &'static str,
        scalar: Scalar,
        unset: &'static str,
        example: &'static str,
        meaning: &'static str,
    ) -> Self {
        Self { unset, example, ..Self::new(path, scalar, "", meaning) }
    }

    const fn required(
        path: &'static str,
        scalar: Scalar,
        example: &'static str,
        meaning: &'static str,
    ) -> Self {
        Self { required: true, example, ..Self::new(path, scalar, "", meaning) }
    }

    const fn of(self, shape: Shape) -> Self {
        Self { shape, ..self }
    }

    const fn example(self, example: &'static str) -> Self {
        Self { example, ..self }
    }

    const fn secret(self) -> Self {
        Self { secret: true, ..self }
    }

    /// True when the value is written as text, so that the environment's text is taken as it is.
    pub(super) fn is_text(&self) -> bool {
        let other = matches!(self.scalar, Scalar::Switch | Scalar::Count(_) | Scalar::Number(..));
        self.shape == Shape::One && !other
    }

    /// The key's own name: the last part of its path.
    pub fn name(&self) -> &'static str {
        self.path.rsplit('.').next().unwrap_or(self.path)
    }

    /// The path of the section that it is in; empty for the top.
    pub fn section(&self) -> &'static str {
        self.path.rsplit_once('.').map_or("", |(section, _)| section)
    }
}

const ADDRESS: Scalar = Scalar::Form("an address", |text| text.parse::<Listen>().map(drop));
const BASE_URL: Scalar = Scalar::Form("a base URL", |text| text.parse::<Address>().map(drop));
const HTTP_URL: Scalar = Scalar::Form("an http or https URL", http_url);
const HOST: Scalar = Scalar::Form("a host name", host);
const HEADER: Scalar = Scalar::Form("text that fits into an HTTP header", header);
const PARSER: Scalar = Scalar::Form("a parser", |text| text.parse::<Parser>().map(drop));

/// An amount, in the currency of all prices.
const MONEY: Scalar = Scalar::Number(0.0, 1_000_000_000.0);

const ORIGIN: Scalar = Scalar::Form("an origin", origin);
const QUIET: Scalar = Scalar::Form("quiet hours", |text| text.parse::<QuietHours>().map(drop));
const ROUTE: Scalar = Scalar::Form("a route", route);
const REQUEST_RULE: Scalar = Scalar::Form("a rule of docs/requests.md", request_rule);
const RULE: Scalar = Scalar::Form("a rule", rule);

/// A rule's name, or its beginning and `*`.
fn request_rule(text: &str) -> Result<(), String> {
    if text.ends_with('*') {
        Ok(())
    } else {
        text.parse::<crate::adapt::Rule>().map(drop).map_err(|unknown| unknown.to_string())
    }
}

fn route(text: &str) -> Result<(), String> {
    let path = text.strip_suffix("/*").unwrap_or(text);
    let is_route = path.starts_with('/') && !path.contains(['*', '?', '#', ' ']);
    let wrong = || {
        format!(
            "{text:?} is no route: write a path, as \"/v1/files\", with `/*` at its end for everything below"
        )
    };
    is_route.then_some(()).ok_or_else(wrong)
}

fn origin(text: &str) -> Result<(), String> {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or_default();
    let is_origin =
        !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._:[]".contains(c));
    let wrong =
        || format!("{text:?} is no origin: write scheme and host alone, as \"https://llm.example.org\"");
    is_origin.then_some(()).ok_or_else(wrong)
}

fn rule(text: &str) -> Result<(), String> {
    let known = || Rule::ALL.iter().map(|rule| rule.as_str()).collect::<Vec<_>>().join(", ");
    Rule::named(text)
        .map(drop)
        .ok_or_else(|| format!("there is no rule {text:?}. Available rules: {}", known()))
}

fn http_url(text: &str) -> Result<(), String> {
    match text.parse::<Address>()? {
        Address::Http { .. } => Ok(()),
        Address::Replay(_) => Err(format!("{text:?} is no URL: write it as \"http://127.0.0.1:18789\"")),
    }
}

fn host(text: &str) -> Result<(), String> {
    let is_name = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
    let wrong = || format!("{text:?} is not a host name: write the name alone, as \"llm.example.org\"");
    is_name.then_some(()).ok_or_else(wrong)
}

/// Credentials end up in a header; this never repeats the text.
fn header(text: &str) -> Result<(), String> {
    match http::HeaderValue::from_str(text) {
        Ok(_) if !text.is_empty() => Ok(()),
        Ok(_) => Err("it is empty; write it or leave the key out".into()),
        Err(_) => Err("it holds a character that an HTTP header cannot carry, perhaps a line end".into()),
    }
}

/// Every key, in the order of the documentation.
pub const KEYS: &[Key] = &[
    Key::new("listen", ADDRESS, r#""127.0.0.1:8003""#, "Where respool listens, HOST:PORT. Port 0 takes any free port; without a host it is loopback."),
    Key::new("trusted_hosts", HOST, "[]", "Names under which respool answers when `listen` is loopback, beside addresses, `localhost`, names without a dot or of a private network, and the machine's own. Checked where clients have no keys, for agents and runs, and for all where an upstream has an `api_key` (docs/security.md).").of(Shape::List).example(r#"["llm.example.org"]"#),
    Key::new("trusted_origins", ORIGIN, "[]", "Origins under which a proxy shows the page, where it does not pass the host name on (docs/operating.md).").of(Shape::List).example(r#"["https://llm.example.org"]"#),
    Key::new("client_keys", HEADER, "[]", "Each client must send one of these keys as `authorization: Bearer KEY` on every route but `/health`, `/ready` and `/metrics`. respool does not pass them on to upstreams (docs/operating.md).").of(Shape::List).secret().example(r#"["sk-team-a", "sk-team-b"]"#),
    Key::optional("client_keys_env", Scalar::Text, "`client_keys` holds", r#""RESPOOL_CLIENT_KEYS""#, "The environment variable that holds the keys, separated by commas or spaces."),
    Key::optional("client_keys_file", Scalar::Path, "no keys with names", r#""/etc/respool/keys.toml""#, "The file of named keys and what each of them allows: models, agents, requests a minute, tokens a day, requests at a time (docs/operating.md). It is read again when it changes."),
    Key::optional("operator_keys_env", Scalar::Text, "the key in `RESPOOL_OPERATOR_KEY`; without one, no client is an operator", r#""RESPOOL_OPERATOR_KEYS""#, "The environment variable that holds operator keys, separated by commas or spaces. They are client keys too; operators see and end the runs of all clients, and decide about approvals. Without `client_keys` of any form, other clients of a loopback address need no key."),
    Key::new("allow_unauthenticated", Scalar::Switch, "false", "Let respool start on an address other than loopback without client keys. Anybody who can reach the address can then use its models and agents, and an upstream's `api_key`."),
    Key::new("allow_admin_routes", Scalar::Switch, "false", "Pass on all routes of the model server, also those that change it, such as `/sleep`, `/collective_rpc` and `/v1/load_lora_adapter` (docs/operating.md). If there are operator keys, the routes that respool does not know are for operators only."),
    Key::new("pass_routes", ROUTE, "[]", "Routes of the model server to pass on besides those for inference and information that respool knows (docs/operating.md). `/*` at the end stands for everything below.").of(Shape::List).example(r#"["/v1/files", "/v1/files/*"]"#),
    Key::new("tools_mode", Scalar::Word(ToolsMode::NAMES), r#""buffered""#, "How respool asks for a reply with tools: whole (`buffered`) or as a stream (`live`)."),
    Key::new("tool_parsing", Scalar::Word(ToolParsing::NAMES), r#""server""#, "Who reads tool calls in the model's text: the server's parser first (`server`), or respool alone (`raw`)."),
    Key::new("reasoning", Scalar::Word(ReasoningField::NAMES), r#""reasoning_content""#, "The field in which clients get reasoning; `drop` removes it."),
    Key::new("keep_fields", Scalar::Text, "[]", "Reply fields to keep although OpenAI's API has no such field.").of(Shape::List).example(r#"["prompt_logprobs"]"#),
    Key::optional("state_dir", Scalar::Path, "the platform's state directory, `~/.local/state/respool`", r#""/var/lib/respool""#, "The directory that keeps agents' runs, clients' responses and usage records."),
    Key::optional("upstream[].name", Scalar::Text, "host and port of `url`", r#""box""#, "What logs, metrics and agents call it."),
    Key::required("upstream[].url", BASE_URL, r#""http://127.0.0.1:8000""#, "The server, with or without `/v1`; or `replay:DIR` for recorded replies. If no upstream is configured, it is `http://127.0.0.1:8000`."),
    Key::optional("upstream[].api_key", HEADER, "the client's own key goes along", r#""sk-local""#, "The key that is sent instead of the client's.").secret(),
    Key::optional("upstream[].api_key_env", Scalar::Text, "`api_key` holds", r#""VLLM_API_KEY""#, "The environment variable that holds the key."),
    Key::optional("upstream[].models", Scalar::Text, "what its `/v1/models` says", r#"["gpt-oss-120b"]"#, "The models it serves. It then gets no others, if there are several upstreams.").of(Shape::List),
    Key::new("upstream[].weight", Scalar::Count(1), "1", "Its share of the conversations among upstreams that serve the same model."),
    Key::new("upstream[].wires", Scalar::Word(OwnWire::NAMES), "[]", "The APIs that the server is to answer itself, `responses` or `messages`: they are passed on as they are. respool answers the others from chat completions (docs/clients.md).").of(Shape::List).example(r#"["responses"]"#),
    Key::optional("upstream[].max_concurrency", Scalar::Count(1), "no limit", "64", "How many requests it gets at a time; further requests wait in a queue."),
    Key::new("upstream[].max_queue", Scalar::Count(0), "128", "With `max_concurrency`: how many requests may wait for a free slot; any further request gets a 429 that says when to try again."),
    Key::optional("upstream[].timeout", Scalar::Duration(false), "as long as it takes", r#""30m""#, "How long one request may take in total."),
    Key::optional("models.<ID>.target", Scalar::Text, "the id is the model's own", r#""gpt-oss-120b""#, "The model that this id is another name for."),
    Key::optional("models.<ID>.tools_mode", Scalar::Word(ToolsMode::NAMES), "as for all models", r#""live""#, "As `tools_mode`, for this model."),
    Key::optional("models.<ID>.tool_parsing", Scalar::Word(ToolParsing::NAMES), "as for all models", r#""raw""#, "As `tool_parsing`, for this model."),
    Key::optional("models.<ID>.reasoning", Scalar::Word(ReasoningField::NAMES), "as for all models", r#""drop""#, "As `reasoning`, for this model."),
    Key::optional("models.<ID>.dialects", Scalar::Text, "what its name and the server's list tell", r#"["harmony"]"#, "The ways of writing tool calls that it uses (docs/dialects.md). They are tried first; others are still read.").of(Shape::List),
    Key::optional("models.<ID>.response_template", Scalar::Text, "the parser finds its dialect", r#"'{"fields": {"content": {}, "tool_calls": {"open": "<call>", "close": "</call>", "content": "json"}}}'"#, "Hugging Face's `response_template` of this model, which describes the marks of its reasoning, answer and calls: the path of a JSON file (the template or a `tokenizer_config.json` with one), or the JSON itself. Calls in other forms are still read. The server must not strip the marks (`tool_parsing = \"raw\"`). A live reply is read when it is whole. No server reports its template."),
    Key::optional("models.<ID>.wires", Scalar::Word(OwnWire::NAMES), "as its upstreams say", r#"["messages"]"#, "As `wires` of an upstream, for this model.").of(Shape::List),
    Key::optional("models.<ID>.context_window", Scalar::Count(1), "what the upstream's `/v1/models` says (`max_model_len`)", "32768", "How many tokens prompt and reply may have together."),
    Key::new("limits.max_body", Scalar::Size, r#""32MiB""#, "The largest request body; a larger one is answered with 413."),
    Key::new("limits.max_bodies", Scalar::Size, r#""512MiB""#, "The room for all request bodies together, while requests are read, wait or stream. A request that finds no room waits a few seconds, then gets 503 with `Retry-After`."),
    Key::new("limits.max_tool_results", Scalar::Count(1), "500", "Tool results since the last real user message after which respool ends the loop."),
    Key::new("limits.max_repeats", Scalar::Count(1), "8", "Identical consecutive tool calls (or cycles of two or three) after which respool ends the loop; the model is warned at half of them. For one tool that is tried in vain with changing arguments, four times as many."),
    Key::new("limits.commit_after", Scalar::Duration(true), r#""2s""#, "How long respool waits for a silent upstream's true status before it sends a stream's head."),
    Key::new("limits.heartbeat", Scalar::Duration(false), r#""10s""#, "The pause between heartbeats while the upstream is silent."),
    Key::new("limits.client_timeout", Scalar::Duration(false), r#""1m""#, "How long a client may take to send a request's head, pause within a body, or read nothing of a reply. A body may take a second more for each 8 KiB of it."),
    Key::new("limits.drain", Scalar::Duration(true), r#""30s""#, "How long streams in progress may continue after SIGTERM."),
    Key::new("recovery.attempts", Scalar::Count(0), "2", "How many more times respool asks the model after an unusable reply. In a long turn it asks a few times more, unless this is 0."),
    Key::new("recovery.within", Scalar::Duration(false), r#""10m""#, "After this time from the arrival of the request, respool neither starts another attempt nor waits for one."),
    Key::new("recovery.wait_for_upstream", Scalar::Duration(true), r#""1m""#, "How long a request waits for an upstream that is starting, or that asks with `Retry-After` to be left alone. With fallback models in OpenClaw: `\"0s\"`, for they are tried afterwards."),
    Key::new("recovery.final_errors", Scalar::Word(FinalErrors::NAMES), r#""auto""#, "The form of an error after the last attempt. `auto`: OpenClaw, Codex and Claude Code get it in a form that stops them from sending the request again. `plain`: every client gets the true status."),
    Key::new("recovery.reasoning_memory", Scalar::Switch, "true", "Put back the reasoning of a tool turn if the client dropped it, as long as its tool loop lasts."),
    Key::new("context.on_overflow", Scalar::Word(OnOverflow::NAMES), r#""pass""#, "What to do with a request that is larger than the model's window: pass on the server's error (`pass`), so that the client shortens it, or shorten it here (`trim`): the oldest tool results first, then the oldest messages."),
    Key::new("adapt.lossy", REQUEST_RULE, "[]", "Changes of a request that cost a part of its meaning and are allowed where a server refuses it (docs/requests.md). `*` at the end stands for every rule that begins so. The refusal names the rule.").of(Shape::List).example(r#"["parameter.drop:tool_choice", "messages.system_as_user"]"#),
    Key::new("adapt.media", Scalar::Switch, "true", "Replace pictures, audio and files by a text that says so where a model takes none. Otherwise every later request of the conversation fails, too."),
    Key::new("log.format", Scalar::Word(LogFormat::NAMES), r#""auto""#, "The form of log lines on standard error: `auto` is short lines for a person on a terminal and JSON elsewhere; `text` has every value."),
    Key::new("log.level", Scalar::Word(Level::NAMES), r#""info""#, "The lowest level that is logged."),
    Key::new("log.content", Scalar::Switch, "false", "Write message text to the log."),
    Key::optional("log.file", Scalar::Path, "standard error only", r#""/var/log/respool.jsonl""#, "A file that gets the same lines as JSON."),
    Key::new("log.errors_dir", Scalar::Path, r#""logs""#, "The directory of agents' daily error reports, `YYYY-MM-DD-errors.md`."),
    Key::new("runs.keep", Scalar::Duration(false), r#""30d""#, "How long a run is kept after its last event."),
    Key::new("runs.max_size", Scalar::Size, r#""1GiB""#, "How much space all runs may take; beyond it, finished runs are deleted, the oldest first. At least `1MiB`."),
    Key::new("responses.store", Scalar::Switch, "true", "Whether responses of `/v1/responses` are kept, prompts included, in `state_dir`; for clients that do not say `store: false`. `previous_response_id`, `item_reference` and `background` need it (docs/clients.md)."),
    Key::new("responses.keep", Scalar::Duration(false), r#""30d""#, "How long a response is kept after it was created or last continued."),
    Key::new("responses.max_size", Scalar::Size, r#""1GiB""#, "How much space all responses may take; beyond it, the least recently used ones are deleted."),
    Key::new("usage.keep", Scalar::Duration(true), r#""90d""#, "How long usage records are kept, one row without content for each request and model call; `0s` keeps none."),
    Key::new("usage.max_size", Scalar::Size, r#""1GiB""#, "How much space usage records may take; beyond it, the oldest are deleted. At least `1MiB`."),
    Key::new("usage.compare", Scalar::Text, r#"["gpt-5.6", "gpt-5-mini", "claude-sonnet-5-5", "groq/gpt-oss-120b"]"#, "The models whose prices the same tokens are compared with: those of `[prices]` and of the list of public prices.").of(Shape::List),
    Key::optional("usage.price_list", Scalar::Path, "the list that comes with respool", r#""/etc/respool/prices.toml""#, "A list of public prices (docs/operating.md)."),
    Key::optional("prices.<NAME>.input", MONEY, "nothing is paid", "0.15", "What a million prompt tokens of this model cost. A model without a price runs on your own hardware."),
    Key::optional("prices.<NAME>.cached_input", MONEY, "as `input`", "0.075", "What a million cached prompt tokens cost."),
    Key::optional("prices.<NAME>.output", MONEY, "nothing is paid", "0.6", "What a million reply tokens cost, reasoning included."),
    Key::optional("prices.<NAME>.monthly", MONEY, "nothing is counted", "120.0", "Only in `[prices.own]`: what your own hardware costs a month."),
    Key::optional("prices.<NAME>.watts", MONEY, "nothing is counted", "350.0", "Only in `[prices.own]`: the power it draws while a model is working."),
    Key::optional("prices.<NAME>.kwh", MONEY, "nothing is counted", "0.3", "Only in `[prices.own]`: what a kilowatt-hour costs."),
    Key::optional("budgets.day", MONEY, "no limit", "5.0", "What all requests together may cost in a UTC day, at the prices of `[prices]`; for your own hardware only electricity counts."),
    Key::optional("budgets.key", MONEY, "no limit", "2.0", "What the requests of each key may cost in a UTC day."),
    Key::optional("budgets.agent", MONEY, "no limit", "1.0", "What the runs of each agent may cost in a UTC day."),
    Key::new("budgets.keys", MONEY, "{}", "The same for certain keys, by their names.").of(Shape::Table).example("{ alice = 3.0 }"),
    Key::new("budgets.agents", MONEY, "{}", "The same for certain agents, by their names.").of(Shape::Table).example("{ helper = 0.5 }"),
    Key::new("budgets.warn_at", Scalar::Number(0.0, 1.0), "0.8", "The share of a budget at which respool warns."),
    Key::new("alerts.repeat", Scalar::Duration(false), r#""4h""#, "How long respool waits before it repeats an alert that is still open."),
    Key::new("alerts.group", Scalar::Duration(true), r#""5s""#, "Alerts that begin within this time are one message."),
    Key::optional("alerts.quiet", QUIET, "no quiet hours", r#""22:00-07:00""#, "Hours, in UTC, in which nothing is sent; alerts that are still open afterwards are sent then."),
    Key::new("alerts.disabled", RULE, "[]", "Rules that are not looked at (docs/operating.md lists them).").of(Shape::List).example(r#"["first_byte_slow"]"#),
    Key::optional("alerts.link", HTTP_URL, "the listen address", r#""http://box.lan:8003""#, "The page's address, for the link in messages."),
    Key::required("alerts.sink[].type", Scalar::Word(SinkKind::NAMES), r#""ntfy""#, "Where alerts go."),
    Key::optional("alerts.sink[].url", Scalar::Text, "`command` needs none", r#""https://ntfy.example.org/respool""#, "The webhook, the topic of ntfy, OpenClaw's gateway, or the mail server (`smtps://HOST`, `smtp://HOST?tls=required`)."),
    Key::optional("alerts.sink[].token", HEADER, "none is sent", r#""secret""#, "The token that is sent as `authorization: Bearer`, or the password of the mail server.").secret(),
    Key::optional("alerts.sink[].token_env", Scalar::Text, "`token` holds", r#""NTFY_TOKEN""#, "The environment variable that holds it."),
    Key::optional("alerts.sink[].user", Scalar::Text, "no login", r#""respool""#, "The user of the mail server."),
    Key::optional("alerts.sink[].from", Scalar::Text, "only `email` needs it", r#""respool <respool@example.org>""#, "The sender of mails."),
    Key::optional("alerts.sink[].to", Scalar::Text, "only `email` and `openclaw` have it", r#""owner@example.org""#, "The receiver of mails, or the target of OpenClaw's message."),
    Key::optional("alerts.sink[].channel", Scalar::Text, "the gateway's own", r#""telegram""#, "The channel of OpenClaw's message."),
    Key::new("alerts.sink[].program", Scalar::Text, "[]", "The program of `command` and its arguments; it gets JSON on its standard input.").of(Shape::List).example(r#"["/usr/local/bin/page-me"]"#),
    Key::optional("otlp.endpoint", HTTP_URL, "no traces are sent", r#""http://127.0.0.1:4318""#, "The collector that gets traces, OTLP over HTTP (docs/operating.md). Without a path, `/v1/traces` is added."),
    Key::optional("otlp.headers_env", Scalar::Text, "no headers of its own", r#""OTLP_HEADERS""#, "The environment variable with headers for the collector, `name=value` separated by commas."),
    Key::optional("experts.dir", Scalar::Path, "`~/.openclaw/experts`", r#""~/.openclaw/experts""#, "The directory of expert packages (docs/experts.md)."),
    Key::optional("experts.workspace", Scalar::Path, "`~/.openclaw/workspace`", r#""~/.openclaw/workspace""#, "The directory in whose `expert-state/NAME` an expert keeps its state."),
    Key::optional("experts.model", Scalar::Text, "experts are not served", r#""gpt-oss-120b""#, "The upstream model that experts use. If it is set, they are served as `expert/NAME` and their processes are executed."),
    Key::optional("experts.upstream", Scalar::Text, "any that serves the model", r#""box""#, "The upstream to ask, by name."),
    Key::new("experts.max_iterations", Scalar::Count(1), "60", "The maximum number of model calls in one run of an expert."),
    Key::new("experts.max_tokens", Scalar::Count(1), "4096", "The maximum number of tokens in one reply to an expert."),
    Key::new("experts.runs_at_once", Scalar::Count(1), "50", "How many processes are executed at a time."),
    Key::new("experts.lease", Scalar::Duration(false), r#""30s""#, "How long an invocation stays claimed; the process that executes it renews the claim. If that process ends, another one takes over its invocations once their claims have expired."),
    Key::new("experts.dedupe_window", Scalar::Duration(false), r#""1d""#, "How long an event with the same dedupe key counts as the same event."),
    Key::optional("experts.<NAME>.model", Scalar::Text, "as for all experts", r#""gpt-oss-120b""#, "The upstream model that this expert uses."),
    Key::optional("experts.<NAME>.upstream", Scalar::Text, "as for all experts", r#""box""#, "The upstream to ask, by name, for this expert."),
    Key::optional("experts.<NAME>.max_iterations", Scalar::Count(1), "as for all experts", "60", "The maximum number of model calls in one run of this expert."),
    Key::optional("experts.<NAME>.max_tokens", Scalar::Count(1), "as for all experts", "4096", "The maximum number of tokens in one reply to this expert."),
    Key::new("experts.<NAME>.hook_secret_env", Scalar::Text, "{}", "The environment variables with the secrets of webhooks, by the trigger's name; at least 16 characters each. A trigger that is not in it has a generated secret (docs/experts.md).").of(Shape::Table).example(r#"{ new_mail = "MAIL_HOOK_SECRET" }"#),
    Key::optional("experts.<NAME>.dedupe_window", Scalar::Duration(false), "as for all experts", r#""1d""#, "How long an event with the same dedupe key counts as the same event, for this expert."),
    Key::required("agents.<NAME>.model", Scalar::Text, r#""gpt-oss-120b""#, "The upstream model that the agent uses."),
    Key::optional("agents.<NAME>.upstream", Scalar::Text, "any that serves the model", r#""box""#, "The upstream to ask, by name."),
    Key::optional("agents.<NAME>.system_prompt_file", Scalar::Path, "no system prompt of its own", r#""prompts/researcher.md""#, "The file that holds the system prompt."),
    Key::new("agents.<NAME>.tools", Scalar::Text, "[]", "The tools it may use: names, `gateway:NAME`, `mcp:SERVER/TOOL` or `mcp:SERVER/*` (docs/tools.md).").of(Shape::List).example(r#"["read", "exec", "web_search", "mcp:files/*"]"#),
    Key::new("agents.<NAME>.parsers", PARSER, r#"["native"]"#, "How calls are found, in this order: `native`, the name of a dialect, `guided_json`, `react`, `markers`, `fuzzy`.").of(Shape::List).example(r#"["native", "harmony", "fuzzy"]"#),
    Key::new("agents.<NAME>.read_first", Scalar::Word(ReadFirst::NAMES), r#""content""#, "The field in which respool looks for calls first."),
    Key::new("agents.<NAME>.temperature", Scalar::Number(0.0, 2.0), "0.25", "The sampling temperature."),
    Key::new("agents.<NAME>.max_tokens", Scalar::Count(1), "1000", "The maximum number of tokens in one reply."),
    Key::new("agents.<NAME>.max_iterations", Scalar::Count(1), "5", "The maximum number of iterations in one run, each a model call and its tool calls; after that, one last call without tools gives the answer."),
    Key::optional("agents.<NAME>.token_budget", Scalar::Count(1), "no limit", "200000", "The maximum number of tokens in one run, prompts and replies together."),
    Key::new("agents.<NAME>.run_timeout", Scalar::Duration(false), r#""300s""#, "How long a run may work, including its last answer; waiting for its client does not count."),
    Key::new("agents.<NAME>.model_timeout", Scalar::Duration(false), r#""60s""#, "How long one model call may take."),
    Key::new("agents.<NAME>.tool_timeout", Scalar::Duration(false), r#""30s""#, "How long one tool may take, unless `tools.timeouts` says otherwise."),
    Key::new("agents.<NAME>.result_limit", Scalar::Size, r#""32KiB""#, "How much of a tool's result the model gets, unless `tools.result_limits` says otherwise."),
    Key::new("agents.<NAME>.pause", Scalar::Duration(true), r#""0s""#, "The pause between iterations."),
    Key::new("agents.<NAME>.progress", Scalar::Word(Progress::NAMES), r#""reasoning""#, "What the client sees of the work before the answer."),
    Key::new("agents.<NAME>.on_disconnect", Scalar::Word(OnDisconnect::NAMES), r#""cancel""#, "What happens to a run whose client went away."),
    Key::optional("tools.local.workspace", Scalar::Path, "no local tools", r#""~/work""#, "The directory that local tools cannot leave."),
    Key::new("tools.local.pass_env", Scalar::Text, "[]", "Environment variables that commands get beside their usual ones (docs/tools.md). A name passes whatever it holds; a pattern with `*` passes nothing that looks like a secret.").of(Shape::List).example(r#"["CARGO_*", "VIRTUAL_ENV"]"#),
    Key::new("tools.local.sandbox", Scalar::Word(SandboxMode::NAMES), r#""auto""#, "The sandbox for commands: as much as the kernel permits (`auto`), no start without one that protects files (`require`), or none (`off`); docs/tools.md says what each level stops."),
    Key::optional("tools.local.network", Scalar::Switch, "`false` for agents, `true` in `respool chat`", "true", "Whether commands in the sandbox have a network."),
    Key::new("tools.local.readable", Scalar::Path, "[]", "Files and directories that commands in the sandbox may read beside the workspace, the system's and those of tools.").of(Shape::List).example(r#"["/srv/data"]"#),
    Key::new("tools.local.writable", Scalar::Path, "[]", "Files and directories that commands in the sandbox may write beside the workspace and the usual caches.").of(Shape::List).example(r#"["~/builds"]"#),
    Key::new("tools.local.unprotected_repositories", Scalar::Switch, "false", "Whether commands may write a workspace with a git repository where bubblewrap is missing, although they can then change the repository's hooks and configuration."),
    Key::optional("tools.gateway.url", HTTP_URL, "no gateway tools", r#""http://127.0.0.1:18789""#, "OpenClaw's gateway."),
    Key::optional("tools.gateway.token", HEADER, "no token is sent", r#""secret""#, "The gateway's token or password.").secret(),
    Key::optional("tools.gateway.token_env", Scalar::Text, "`token` holds", r#""OPENCLAW_GATEWAY_TOKEN""#, "The environment variable that holds the token."),
    Key::optional("tools.gateway.session_key", Scalar::Text, "the gateway's main session", r#""agent:main:main""#, "The session for which tools run."),
    Key::optional("tools.mcp.<NAME>.command", Scalar::Text, "`url` holds", r#""npx""#, "The program of an MCP server on standard input and output."),
    Key::new("tools.mcp.<NAME>.args", Scalar::Text, "[]", "Its arguments.").of(Shape::List).example(r#"["-y", "@modelcontextprotocol/server-filesystem", "."]"#),
    Key::new("tools.mcp.<NAME>.env", Scalar::Text, "{}", "Its environment, beside `PATH`, `HOME` and their like; respool's own is not passed on.").of(Shape::Table).secret().example(r#"{ API_TOKEN = "secret" }"#),
    Key::optional("tools.mcp.<NAME>.url", HTTP_URL, "`command` holds", r#""https://mcp.example.org/mcp""#, "An MCP server over streamable HTTP."),
    Key::new("tools.mcp.<NAME>.headers", HEADER, "{}", "Headers sent to `url`.").of(Shape::Table).secret().example(r#"{ Authorization = "Bearer secret" }"#),
    Key::new("tools.policy.default", Scalar::Word(Verdict::NAMES), r#""ask""#, "What applies if no rule matches. `ask` counts as a denial if there is nobody to ask."),
    Key::optional("tools.policy.rule[].tool", Scalar::Text, "any tool", r#""exec""#, "The tool's name; `*` stands for any text. The first matching rule decides: `allow` needs everything that the call touches to match, `deny` and `ask` any part of it."),
    Key::optional("tools.policy.rule[].command", Scalar::Text, "any command", r#""git *""#, "A pattern for the command line; `*` stands for any text without operators (docs/tools.md)."),
    Key::optional("tools.policy.rule[].path", Scalar::Text, "any path", r#""src/**""#, "A pattern for the path in the workspace; `**` crosses folders, `*` does not."),
    Key::optional("tools.policy.rule[].host", Scalar::Text, "any host", r#""*.example.org""#, "A pattern for the host."),
    Key::new("tools.policy.rule[].free_text", Scalar::Text, "[]", "Arguments of the gateway's and MCP servers' tools that hold text and nothing else: the rule's patterns need not speak of them (docs/tools.md).").of(Shape::List).example(r#"["note"]"#),
    Key::required("tools.policy.rule[].then", Scalar::Word(Verdict::NAMES), r#""allow""#, "What the rule says."),
    Key::new("tools.timeouts", Scalar::Duration(false), "{}", "How long a tool may take, by its name; `*` for any text in it.").of(Shape::Table).example(r#"{ exec = "2m", "mcp:files/*" = "10s" }"#),
    Key::new("tools.result_limits", Scalar::Size, "{}", "How much of a tool's result the model gets, by its name; `*` for any text in it.").of(Shape::Table).example(r#"{ web_fetch = "64KiB" }"#),
];
