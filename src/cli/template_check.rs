//! Checks a model's chat template where the server renders it: llama.cpp's `/apply-template`, vLLM's
//! `/tokenize`. A template that leaves the tools out refuses nothing, and the model knows nothing of them.
//! Called by `check`.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, header};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::findings::Findings;
use adapt::{Consent, find_rule};
use upstream::{Call, Upstream, UpstreamError};

/// How long an upstream has to answer.
pub(super) const PROBE_WITHIN: Duration = Duration::from_secs(10);

/// Words of the rendered conversation. None has a space, so that they survive being cut into tokens.
const SYSTEM: &str = "respoolsystem";
const LATER_SYSTEM: &str = "respoollatersystem";
const TOOL: &str = "respooltool";
const RESULT: &str = "respoolresult";

/// Renders a conversation with tools, and says what the template makes of it.
pub(super) async fn check_template(
    upstream: &Upstream,
    model: &str,
    consent: &Consent,
    findings: &mut Findings,
) {
    let refuses = |what: &str| format!("model {model}: its template refuses {what}");
    let whole = conversation(model, false);
    match render(upstream, &whole).await {
        Rendered::Prompt(prompt) => match problems_of(&prompt).as_slice() {
            [] => findings.ok(&format!("model {model}: its template renders the system message, the tools and their results")),
            problems => problems.iter().for_each(|problem| {
                let todo = "start the server with a template for tools (vLLM: --chat-template, llama.cpp: --jinja), or take another model";
                findings.warn(&format!("model {model}: {problem}"), todo);
            }),
        },
        Rendered::Refused(said) => report_refusal(&refuses("a conversation with tools"), &said, &whole, consent, findings),
        Rendered::Unknown => return,
    }
    let later = conversation(model, true);
    match render(upstream, &later).await {
        Rendered::Prompt(prompt) if !prompt.contains(LATER_SYSTEM) => findings.warn(
            &format!("model {model}: its template leaves out system messages that are not first"),
            "put them into the first one, or take another template",
        ),
        Rendered::Refused(said) => {
            report_refusal(&refuses("a later system message"), &said, &later, consent, findings);
        }
        Rendered::Prompt(_) | Rendered::Unknown => {}
    }
}

fn conversation(model: &str, has_later_system: bool) -> Value {
    let call = json!({"id": "respool01", "type": "function", "function": {"name": TOOL, "arguments": "{\"word\":\"ping\"}"}});
    let mut messages = vec![
        json!({"role": "system", "content": SYSTEM}),
        json!({"role": "user", "content": "ping"}),
        json!({"role": "assistant", "content": "", "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": "respool01", "content": RESULT}),
    ];
    if has_later_system {
        messages.push(json!({"role": "system", "content": LATER_SYSTEM}));
    }
    messages.push(json!({"role": "user", "content": "pong"}));
    let parameters = json!({"type": "object", "properties": {"word": {"type": "string"}}});
    let tool =
        json!({"type": "function", "function": {"name": TOOL, "description": "d", "parameters": parameters}});
    json!({"model": model, "messages": messages, "tools": [tool], "add_generation_prompt": true, "return_token_strs": true})
}

/// Lists the parts that a rendered prompt lacks.
fn problems_of(prompt: &str) -> Vec<&'static str> {
    // The call in the history names the tool once; its declaration does so before the user's words.
    let is_declared = prompt.split("ping").next().is_some_and(|before| before.contains(TOOL))
        || prompt.matches(TOOL).count() > 1;
    let checks = [
        (is_declared, "its template leaves the tools out, so the model does not know them"),
        (prompt.contains(RESULT), "its template leaves the results of tools out"),
        (prompt.contains(SYSTEM), "its template leaves the system message out"),
        (prompt.matches(SYSTEM).count() < 2, "its template renders the system message twice"),
    ];
    checks.into_iter().filter(|(holds, _)| !holds).map(|(_, problem)| problem).collect()
}

/// Reports that the template refuses this conversation, and whether respool may adapt it.
fn report_refusal(refused: &str, said: &str, body: &Value, consent: &Consent, findings: &mut Findings) {
    match find_rule(said, None, &body.to_string(), consent) {
        Some(rule) if consent.allows(&rule) => {
            findings.ok(&format!("{refused}; respool adapts it (`{rule}`, docs/requests.md)"));
        }
        Some(rule) => findings.warn(
            &format!("{refused}: {said}"),
            &format!("{} lets respool adapt it (docs/requests.md)", rule.consent_setting()),
        ),
        None => findings.warn(&format!("{refused}: {said}"), "take another template"),
    }
}

/// The answer of a server that was asked to render a conversation.
enum Rendered {
    Prompt(String),
    /// The template refuses it, with these words.
    Refused(String),
    /// The server does not render.
    Unknown,
}

/// Returns true for words of a template; other failures of a server say nothing about it.
fn is_about_template(said: &str, body: &Value) -> bool {
    let words = said.to_ascii_lowercase();
    words.contains("template")
        || words.contains("jinja")
        || find_rule(said, None, &body.to_string(), &Consent::default()).is_some()
}

async fn render(upstream: &Upstream, body: &Value) -> Rendered {
    for path in ["/apply-template", "/tokenize"] {
        let call = Call {
            method: Method::POST,
            path_and_query: path.into(),
            headers: [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))]
                .into_iter()
                .collect(),
            body: Bytes::from(body.to_string()).into(),
            verbatim: false,
        };
        let Ok(Ok(mut answer)) = timeout(PROBE_WITHIN, upstream.send(call)).await else { continue };
        let status = answer.status();
        if matches!(status.as_u16(), 400 | 422 | 500) {
            let text = answer.read_excerpt().await;
            let said = UpstreamError::from_answer(&upstream.name, status.as_u16(), &text).said;
            let is_refusal = !status.is_server_error() || is_about_template(&said, body);
            return if is_refusal { Rendered::Refused(said) } else { Rendered::Unknown };
        }
        if status.is_success()
            && let Ok(Ok(text)) = timeout(PROBE_WITHIN, answer.read_whole(4 << 20)).await
            && let Some(prompt) = prompt_of(&serde_json::from_slice(&text).unwrap_or_default())
        {
            return Rendered::Prompt(prompt);
        }
    }
    Rendered::Unknown
}

/// The prompt in an answer: llama.cpp's text, or the tokens of vLLM.
fn prompt_of(answer: &Value) -> Option<String> {
    let tokens = || Some(answer["token_strs"].as_array()?.iter().filter_map(Value::as_str).collect());
    answer["prompt"].as_str().map(str::to_owned).or_else(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_prompt_lacks_is_said() {
        let good =
            format!("<sys>{SYSTEM} {{\"name\":\"{TOOL}\"}}<user>ping<call>{TOOL}<tool>{RESULT}<user>pong");
        assert!(problems_of(&good).is_empty());
        let problems = |prompt: &str| problems_of(prompt).len();
        assert_eq!(problems(&good.replacen(TOOL, "", 1)), 1, "the tools");
        assert_eq!(problems(&good.replace(RESULT, "")), 1, "the result");
        assert_eq!(problems(&good.replace(SYSTEM, "")), 1, "no system message");
        assert_eq!(problems(&good.replace(SYSTEM, &SYSTEM.repeat(2))), 1, "two system messages");
        let tokens = json!({"token_strs": ["respool", "tool"]});
        assert_eq!(prompt_of(&tokens).as_deref(), Some(TOOL));
        assert_eq!(prompt_of(&json!({"count": 3})), None);
    }
}
