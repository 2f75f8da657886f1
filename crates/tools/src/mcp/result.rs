//! Reads answers of MCP servers: text unchanged, other content as a note with its type and size. Pure.

use std::error::Error;

use rmcp::ServiceError;
use rmcp::model::{CallToolResponse, CallToolResult, ContentBlock, ErrorCode, ResourceContents};
use rmcp::service::ClientInitializeError;
use rmcp::transport::DynamicTransportError;
use rmcp::transport::streamable_http_client::StreamableHttpError;

use super::super::contract::{ToolError, ToolOutput};

/// Reads the output or the error in an answer.
pub(super) fn read_result(
    server: &str,
    answer: Result<CallToolResponse, ServiceError>,
) -> Result<ToolOutput, ToolError> {
    match answer {
        Ok(CallToolResponse::Complete(result)) => {
            let text = text_of(&result);
            if result.is_error == Some(true) {
                Err(ToolError::Failed(text))
            } else {
                Ok(ToolOutput { text, ..ToolOutput::default() })
            }
        }
        Ok(_) => Err(ToolError::Protocol(format!(
            "the MCP server {server} asks for input, which respool cannot give it"
        ))),
        // The model wrote the arguments, so it made the mistake.
        Err(ServiceError::McpError(error)) if error.code == ErrorCode::INVALID_PARAMS => {
            Err(ToolError::Failed(error.message.into_owned()))
        }
        Err(ServiceError::McpError(error)) => Err(ToolError::Protocol(format!(
            "the MCP server {server} answered with the error {}: {}",
            error.code.0, error.message
        ))),
        // Without a connection nothing was sent, so the call did not run.
        Err(ServiceError::TransportSend(error)) if is_failed_connect(&error) => Err(ToolError::Unreachable(
            format!("the MCP server {server} could not be reached: {}", root_cause(&error)),
        )),
        Err(error @ (ServiceError::TransportClosed | ServiceError::TransportSend(_))) => {
            Err(ToolError::Transient(describe_break(server, &root_cause(&error))))
        }
        Err(ServiceError::UnexpectedResponse) => Err(ToolError::Protocol(format!(
            "the MCP server {server} answered the call with something else than `{{\"content\": [{{\"type\": \"text\", \"text\": \
             \"…\"}}]}}`"
        ))),
        Err(error) => {
            Err(ToolError::Protocol(format!("the MCP server {server} failed: {}", root_cause(&error))))
        }
    }
}

/// Says that the connection broke during a call.
pub(super) fn describe_break(server: &str, reason: &str) -> String {
    format!("the connection to the MCP server {server} broke during the call: {reason}")
}

/// Returns true if a message was not sent because no connection could be made: refused, unknown host, failed
/// TLS handshake.
fn is_failed_connect(error: &DynamicTransportError) -> bool {
    http_client_error(error.error.as_ref()).is_some_and(reqwest::Error::is_connect)
}

/// Returns the error of the HTTP client. The SDK does not give it as the source of its own error.
fn http_client_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a reqwest::Error> {
    match error.downcast_ref::<StreamableHttpError<reqwest::Error>>()? {
        StreamableHttpError::Client(error) => Some(error),
        _ => None,
    }
}

/// Returns the innermost cause of an error, in words for people: the outer ones name types of the SDK.
pub(super) fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(inner) = inner_cause(cause) {
        cause = inner;
    }
    describe(cause)
}

/// Describes one error in words for people. Many texts of the SDK name its types.
fn describe(error: &(dyn Error + 'static)) -> String {
    if let Some(error) = error.downcast_ref() {
        return describe_http(error);
    }
    if let Some(error) = error.downcast_ref() {
        return describe_initialize(error);
    }
    match error.downcast_ref() {
        Some(ServiceError::TransportClosed) => "the connection is closed".to_owned(),
        Some(ServiceError::UnexpectedResponse) => "its answer does not fit the request".to_owned(),
        _ => http_client::describe(error),
    }
}

/// Describes an answer that does not follow MCP.
fn describe_http(error: &StreamableHttpError<reqwest::Error>) -> String {
    match error {
        StreamableHttpError::UnexpectedContentType(Some(found)) => {
            format!("its answer is `{found}` instead of JSON or an event stream")
        }
        StreamableHttpError::UnexpectedContentType(None) => "its answer has no content type".to_owned(),
        StreamableHttpError::UnexpectedServerResponse(text) => text.replace(
            "could not parse JSON response as ServerJsonRpcMessage",
            "its answer is not a message of MCP",
        ),
        _ => error.to_string(),
    }
}

/// Describes a connection that failed to begin.
fn describe_initialize(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::ExpectedInitResponse(_) | ClientInitializeError::ExpectedInitResult(_) => {
            "it answered `initialize` with something else".to_owned()
        }
        ClientInitializeError::ConflictInitResponseId(..)
        | ClientInitializeError::UncorrelatedErrorResponse { .. } => {
            "its answer to `initialize` has another id".to_owned()
        }
        ClientInitializeError::ConnectionClosed(_) => "it closed the connection".to_owned(),
        ClientInitializeError::JsonRpcError(error) => {
            format!("it answered `initialize` with the error {}: {}", error.code.0, error.message)
        }
        ClientInitializeError::NoCompatibleProtocolVersion { .. } => {
            "it speaks no version of MCP that respool knows".to_owned()
        }
        _ => error.to_string(),
    }
}

