//! Describes what a client reads in a reply, of any API and whole or streamed, in lines that can be compared:
//! ids, times and heartbeats are left out. Pure.

use serde_json::Value;

use super::capture::Reply;

/// The parts of a reply that a client has read.
#[derive(Debug, Default)]
struct Seen {
    reasoning: String,
    text: String,
    /// Names and arguments.
    calls: Vec<(String, String)>,
    finish: String,
    error: String,
}

/// Returns the lines that describe a reply to a request that these upstreams were asked for. Of several, it
/// depends on their state at the time which one an error names.
pub fn describe_reply(reply: &Reply, upstreams: &[&str]) -> Vec<String> {
    let mut seen = Seen::read(reply);
    // A replay ends each stream in the same way, however its connection broke off.
    seen.error = seen
        .error
        .replace("broke off in the middle of its reply", "ended the stream in the middle of the reply");
    if upstreams.len() > 1 {
        for name in upstreams {
            seen.error = seen.error.replace(&format!("`{name}`"), "`…`");
        }
    }
    seen.lines(reply)
}

/// Returns true for a reply that is an error, or ends in one.
pub fn is_failure(reply: &Reply) -> bool {
    reply.status >= 400 || !Seen::read(reply).error.is_empty()
}

impl Seen {
    fn read(reply: &Reply) -> Self {
        let mut seen = Self::default();
        if reply.content_type.starts_with("text/event-stream") {
            let data = reply.body.lines().filter_map(|line| line.strip_prefix("data:"));
            data.filter_map(|data| serde_json::from_str(data).ok()).for_each(|event| seen.take_event(&event));
        } else if let Ok(whole) = serde_json::from_str::<Value>(&reply.body) {
            seen.take_whole(&whole);
        }
        seen
    }

    fn take_event(&mut self, event: &Value) {
        match event["type"].as_str() {
            // Responses repeats everything in its last event.
            Some("response.completed" | "response.incomplete" | "response.failed") => {
                self.take_whole(&event["response"]);
            }
            Some("content_block_start") => self.take_block(&event["content_block"]),
            Some("content_block_delta") => {
                let delta = &event["delta"];
                add(&mut self.text, &delta["text"]);
                add(&mut self.reasoning, &delta["thinking"]);
                if let Some((_, arguments)) = self.calls.last_mut() {
                    add(arguments, &delta["partial_json"]);
                }
            }
            Some("message_delta") => add(&mut self.finish, &event["delta"]["stop_reason"]),
            Some(kind) if kind.starts_with("response.") => {}
            _ => self.take_chat(event, "delta"),
        }
    }

    fn take_whole(&mut self, whole: &Value) {
        for item in whole["output"].as_array().into_iter().flatten() {
            self.take_item(item);
        }
        for block in whole["content"].as_array().into_iter().flatten() {
            self.take_block(block);
        }
        add(&mut self.finish, &whole["stop_reason"]);
        add(&mut self.finish, &whole["status"]);
        self.take_chat(whole, "message");
    }

    /// Takes the first choice of a chat completion or chunk, or an error.
    fn take_chat(&mut self, chat: &Value, part: &str) {
        add(&mut self.error, &chat["error"]["message"]);
        let choice = &chat["choices"][0];
        let message = &choice[part];
        add(&mut self.text, &message["content"]);
        let reasoning = ["reasoning", "reasoning_content"].iter().find(|name| message[**name].is_string());
        reasoning.into_iter().for_each(|name| add(&mut self.reasoning, &message[*name]));
        for (place, call) in message["tool_calls"].as_array().into_iter().flatten().enumerate() {
            let index = call["index"].as_u64().and_then(|index| usize::try_from(index).ok()).unwrap_or(place);
            // A wild index of a foreign file must not fill the memory.
            while self.calls.len() <= index.min(255) {
                self.calls.push(Default::default());
            }
            if let Some((name, arguments)) = self.calls.get_mut(index) {
                add(name, &call["function"]["name"]);
                add(arguments, &call["function"]["arguments"]);
            }
        }
        add(&mut self.finish, &choice["finish_reason"]);
    }

    /// Takes a content block of Messages.
    fn take_block(&mut self, block: &Value) {
        add(&mut self.text, &block["text"]);
        add(&mut self.reasoning, &block["thinking"]);
        if block["type"] == "tool_use" {
            let input = &block["input"];
            let is_empty = input.as_object().is_none_or(serde_json::Map::is_empty);
            let arguments = if is_empty { String::new() } else { input.to_string() };
            self.calls.push((block["name"].as_str().unwrap_or_default().to_owned(), arguments));
        }
    }

    /// Takes an output item of Responses.
    fn take_item(&mut self, item: &Value) {
        for part in item["content"].as_array().into_iter().flatten() {
            let into = if item["type"] == "reasoning" { &mut self.reasoning } else { &mut self.text };
            add(into, &part["text"]);
        }
        if let Some(name) = item["name"].as_str() {
            let arguments = item["arguments"].as_str().or(item["input"].as_str()).unwrap_or_default();
            self.calls.push((name.to_owned(), arguments.to_owned()));
        }
    }

