//! The scenes of the tour: what is asked, and what each outcome means. Contains only data.

use std::path::Path;

use serde_json::{Value, json};

/// The agent of the last scene.
pub(crate) const AGENT: &str = "note-reader";

/// The request that the client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conversation {
    /// One question, with the client's tools.
    WithTools,
    /// The same call with the same result, eight times.
    InCircles,
    /// One question; the client has no tools.
    WithoutTools,
}

/// One scene.
#[derive(Debug)]
pub struct Scene {
    pub(crate) title: &'static str,
    /// The fault, in a sentence or two.
    pub(crate) story: &'static str,
    /// The model id of the recording.
    pub(crate) model: &'static str,
    /// The model id requested through respool, if it differs.
    pub(crate) agent: Option<&'static str>,
    pub(crate) conversation: Conversation,
    /// The effect of the reply on a client.
    pub(crate) without: &'static str,
    /// The repair by respool.
    pub(crate) with: &'static str,
}

const fn new_scene(title: &'static str, model: &'static str, story: &'static str) -> Scene {
    let conversation = Conversation::WithTools;
    Scene { title, story, model, agent: None, conversation, without: "", with: "" }
}

/// The scenes, in their order.
pub const SCENES: [Scene; 7] = [
    Scene {
        without: "It works. OpenClaw shortens such ids, so the result would come back under another one.",
        with: "The same call, with an id that clients send back unchanged and without vLLM's own fields.",
        ..new_scene(
            "A tool call that works",
            "native-call",
            "gpt-oss calls a tool, and vLLM's parser reads the call.",
        )
    },
    Scene {
        without: "The parser found no call and swallowed the text: no tool runs, and the user sees no answer.",
        with: "respool read the call out of the text.",
        ..new_scene(
            "A call that leaked into the text",
            "leaked-call",
            "Qwen3-Coder writes its calls as XML. vLLM was started with the parser for another form.",
        )
    },
    Scene {
        without: "The arguments are not JSON. OpenClaw rejects the turn, asks three more times, then gives up.",
        with: "respool saw that the call was cut off, asked again, and passed on only the complete call.",
        ..new_scene(
            "A call that was cut off",
            "cut-call",
            "The model stopped in the middle of the arguments of a call.",
        )
    },
    Scene {
        without: "The turn has failed: the client gets an error in a stream that began well.",
        with: "Nothing had been sent yet, so respool asked again. The client never learns of the error.",
        ..new_scene(
            "A server error",
            "failing-server",
            "vLLM 0.13 fails on a malformed header that gpt-oss wrote. The next attempt works.",
        )
    },
    Scene {
        without: "Nothing arrives all that time. After two minutes of silence, OpenClaw and many proxies hang up.",
        with: "The stream began at once and was kept alive while the model was silent.",
        ..new_scene(
            "A slow model",
            "slow-model",
            "A long prompt on a busy GPU: no output for minutes. Here, 1.5 seconds stand in for them.",
        )
    },
    Scene {
        conversation: Conversation::InCircles,
        without: "The same call again. OpenClaw does not stop this by default: it made 1,053 calls in 200 seconds.",
        with: "respool noticed the loop in the conversation, ended the turn, and said why.",
        ..new_scene(
            "A loop",
            "looping-model",
            "The model has read the same missing file eight times, and is about to do it again.",
        )
    },
    Scene {
        agent: Some(AGENT),
        conversation: Conversation::WithoutTools,
        without: "The client has no tools: it cannot run the call, and there is no answer.",
        with: "`note-reader` is one of respool's agents: it ran the tool itself and answered in one stream.",
        ..new_scene(
            "An agent with a tool",
            "note-taker",
            "A plain chat client asks about a note. The model wants to read a file first.",
        )
    },
];

/// Returns the configuration of the tour.
pub fn tour_configuration(server: &str, workspace: &Path, state: &Path) -> String {
    let [workspace, state] = [workspace, state].map(|path| Value::from(path.to_string_lossy()).to_string());
    format!(
        r#"state_dir = {state}
[[upstream]]
name = "recorded"
url = "{server}"
[limits]
# As short as the silence of the recorded model.
commit_after = "200ms"
heartbeat = "300ms"
[agents.{AGENT}]
model = "note-taker"
tools = ["read"]
[tools.local]
workspace = {workspace}
# No command runs, so no caches are made for them in the home directory.
sandbox = "off"
[[tools.policy.rule]]
tool = "read"
then = "allow"
"#
    )
}

/// Returns the request of a scene.
pub(crate) fn scene_request(model: &str, conversation: Conversation) -> Value {
    let mut request = json!({
        "model": model,
        "messages": [{"role": "user", "content": "What does the file say?"}],
        "stream": true,
    });
    if conversation != Conversation::WithoutTools {
        request["tools"] = json!([tool_definition("read", "path"), tool_definition("exec", "command")]);
    }
    if conversation == Conversation::InCircles {
        let messages = request["messages"].as_array_mut();
        messages.into_iter().for_each(|messages| messages.extend((0..8).flat_map(failed_call)));
    }
    request
}

fn tool_definition(name: &str, argument: &str) -> Value {
    let parameters =
        json!({"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]});
    json!({"type": "function", "function": {"name": name, "description": name, "parameters": parameters}})
}

/// Returns a call and its result.
fn failed_call(number: usize) -> [Value; 2] {
    let id = format!("call{number:08}");
    let function = json!({"name": "read", "arguments": "{\"path\": \"/tmp/a.txt\"}"});
    let call = json!({"id": id, "type": "function", "function": function});
    [
        json!({"role": "assistant", "content": null, "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": id, "content": "No such file"}),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sentence_fits_a_screen_of_100_columns() {
        for scene in &SCENES {
            for text in [scene.title, scene.story, scene.without, scene.with] {
                assert!(!text.is_empty() && text.chars().count() <= 120, "{text}");
            }
        }
    }
}