/// Returns the cause of an error. The SDK does not give all of them as sources.
fn inner_cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    if let Some(ServiceError::TransportSend(transport)) = error.downcast_ref() {
        return Some(transport);
    }
    if let Some(ClientInitializeError::TransportError { error: transport, .. }) = error.downcast_ref() {
        return Some(transport);
    }
    if let Some(transport) = error.downcast_ref::<DynamicTransportError>() {
        return Some(transport.error.as_ref());
    }
    http_client_error(error).map(|error| error as _).or_else(|| error.source())
}

/// Returns the text of a result, or its structured content if it has no text.
fn text_of(result: &CallToolResult) -> String {
    let texts: Vec<String> = result.content.iter().map(content_text).collect();
    match &result.structured_content {
        Some(structured) if texts.is_empty() => format!("{structured:#}"),
        _ => texts.join("\n"),
    }
}

fn content_text(content: &ContentBlock) -> String {
    match content {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => media_note("image", &image.mime_type, &image.data),
        ContentBlock::Audio(audio) => media_note("audio", &audio.mime_type, &audio.data),
        ContentBlock::Resource(embedded) => match &embedded.resource {
            ResourceContents::TextResourceContents { text, .. } => text.clone(),
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                media_note(uri, mime_type.as_deref().unwrap_or("unknown type"), blob)
            }
            _ => "[a resource of an unknown kind: not shown]".to_owned(),
        },
        ContentBlock::ResourceLink(link) => format!("[resource {}: {}]", link.name, link.uri),
        _ => "[content of an unknown kind: not shown]".to_owned(),
    }
}

fn media_note(what: &str, media_type: &str, base64: &str) -> String {
    format!("[{what}, {media_type}, {} bytes: not shown]", base64.trim_end_matches('=').len() * 3 / 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(result: serde_json::Value, expected: Result<&str, &str>) {
        let result: CallToolResult = serde_json::from_value(result).unwrap();
        let found = read_result("s", Ok(CallToolResponse::Complete(result)));
        let expected = expected
            .map(|text| ToolOutput { text: text.into(), ..ToolOutput::default() })
            .map_err(|text| ToolError::Failed(text.into()));
        assert_eq!(found, expected);
    }

    #[test]
    fn content_of_every_kind() {
        check(json!({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}), Ok("a\nb"));
        check(json!({"content": [{"type": "text", "text": "no"}], "isError": true}), Err("no"));
        check(json!({"content": [], "structuredContent": {"n": 1}}), Ok("{\n  \"n\": 1\n}"));
        check(json!({"content": [{"type": "text", "text": "{}"}], "structuredContent": {"n": 1}}), Ok("{}"));
        check(
            json!({"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]}),
            Ok("[image, image/png, 3 bytes: not shown]"),
        );
        check(
            json!({"content": [{"type": "audio", "data": "AAA=", "mimeType": "audio/wav"}]}),
            Ok("[audio, audio/wav, 2 bytes: not shown]"),
        );
        check(
            json!({"content": [{"type": "resource", "resource": {"uri": "file:///a", "text": "in it"}}]}),
            Ok("in it"),
        );
        check(
            json!({"content": [{"type": "resource", "resource": {"uri": "file:///a", "blob": "AAAA"}}]}),
            Ok("[file:///a, unknown type, 3 bytes: not shown]"),
        );
        check(
            json!({"content": [{"type": "resource_link", "uri": "file:///a", "name": "a"}]}),
            Ok("[resource a: file:///a]"),
        );
        check(json!({"content": []}), Ok(""));
    }

    #[test]
    fn protocol_errors_are_not_tool_errors() {
        let answer = |code: i32| {
            let error = serde_json::from_value(json!({"code": code, "message": "no"})).unwrap();
            read_result("s", Err(ServiceError::McpError(error)))
        };
        assert_eq!(answer(-32602), Err(ToolError::Failed("no".into())), "the model wrote the arguments");
        for code in [-32603, -32601, -32000] {
            let expected = format!("the MCP server s answered with the error {code}: no");
            assert_eq!(answer(code), Err(ToolError::Protocol(expected)));
        }
    }

    #[test]
    fn causes_name_no_types_of_the_sdk() {
        type Http = StreamableHttpError<reqwest::Error>;
        let check = |error: &(dyn Error + 'static), expected: &str| assert_eq!(root_cause(error), expected);
        check(
            &Http::UnexpectedContentType(Some("text/html".into())),
            "its answer is `text/html` instead of JSON or an event stream",
        );
        check(
            &Http::UnexpectedServerResponse(
                "could not parse JSON response as ServerJsonRpcMessage: expected value: <h1>".into(),
            ),
            "its answer is not a message of MCP: expected value: <h1>",
        );
        check(&ServiceError::UnexpectedResponse, "its answer does not fit the request");
        check(
            &ClientInitializeError::ExpectedInitResult(None),
            "it answered `initialize` with something else",
        );
        check(
            &ClientInitializeError::ConnectionClosed("initialize response".into()),
            "it closed the connection",
        );
    }

    #[test]
    fn results_of_another_form_name_the_right_one() {
        let misfit = read_result("s", Err(ServiceError::UnexpectedResponse));
        assert!(
            matches!(misfit, Err(ToolError::Protocol(text)) if text.contains(r#"{"content": [{"type": "text""#))
        );
    }

    #[test]
    fn a_broken_connection_may_be_tried_again() {
        let closed = read_result("s", Err(ServiceError::TransportClosed));
        assert!(matches!(closed, Err(ToolError::Transient(text)) if text.contains("MCP server s broke")));
    }
}