    fn lines(self, reply: &Reply) -> Vec<String> {
        let mut lines = vec![format!("status     {}", reply.status)];
        let mut add = |label: &str, text: &str| {
            for (index, line) in text.lines().filter(|line| !line.trim().is_empty()).enumerate() {
                let label = if index == 0 { label } else { "" };
                lines.push(format!("{label:<10} {line}"));
            }
        };
        add("reasoning", &self.reasoning);
        add("text", &self.text);
        self.calls.iter().for_each(|(name, arguments)| add("call", &format!("{name} {arguments}")));
        add("finish", &self.finish);
        // How often a server was asked depends on its state at the time.
        add("error", self.error.split(" (asked ").next().unwrap_or_default());
        lines
    }
}

fn add(text: &mut String, value: &Value) {
    text.push_str(value.as_str().unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(content_type: &str, body: &str, expected: &[&str]) {
        let reply = Reply { status: 200, content_type: content_type.into(), body: body.into() };
        assert_eq!(describe_reply(&reply, &[])[1..], *expected, "{body}");
    }

    #[test]
    fn each_api_is_read_whole_and_streamed() {
        let expected = ["reasoning  Hm", "text       Hey", r#"call       read {"path":"a"}"#];
        let with = |finish| [&expected[..], &[finish]].concat();
        let (json, stream) = ("application/json", "text/event-stream; charset=utf-8");
        check(
            json,
            r#"{"choices":[{"message":{"content":"Hey","reasoning":"Hm","tool_calls":[{"function":{"name":"read","arguments":"{\"path\":\"a\"}"}}]},"finish_reason":"tool_calls"}]}"#,
            &with("finish     tool_calls"),
        );
        check(
            stream,
            "data: {\"choices\":[{\"delta\":{\"content\":\"He\",\"reasoning\":\"Hm\"}}]}\n\n\
             : comment\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"y\",\"tool_calls\":[{\"index\":0,\"function\":{\"name\":\"read\",\"arguments\":\"{\\\"path\\\":\"}}]}}]}\n\n\
             data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"\\\"a\\\"}\"}}]},\"finish_reason\":\"tool_calls\"}]}\n\ndata: [DONE]\n\n",
            &with("finish     tool_calls"),
        );
        let responses = r#"{"status":"completed","output":[{"type":"reasoning","content":[{"text":"Hm"}]},{"type":"message","content":[{"text":"Hey"}]},{"type":"function_call","name":"read","arguments":"{\"path\":\"a\"}"}]}"#;
        check(json, responses, &with("finish     completed"));
        let last = format!(
            "data: {{\"type\":\"response.created\"}}\n\ndata: {{\"type\":\"response.completed\",\"response\":{responses}}}\n\n"
        );
        check(stream, &last, &with("finish     completed"));
        check(
            json,
            r#"{"stop_reason":"tool_use","content":[{"type":"thinking","thinking":"Hm"},{"type":"text","text":"Hey"},{"type":"tool_use","name":"read","input":{"path":"a"}}]}"#,
            &with("finish     tool_use"),
        );
        check(
            stream,
            "data: {\"type\":\"content_block_start\",\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\"}}\n\n\
             data: {\"type\":\"content_block_delta\",\"delta\":{\"thinking\":\"Hm\"}}\n\n\
             data: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"Hey\"}}\n\n\
             data: {\"type\":\"content_block_start\",\"content_block\":{\"type\":\"tool_use\",\"name\":\"read\",\"input\":{}}}\n\n\
             data: {\"type\":\"content_block_delta\",\"delta\":{\"partial_json\":\"{\\\"path\\\":\\\"a\\\"}\"}}\n\n\
             data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\"}}\n\n",
            &with("finish     tool_use"),
        );
    }

    #[test]
    fn errors_and_odd_bodies_are_described() {
        let error = r#"{"error":{"message":"no such model (asked 3 times)"}}"#;
        check("application/json", error, &["error      no such model"]);
        check(
            "text/event-stream",
            "data: {\"error\":{\"message\":\"broke off\"}}\n\n",
            &["error      broke off"],
        );
        check("text/html", "<html>", &[]);
        let wild = "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":99999999999}]}}]}\n\n";
        let reply = Reply { status: 200, content_type: "text/event-stream".into(), body: wild.into() };
        assert!(describe_reply(&reply, &[]).len() < 300);
        let error = r#"{"error":{"message":"upstream `b` failed"}}"#;
        let reply = Reply { status: 502, content_type: "application/json".into(), body: error.into() };
        assert_eq!(describe_reply(&reply, &["a", "b"])[1], "error      upstream `…` failed");
        assert_eq!(describe_reply(&reply, &["b"])[1], "error      upstream `b` failed");
    }
}
