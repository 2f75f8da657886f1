//! The page of the rules that adapt requests, from their table.

use std::fmt::Write as _;
use std::path::Path;

use adapt::{FAMILIES, Loss, Switch, UNKNOWN_WORDS, parameter_rows, rows};

const HEAD: &str = "# What servers refuse, and what is sent instead

When a model server refuses a request, respool reads the refusal, makes the smallest change that avoids its
cause, and sends the request again: at most four times, one named cause each. A rule is kept for that server
and model once the changed request has succeeded, also across restarts. The next conversation then goes right
at once; one that is under way keeps the form of its requests, and so the prompt that the server has cached,
unless it is refused itself. After a day, and when the server's version changes, a new conversation is tried
unchanged. `respool upstreams` shows the rules, and `respool upstreams forget NAME` forgets them.

A change that costs an essential part of the meaning needs your consent: the refusal then names the setting.
A rule that was learned before you consent to another one stays until it is forgotten. Smaller losses need no
consent; this page, `respool upstreams` and respool's page name them. Pictures, audio and files need none either,
because they stay in the conversation and every later request would fail: they become a text that says so, unless
`[adapt] media = false` forbids it. Before a model counts as blind or deaf, respool sends it a picture or a sound
that is certainly good: one broken picture takes the sight from no other conversation.

gpt-oss takes only text, and vLLM leaves out its pictures and sounds without a word. For it they become such
texts at once, unless `media` forbids it.

What the server no longer checks, respool checks in the reply, with the client's own schema. It mends what it
can. When a call still breaks the schema, the model is asked again, with a note that names the problem; if that
does not help, the call leaves as it is, and the client answers it. Live replies are not asked again.

This page is generated from the table of rules (`crates/adapt/src/table.rs`); to regenerate it, run
`UPDATE_DOCS=1 cargo test --test it adapt`.

| rule | refused | sent instead | lost | in whose words |
|---|---|---|---|---|
";

const PARAMETERS: &str = "
Rules about single parameters; the first row that names a parameter counts:

| rule | sent instead | lost | in whose words |
|---|---|---|---|
";

const PROOF: &str = "
OpenClaw sends `store: false` with every chat request. Where a server that you trust refuses it, consent to
`parameter.drop:store`. The `store: false` of a client of `/v1/responses`, such as Codex, never goes to the server:
respool itself keeps nothing then (docs/clients.md).

Each row is proven by its words and an example, alone (`crates/adapt/src/refusal.rs` and `table/parameters.rs`) and
through respool: the first turn takes one request more, the next one none, and what needs consent is refused without
it (`tests/it/adapt.rs`). Rules that keep every word are held to it on
random conversations of real clients (`crates/adapt/src/properties.rs`).
";

const DECLARED: &str = "
## Declared for a model

```toml
[models.\"qwen3.6\"]
default = { temperature = 0.7 }           # where the client says nothing
strip = [\"metadata\", \"extra.user\"]     # left out; dots lead into nested fields

[models.\"qwen3.6:nothink\"]
target = \"qwen3.6\"                      # a variant, which clients see in /v1/models
set = { chat_template_kwargs = { enable_thinking = false } }   # whatever the client says
```

`strip` comes first, then `default`, then `set`; tables are joined field by field. A variant adds to what its
target declares. `model`, `messages`, `stream` and `stream_options` cannot be declared.

### Reasoning off, low, high

Clients say in several ways how much a model should reason: `reasoning_effort`, `reasoning.effort`,
`reasoning.enabled`, `thinking`, `enable_thinking`, `think`, and Anthropic's `thinking` on `/v1/messages`.
respool adds the way that the model's family obeys. Other models get the request as it came, unless
`[models.\"X\"] reasoning_off` names the fields that switch reasoning off. Ollama gets `reasoning_effort`. If
`set` decides it, the client's wish changes nothing. When a model reasons all the same, the log says so once.

| family | what it obeys |
|---|---|
";

const STAND_INS: &str = "
## Another model answers

```toml
[models.\"gpt-oss-120b\"]
fallback = [\"gpt-oss-20b\", \"cloud/gpt-5\"]   # `cloud` is the name of an upstream
fallback_after = \"10s\"
vision = \"qwen3-vl\"
```

