//! Reads answers of OpenClaw's `/tools/invoke`. Pure.
//!
//! Errors come in two forms: `{"ok":false,"error":{"type","message"}}` from the tool surface,
//! `{"error":{"message","type"}}` from the HTTP layer before it (a wrong token, a body that is not JSON, and
//! on 2026.2.26 a missing name).

use serde_json::Value;

use super::super::contract::{ToolError, ToolOutput};

/// Reads the output or the error in an answer.
pub(super) fn read_answer(
    tool: &str,
    status: u16,
    retry_after: Option<&str>,
    body: &str,
) -> Result<ToolOutput, ToolError> {
    let json: Option<Value> = serde_json::from_str(body).ok();
    let error = json.as_ref().and_then(|json| json.get("error")).filter(|error| error.is_object());
    match (status, &json) {
        (200, Some(json)) if error.is_none() && json.get("ok") != Some(&Value::Bool(false)) => {
            Ok(ToolOutput { text: text_of(json.get("result").unwrap_or(json)), ..ToolOutput::default() })
        }
        _ => Err(tool_error(tool, status, retry_after, json.is_some(), &error_message(error, body))),
    }
}

/// Returns the texts of a result; a note for each other part; without parts, the result itself.
fn text_of(result: &Value) -> String {
    let Some(parts) = result.get("content").and_then(Value::as_array).filter(|parts| !parts.is_empty())
    else {
        return match result.get("details").unwrap_or(result) {
            Value::String(text) => text.clone(),
            other => format!("{other:#}"),
        };
    };
    let texts = parts.iter().map(|part| match part["text"].as_str() {
        Some(text) => text.to_owned(),
        None => describe_part(part),
    });
    texts.collect::<Vec<_>>().join("\n")
}

fn describe_part(part: &Value) -> String {
    let kind = part["type"].as_str().unwrap_or("part");
    let media = part["mimeType"].as_str().unwrap_or("unknown type");
    let size = part["data"].as_str().map_or(0, |data| data.len() / 4 * 3);
    format!("[{kind}, {media}, {size} bytes: not shown]")
}

fn error_message(error: Option<&Value>, body: &str) -> String {
    let of_error = error.and_then(|error| error["message"].as_str());
    let text = of_error.unwrap_or(body).trim();
    text[..text.floor_char_boundary(500)].to_owned()
}

fn tool_error(tool: &str, status: u16, retry_after: Option<&str>, is_json: bool, message: &str) -> ToolError {
    let failed = |text: String| ToolError::Failed(text);
    match status {
        401 => failed(
            "OpenClaw's gateway refuses respool's token (401): the operator has to set tools.gateway.token or token_env"
                .to_owned(),
        ),
        403 => ToolError::Denied(format!("OpenClaw does not let `{tool}` run: {message}")),
        404 if is_json => failed(format!(
            "OpenClaw offers no tool {tool:?} here (404): it does not know it, or its policy denies it, or the tool is \
             not among those it offers over HTTP (gateway.tools.allow). It does not say which."
        )),
        404 => failed("there is no /tools/invoke at tools.gateway.url (404): is this OpenClaw's gateway?".to_owned()),
        408 => ToolError::Transient("OpenClaw's gateway gave up waiting for the request (408)".to_owned()),
        413 => failed("the arguments are too large for OpenClaw (413)".to_owned()),
        429 => {
            let when = retry_after.map_or_else(String::new, |after| format!("; it says to retry after {after} s"));
            ToolError::Unreachable(format!("OpenClaw's gateway takes no requests for now (429){when}"))
        }
        500 => ToolError::Transient(format!(
            "`{tool}` failed in OpenClaw: {message}. Only the gateway's log has the reason; often a provider is not \
             set up, or an address is private"
        )),
        501..=599 => ToolError::Transient(format!("OpenClaw's gateway failed ({status}): {message}")),
        200 => failed(format!("`{tool}` failed in OpenClaw: {message}")),
        _ => failed(format!("OpenClaw refuses the call of `{tool}` ({status}): {message}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(status: u16, body: &str, expected: Result<&str, ToolError>) {
        let expected = expected.map(|text| ToolOutput { text: text.into(), ..ToolOutput::default() });
        match (read_answer("x", status, Some("7"), body), expected) {
            (Err(found), Err(expected)) => {
                assert_eq!(std::mem::discriminant(&found), std::mem::discriminant(&expected), "{found:?}");
                assert!(found.text().contains(expected.text()), "{found:?}");
            }
            (found, expected) => assert_eq!(found, expected),
        }
    }

    #[test]
    fn results() {
        check(
            200,
            r#"{"ok":true,"result":{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"details":{}}}"#,
            Ok("a\nb"),
        );
        check(
            200,
            r#"{"ok":true,"result":{"content":[{"type":"image","mimeType":"image/png","data":"AAAAAAAA"}]}}"#,
            Ok("[image, image/png, 6 bytes: not shown]"),
        );
        check(200, r#"{"ok":true,"result":{"content":[],"details":{"n":1}}}"#, Ok("{\n  \"n\": 1\n}"));
        check(200, r#"{"ok":true,"result":"plain"}"#, Ok("plain"));
    }

    #[test]
    fn errors_of_both_forms() {
        let failed = |text: &str| Err(ToolError::Failed(text.into()));
        let transient = |text: &str| Err(ToolError::Transient(text.into()));
        check(
            200,
            r#"{"ok":false,"error":{"type":"tool_error","message":"no"}}"#,
            failed("failed in OpenClaw: no"),
        );
        check(200, "<html>", failed("<html>"));
        check(
            400,
            r#"{"ok":false,"error":{"type":"invalid_request","message":"tools.invoke requires name"}}"#,
            failed("(400): tools.invoke requires name"),
        );
        check(
            400,
            r#"{"error":{"message":"not valid JSON","type":"invalid_request_error"}}"#,
            failed("not valid JSON"),
        );
        check(
            401,
            r#"{"error":{"message":"Unauthorized","type":"unauthorized"}}"#,
            failed("tools.gateway.token"),
        );
        check(
            403,
            r#"{"ok":false,"error":{"type":"tool_call_blocked","message":"needs approval","requiresApproval":true}}"#,
            Err(ToolError::Denied("needs approval".into())),
        );
        check(
            404,
            r#"{"ok":false,"error":{"type":"not_found","message":"Tool not available: x"}}"#,
            failed(
                "does not know it, or its policy denies it, or the tool is not among those it offers over HTTP",
            ),
        );
        check(404, "Not Found", failed("is this OpenClaw's gateway?"));
        check(405, "Method Not Allowed", failed("Method Not Allowed"));
        check(408, r#"{"ok":false,"error":{"type":"timeout","message":"slow"}}"#, transient("(408)"));
        check(413, "", failed("too large"));
        check(429, "", Err(ToolError::Unreachable("retry after 7 s".into())));
        check(
            500,
            r#"{"ok":false,"error":{"type":"tool_error","message":"tool execution failed"}}"#,
            transient("Only the gateway's log"),
        );
        check(503, "", transient("(503)"));
    }
}
