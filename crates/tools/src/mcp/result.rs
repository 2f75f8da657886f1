//! What the answer of an MCP server becomes: text as it is, other content as a note with its type and size. Pure.

use rmcp::ServiceError;
use rmcp::model::{CallToolResponse, CallToolResult, ContentBlock, ErrorCode, ResourceContents};

use super::super::contract::{ToolError, ToolOutput};

/// The output or the error in an answer.
pub(super) fn read(
    server: &str,
    answer: Result<CallToolResponse, ServiceError>,
) -> Result<ToolOutput, ToolError> {
    match answer {
        Ok(CallToolResponse::Complete(result)) => {
            let text = text_of(&result);
            if result.is_error == Some(true) {
                Err(ToolError::Failed(text))
            } else {
                Ok(ToolOutput { text, display: None })
            }
        }
        Ok(_) => Err(ToolError::Protocol(format!(
            "the MCP server {server} asks for input, which respool cannot give it"
        ))),
        // The arguments are the model's, and so is the mistake.
        Err(ServiceError::McpError(error)) if error.code == ErrorCode::INVALID_PARAMS => {
            Err(ToolError::Failed(error.message.into_owned()))
        }
        Err(ServiceError::McpError(error)) => Err(ToolError::Protocol(format!(
            "the MCP server {server} answered with the error {}: {}",
            error.code.0, error.message
        ))),
        Err(error @ (ServiceError::TransportClosed | ServiceError::TransportSend(_))) => {
            Err(ToolError::Transient(format!(
                "the connection to the MCP server {server} broke during the call: {error}"
            )))
        }
        Err(error) => Err(ToolError::Protocol(format!("the MCP server {server} failed: {error}"))),
    }
}

/// The text of a result; structured content speaks where no text does.
fn text_of(result: &CallToolResult) -> String {
    let texts: Vec<String> = result.content.iter().map(shown).collect();
    match &result.structured_content {
        Some(structured) if texts.is_empty() => format!("{structured:#}"),
        _ => texts.join("\n"),
    }
}

fn shown(content: &ContentBlock) -> String {
    match content {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => note("image", &image.mime_type, &image.data),
        ContentBlock::Audio(audio) => note("audio", &audio.mime_type, &audio.data),
        ContentBlock::Resource(embedded) => match &embedded.resource {
            ResourceContents::TextResourceContents { text, .. } => text.clone(),
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                note(uri, mime_type.as_deref().unwrap_or("unknown type"), blob)
            }
            _ => "[a resource of an unknown kind: not shown]".to_owned(),
        },
        ContentBlock::ResourceLink(link) => format!("[resource {}: {}]", link.name, link.uri),
        _ => "[content of an unknown kind: not shown]".to_owned(),
    }
}

fn note(what: &str, media_type: &str, base64: &str) -> String {
    format!("[{what}, {media_type}, {} bytes: not shown]", base64.trim_end_matches('=').len() * 3 / 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(result: serde_json::Value, expected: Result<&str, &str>) {
        let result: CallToolResult = serde_json::from_value(result).unwrap();
        let found = read("s", Ok(CallToolResponse::Complete(result)));
        let expected = expected
            .map(|text| ToolOutput { text: text.into(), display: None })
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
    fn an_error_of_the_protocol_is_not_an_error_of_the_tool() {
        let answer = |code: i32| {
            let error = serde_json::from_value(json!({"code": code, "message": "no"})).unwrap();
            read("s", Err(ServiceError::McpError(error)))
        };
        assert_eq!(answer(-32602), Err(ToolError::Failed("no".into())), "the model wrote the arguments");
        for code in [-32603, -32601, -32000] {
            let expected = format!("the MCP server s answered with the error {code}: no");
            assert_eq!(answer(code), Err(ToolError::Protocol(expected)));
        }
    }

    #[test]
    fn a_broken_connection_may_be_tried_again() {
        let closed = read("s", Err(ServiceError::TransportClosed));
        assert!(matches!(closed, Err(ToolError::Transient(text)) if text.contains("MCP server s broke")));
    }
}