The next model of `fallback` is asked when the model fails or gives no usable reply, when the prompt does not
fit its window, and when it is busy or starting for longer than `fallback_after`. When a budget is spent, the
first fallback without a price is asked. A request that is at fault itself goes to no other model. Each request
begins with the model that the client named. A request with pictures goes to the model that `vision` names. A
key that may use a model may use its fallbacks.

A stream that has begun goes on with the next model as long as no content, reasoning or call of the first one
has left; a head, the role and heartbeats do not count. The same holds for
[second attempts](recovery.md#second-attempts). Without `stream`, nothing leaves before the whole reply.

The log line says why (`fallback`), and names the model that answered, as the page, the reports and the prices
do. So does the reply: in a chat stream all chunks from then on, on `/v1/responses` the last event. A stream of
`/v1/messages` names its model only in its first event, which may have left before. What the
useless replies of the first model have cost counts at that model's price.

## Who waits for whom

Where an upstream has `max_concurrency`, a person goes before a sub-agent, and that before work in the
background; after 8 turns of the queue a request is as urgent as the next kind, so nothing waits for ever. A
request says what it is in the header `x-respool-priority` or in `metadata.priority`: `interactive` (the
default), `subagent` or `background`. Heartbeats, scheduled jobs and sub-agents of OpenClaw, and sub-agents
and titles of Claude Code, are recognised. `priority` of a key (docs/keys.md) is the most urgent that its
requests may be. A request in the background whose answer has not begun gives its place to a person who comes,
and lines up again, at most three times.

`respool check` says how many requests at a time llama.cpp works on, and what a chat template makes of a
conversation with tools, where the server renders it.
";

fn switch_in_words(switch: Switch) -> String {
    match switch {
        Switch::Effort => "`reasoning_effort`: low, medium, high; it is never off".to_owned(),
        Switch::EffortOrNone => "`reasoning_effort`, with `none` for off".to_owned(),
        Switch::Template(field) => format!("`chat_template_kwargs.{field}`"),
        Switch::Budget => "`chat_template_kwargs.thinking_budget`".to_owned(),
    }
}

fn loss(loss: Loss, lost: &str) -> String {
    match loss {
        Loss::Lossless | Loss::Enforced | Loss::Minor => lost.to_owned(),
        Loss::Lossy => format!("**needs consent**: {lost}"),
        Loss::Media => format!("{lost} (`[adapt] media`)"),
    }
}

/// The words of each server, in a cell of a table.
fn said_by(said: &[(&str, &str)]) -> String {
    let said: Vec<String> =
        said.iter().map(|(server, words)| format!("{server}: “{}”", words.replace('\n', " "))).collect();
    said.join("<br>").replace('|', "\\|")
}

#[test]
fn the_page_of_rules_is_current() {
    let mut page = HEAD.to_owned();
    for row in rows() {
        let said = said_by(row.said);
        writeln!(
            page,
            "| `{}` | {} | {} | {} | {said} |",
            row.rule,
            row.refused,
            row.change,
            loss(row.loss, row.lost)
        )
        .unwrap();
    }
    page.push_str(PARAMETERS);
    for row in parameter_rows() {
        let names: Vec<String> = row.names.iter().map(|name| format!("`{name}`")).collect();
        let rule = format!("`{}{}`", row.rule, row.values);
        let of = if names.is_empty() { String::new() } else { format!(" of {}", names.join(", ")) };
        let said = if row.said == UNKNOWN_WORDS { "below".to_owned() } else { said_by(row.said) };
        writeln!(page, "| {rule}{of} | {} | {} | {said} |", row.change, loss(row.loss, row.lost)).unwrap();
    }
    page.push_str("\nA parameter that a server does not know, here `NAME`, is refused in such words:\n\n");
    UNKNOWN_WORDS.iter().for_each(|words| writeln!(page, "- {}", said_by(&[*words])).unwrap());
    page.push_str(PROOF);
    page.push_str(DECLARED);
    for family in FAMILIES {
        writeln!(page, "| {} | {} |", family.name, switch_in_words(family.switch)).unwrap();
    }
    page.push_str(STAND_INS);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/requests.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let current = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(page == current, "docs/requests.md is not current: run UPDATE_DOCS=1 cargo test --test it adapt");
}
