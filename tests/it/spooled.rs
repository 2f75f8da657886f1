//! Whatever a turn holds, an independent client rebuilds it from the chunks, and from the JSON.

use proptest::prelude::*;
use translate::{ChatSink, Head, Reply, ReplyChoice, completion_json};
use wire::turn::{FinishReason, ToolCall, Turn, Usage};

use crate::support::accumulate::{self, Accumulated, Rules};

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), any::<String>(), "[a-z<>{}\"\\\\\n\r\t\u{2028}🙂é]{0,40}"]
}

fn call() -> impl Strategy<Value = ToolCall> {
    ("[a-zA-Z0-9_-]{1,20}", prop::collection::btree_map(any::<String>(), any::<String>(), 0..3)).prop_map(
        |(name, arguments)| {
            let arguments = serde_json::to_string(&arguments).unwrap();
            ToolCall { id: None, name, arguments, problems: vec![] }
        },
    )
}

fn choice(index: u64) -> impl Strategy<Value = ReplyChoice> {
    let reason = prop_oneof![Just("stop"), Just("length"), Just("abort"), Just("content_filter")];
    (text(), text(), prop::collection::vec(call(), 0..4), reason).prop_map(
        move |(reasoning, content, mut calls, reason)| {
            for (place, call) in calls.iter_mut().enumerate() {
                call.id = Some(format!("call{index}x{place:05}"));
            }
            let finish = Some(FinishReason::from_upstream(Some(reason), !calls.is_empty()));
            let turn = Turn { reasoning, content, calls, finish, ..Turn::default() };
            ReplyChoice { index, turn, ..ReplyChoice::default() }
        },
    )
}

fn reply() -> impl Strategy<Value = Reply> {
    (choice(0), prop::option::of(choice(1)), any::<u32>(), "[ -~]{1,20}").prop_map(
        |(first, second, tokens, model)| Reply {
            head: Head { id: "chatcmpl-1".into(), created: 1, model, tags: vec![] },
            choices: std::iter::once(first).chain(second).collect(),
            usage: Some(Usage { prompt: tokens.into(), completion: 2, cached: Some(1), ..Usage::default() }),
            kept: vec![],
            earlier_prompts: 0,
        },
    )
}

fn is_rebuilt(reply: &Reply, got: &Accumulated) -> Result<(), TestCaseError> {
    prop_assert_eq!((&got.id, &got.model), (&reply.head.id, &reply.head.model));
    for choice in &reply.choices {
        let seen = &got.choices[&choice.index];
        prop_assert_eq!(&seen.reasoning, &choice.turn.reasoning);
        prop_assert_eq!(&seen.content, &choice.turn.content);
        prop_assert_eq!(seen.finish_reason.as_deref(), choice.turn.finish.map(FinishReason::as_str));
        let calls: Vec<_> = seen.tool_calls.iter().map(|call| (&call.name, &call.arguments)).collect();
        let expected: Vec<_> = choice.turn.calls.iter().map(|call| (&call.name, &call.arguments)).collect();
        prop_assert_eq!(calls, expected);
    }
    Ok(())
}

proptest! {
    #[test]
    fn chunks_and_json_rebuild_the_turn(reply in reply(), usage in any::<bool>()) {
        let rules = Rules { choices: reply.choices.len(), usage: Some(usage), ..Rules::default() };
        let mut chunks = Vec::new();
        ChatSink::new(Some("reasoning_content"), usage).write_reply(reply.clone(), &mut chunks);
        let streamed = accumulate::stream(&chunks, &rules).map_err(|flaws| TestCaseError::fail(flaws.join("; ")))?;
        is_rebuilt(&reply, &streamed)?;
        let json = serde_json::from_str(&completion_json(&reply, Some("reasoning_content"))).unwrap();
        let rules = Rules { usage: Some(true), ..rules };
        let whole = accumulate::completion(&json, &rules).map_err(|flaws| TestCaseError::fail(flaws.join("; ")))?;
        is_rebuilt(&reply, &whole)?;
    }
}
