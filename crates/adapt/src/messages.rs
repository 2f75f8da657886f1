//! Applies the rules about messages. Each function does one rule and says whether it changed anything.

use std::collections::{HashMap, VecDeque};

use wire::{Object, decode_string, encode_string};

use crate::conversation::{Conversation, Entry, as_parts, is_blank, text_of};
use crate::rule::Rule;
use crate::tools::rename_function;

/// Stands for the result of a call that has none.
const NO_RESULT: &str = "(no result)";
/// Asks the model to go on where the conversation ends with its own words, or has no message of the user.
const CONTINUE: &str = "Continue.";
/// Stands for the assistant's answer where the user goes on after a result.
const ACKNOWLEDGED: &str = "OK.";

/// The fields in which servers take reasoning.
const REASONING: [&str; 3] = ["reasoning", "reasoning_content", "thinking"];

/// Applies one rule about messages.
pub(crate) fn change_messages(conversation: &mut Conversation<'_>, rule: &Rule) -> bool {
    match rule {
        Rule::SystemFirst => move_system_first(conversation),
        Rule::LaterSystemAsUser => {
            let beginning = conversation.0.iter().take_while(|message| message.is_system()).count();
            turn_system_into_user(conversation, beginning)
        }
        Rule::SystemAsUser => turn_system_into_user(conversation, 0),
        Rule::DeveloperAsSystem => rename_developer(conversation),
        Rule::CallsAsText => turn_calls_into_text(conversation),
        Rule::AlternateRoles => {
            let has_merged = merge_same_roles(conversation, |_| true);
            complete_turns(conversation) || has_merged
        }
        Rule::AssistantNotLast => end_with_user(conversation),
        Rule::UserMessage => add_user_message(conversation),
        Rule::EmptyContent => fill_empty_content(conversation),
        Rule::TextContent => change_contents(conversation, |content| {
            (!content.starts_with('"')).then(|| text_of(content)).flatten().map(|text| encode_string(&text))
        }),
        Rule::PartsContent => {
            change_contents(conversation, |content| content.starts_with('"').then(|| as_parts(content)))
        }
        Rule::NullContent => replace_null_content(conversation),
        Rule::OneReasoning => keep_one_reasoning(conversation),
        Rule::ReasoningOrContent => move_content_into_reasoning(conversation),
        Rule::ResultName => name_results(conversation),
        Rule::ToolNames => rename_calls(conversation),
        Rule::ShortIds => shorten_ids(conversation),
        Rule::OneResultPerCall => complete_results(conversation),
        Rule::OneCallPerMessage => split_calls(conversation),
        _ => false,
    }
}

/// Appends each system message that is not the first message to the system message at the beginning.
fn move_system_first(conversation: &mut Conversation<'_>) -> bool {
    let messages = &mut conversation.0;
    if !messages.iter().skip(1).any(Entry::is_system) {
        return false;
    }
    let (mut system, others): (Vec<_>, Vec<_>) = messages.drain(..).partition(Entry::is_system);
    let mut first = system.remove(0);
    system.iter().for_each(|later| first.append_content(later));
    first.set("role", "\"system\"");
    messages.push(first);
    messages.extend(others);
    true
}

/// Puts system text before the text of the user's next message, from this message on.
fn turn_system_into_user(conversation: &mut Conversation<'_>, from: usize) -> bool {
    let mut changed = vec![false; conversation.0.len()];
    for (message, is_changed) in conversation.0.iter_mut().zip(&mut changed).skip(from) {
        if message.is_system() {
            message.enclose_content("<system>", "</system>");
            message.set("role", "\"user\"");
            *is_changed = true;
        }
    }
    merge_changed(conversation, &changed)
}

fn rename_developer(conversation: &mut Conversation<'_>) -> bool {
    let mut changed = false;
    for message in conversation.0.iter_mut().filter(|message| message.is_from("developer")) {
        message.set("role", "\"system\"");
        changed = true;
    }
    changed
}

/// Merges messages that were changed with their neighbours of the same role. All others keep their form: the
/// server has cached the prompt that it was sent before the conversation had anything to change. Returns true
/// if any message was changed.
fn merge_changed(conversation: &mut Conversation<'_>, changed: &[bool]) -> bool {
    merge_same_roles(conversation, |at| changed[at] || changed[at - 1]);
    changed.contains(&true)
}

/// Merges neighbours of the same role: user with user, and assistant with assistant unless both have calls.
/// `may_merge`: true for the place of a message that may be merged with the one before.
fn merge_same_roles(conversation: &mut Conversation<'_>, may_merge: impl Fn(usize) -> bool) -> bool {
    let mut merged: Vec<Entry<'_>> = Vec::with_capacity(conversation.0.len());
    let before = conversation.0.len();
    for (at, message) in conversation.0.drain(..).enumerate() {
        let fits = merged.last().is_some_and(|last| {
            let both = |role| last.is_from(role) && message.is_from(role);
            let is_same = both("user")
                || (last.is_system() && message.is_system())
                || (both("assistant") && !last.has_calls());
            is_same && may_merge(at)
        });
        match merged.last_mut() {
            Some(last) if fits => {
                last.append_content(&message);
                REASONING.iter().for_each(|key| last.append(key, &message));
                if message.has_calls() {
                    last.set("tool_calls", format!("[{}]", message.calls().join(",")));
                }
            }
            _ => merged.push(message),
        }
    }
    conversation.0 = merged;
    conversation.0.len() != before
}

/// Writes calls as text of the assistant, and results as text of the user.
fn turn_calls_into_text(conversation: &mut Conversation<'_>) -> bool {
    let mut changed = vec![false; conversation.0.len()];
    for (message, is_changed) in conversation.0.iter_mut().zip(&mut changed) {
        if message.is_from("tool") {
            message.enclose_content("<tool_response>", "</tool_response>");
            message.set("role", "\"user\"");
            message.remove("tool_call_id");
            message.remove("name");
        } else if message.has_calls() {
            let calls: Vec<String> = message.calls().iter().filter_map(|call| call_as_text(call)).collect();
            message.append_content(&Entry::new("assistant", &calls.join("\n")));
            message.remove("tool_calls");
        } else {
            continue;
        }
        *is_changed = true;
    }
    merge_changed(conversation, &changed)
}

fn call_as_text(call: &str) -> Option<String> {
    let call = Object::parse(call).ok()?;
    let function = Object::parse(call.get("function")?).ok()?;
    let (name, arguments) = (function.get("name")?, function.string("arguments").unwrap_or_default());
    let arguments = if Object::parse(&arguments).is_ok() { arguments } else { encode_string(&arguments) };
    Some(format!("<tool_call>\n{{\"name\":{name},\"arguments\":{arguments}}}\n</tool_call>"))
}

/// Lets the other one say a word where the user or the assistant spoke last, and only calls and results
/// follow. The user speaks first.
fn complete_turns(conversation: &mut Conversation<'_>) -> bool {
    let mut completed: Vec<Entry<'_>> = Vec::with_capacity(conversation.0.len());
    let before = conversation.0.len();
    let mut is_users_turn = true;
    for message in conversation.0.drain(..) {
        let is_user = message.is_from("user");
        let speaks = is_user || (message.is_from("assistant") && !message.has_calls());
        if speaks && is_user != is_users_turn {
            let missing = if is_users_turn { ("user", CONTINUE) } else { ("assistant", ACKNOWLEDGED) };
            completed.push(Entry::new(missing.0, missing.1));
        }
        if speaks {
            is_users_turn = !is_user;
        }
        completed.push(message);
    }
    conversation.0 = completed;
    conversation.0.len() != before
}

fn end_with_user(conversation: &mut Conversation<'_>) -> bool {
    let ends_with_assistant = conversation.0.last().is_some_and(|last| last.is_from("assistant"));
    if ends_with_assistant {
        conversation.0.push(Entry::new("user", CONTINUE));
    }
    ends_with_assistant
}

fn add_user_message(conversation: &mut Conversation<'_>) -> bool {
    let messages = &mut conversation.0;
    if messages.iter().any(|message| message.is_from("user")) {
        return false;
    }
    let place = messages.iter().position(|message| !message.is_system()).unwrap_or(messages.len());
    messages.insert(place, Entry::new("user", CONTINUE));
    true
}

/// Removes messages without content and calls; an empty result gets a text.
fn fill_empty_content(conversation: &mut Conversation<'_>) -> bool {
    let is_empty = |message: &Entry<'_>| message.object.get("content").is_none_or(is_blank);
    let before = conversation.0.len();
    conversation.0.retain(|message| !is_empty(message) || message.has_calls() || message.is_from("tool"));
    let mut changed = conversation.0.len() != before;
    for message in conversation.0.iter_mut().filter(|message| is_empty(message)) {
        if message.is_from("tool") {
            message.set("content", encode_string(NO_RESULT));
            changed = true;
        } else if message.object.get("content").is_some() {
            message.remove("content");
            changed = true;
        }
    }
    changed
}

fn change_contents(conversation: &mut Conversation<'_>, change: impl Fn(&str) -> Option<String>) -> bool {
    let mut changed = false;
    for message in &mut conversation.0 {
        if let Some(content) = message.object.get("content").and_then(&change) {
            message.set("content", content);
            changed = true;
        }
    }
    changed
}

fn replace_null_content(conversation: &mut Conversation<'_>) -> bool {
    let mut changed = false;
    for message in conversation.0.iter_mut().filter(|message| message.object.get("content").is_none()) {
        message.set("content", "\"\"");
        changed = true;
    }
    changed
}

/// Removes `reasoning_content` from messages that also have `reasoning`.
fn keep_one_reasoning(conversation: &mut Conversation<'_>) -> bool {
    let mut changed = false;
    for message in &mut conversation.0 {
        let has = |key| message.object.get_raw(key).is_some();
        if has("reasoning") && has("reasoning_content") {
            message.remove("reasoning_content");
            changed = true;
        }
    }
    changed
}

/// Adds the content of a message with calls to its reasoning, if it has any.
fn move_content_into_reasoning(conversation: &mut Conversation<'_>) -> bool {
    let mut changed = false;
    for message in conversation.0.iter_mut().filter(|message| message.has_calls()) {
        let text = |key| message.object.string(key).filter(|text| !text.is_empty());
        let Some(content) = text("content") else { continue };
        let reasoned = REASONING.into_iter().find_map(|key| Some((key, text(key)?)));
        if let Some((key, reasoning)) = reasoned {
            message.set(key, encode_string(&format!("{reasoning}\n\n{content}")));
            message.remove("content");
            changed = true;
        }
    }
    changed
}

/// Gives each tool result the name of the tool that was called.
fn name_results(conversation: &mut Conversation<'_>) -> bool {
    let mut names: HashMap<String, String> = HashMap::new();
    let mut changed = false;
    for message in &mut conversation.0 {
        for call in message.calls() {
            if let Some((id, name)) = id_and_name(&call) {
                names.insert(id, name);
            }
        }
        let is_unnamed = message.is_from("tool") && message.object.get("name").is_none();
        let name = message.object.string("tool_call_id").filter(|_| is_unnamed).and_then(|id| names.get(&id));
        if let Some(name) = name {
            message.set("name", encode_string(name));
            changed = true;
        }
    }
    changed
}

/// Gives calls and results the names under which the tools are declared.
fn rename_calls(conversation: &mut Conversation<'_>) -> bool {
    let mut changed = false;
    for message in &mut conversation.0 {
        let calls = message.calls();
        let renamed: Vec<Option<String>> = calls.iter().map(|call| rename_function(call)).collect();
        if renamed.iter().any(Option::is_some) {
            let calls: Vec<String> =
                renamed.into_iter().zip(calls).map(|(renamed, call)| renamed.unwrap_or(call)).collect();
            message.set("tool_calls", format!("[{}]", calls.join(",")));
            changed = true;
        }
        if message.is_from("tool") && message.rename() {
            changed = true;
        }
    }
    changed
}

fn id_and_name(call: &str) -> Option<(String, String)> {
    let call = Object::parse(call).ok()?;
    Some((call.string("id")?, Object::parse(call.get("function")?).ok()?.string("name")?))
}

/// Replaces the ids of calls and results by nine letters and digits that depend on the id alone.
fn shorten_ids(conversation: &mut Conversation<'_>) -> bool {
    let is_short = |id: &str| id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let mut changed = false;
    for message in &mut conversation.0 {
        if let Some(id) = message.object.string("tool_call_id").filter(|id| !is_short(id)) {
            message.set("tool_call_id", encode_string(&short_id(&id)));
            changed = true;
        }
        let calls = message.calls();
        let shortened: Vec<String> = calls
            .iter()
            .map(|text| {
                let Ok(mut call) = Object::parse(text) else { return text.clone() };
                match call.string("id").filter(|id| !is_short(id)) {
                    Some(id) => {
                        call.set("id", encode_string(&short_id(&id)));
                        call.to_json()
                    }
                    None => text.clone(),
                }
            })
            .collect();
        if shortened != calls {
            message.set("tool_calls", format!("[{}]", shortened.join(",")));
            changed = true;
        }
    }
    changed
}

/// Nine characters from a 64-bit FNV-1a hash of the id.
fn short_id(id: &str) -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let hash = id
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let mut rest = hash;
    (0..9)
        .map(|_| {
            let digit = DIGITS[usize::try_from(rest % 36).unwrap_or_default()];
            rest /= 36;
            char::from(digit)
        })
        .collect()
}

/// Gives each call exactly one result, in the order of the calls: results of one call are joined, and a
/// missing one is a short text.
fn complete_results(conversation: &mut Conversation<'_>) -> bool {
    let mut changed = false;
    let mut completed: Vec<Entry<'_>> = Vec::with_capacity(conversation.0.len());
    let mut rest: VecDeque<Entry<'_>> = conversation.0.drain(..).collect();
    while let Some(message) = rest.pop_front() {
        let ids: Vec<String> = message.calls().iter().filter_map(|call| Some(id_and_name(call)?.0)).collect();
        let is_last = rest.is_empty();
        completed.push(message);
        if ids.is_empty() || is_last {
            continue;
        }
        let mut results: Vec<Entry<'_>> = Vec::new();
        while rest.front().is_some_and(|next| next.is_from("tool")) {
            results.extend(rest.pop_front());
        }
        let given: Vec<Option<String>> =
            results.iter().map(|result| result.object.string("tool_call_id")).collect();
        if given.iter().flatten().eq(ids.iter()) {
            completed.extend(results);
            continue;
        }
        changed = true;
        completed.extend(ids.iter().map(|id| join_results(id, &results)));
    }
    conversation.0 = completed;
    changed
}

fn join_results<'a>(id: &str, results: &[Entry<'a>]) -> Entry<'a> {
    let mut own = results.iter().filter(|result| result.object.string("tool_call_id").as_deref() == Some(id));
    let Some(mut joined) = own.next().cloned() else {
        let mut missing = Entry::new("tool", NO_RESULT);
        missing.set("tool_call_id", encode_string(id));
        return missing;
    };
    own.for_each(|more| joined.append_content(more));
    joined
}

/// Turns a message with several calls into one message for each call, followed by its result.
fn split_calls(conversation: &mut Conversation<'_>) -> bool {
    let mut changed = false;
    let mut split: Vec<Entry<'_>> = Vec::with_capacity(conversation.0.len());
    let mut rest: VecDeque<Entry<'_>> = conversation.0.drain(..).collect();
    while let Some(message) = rest.pop_front() {
        let calls = message.calls();
        if calls.len() < 2 {
            split.push(message);
            continue;
        }
        changed = true;
        let mut results: Vec<Entry<'_>> = Vec::new();
        while rest.front().is_some_and(|next| next.is_from("tool")) {
            results.extend(rest.pop_front());
        }
        for (position, call) in calls.iter().enumerate() {
            let mut part = message.clone();
            part.set("tool_calls", format!("[{call}]"));
            if position > 0 {
                part.set("content", "\"\"");
                REASONING.iter().for_each(|key| part.remove(key));
            }
            split.push(part);
            let id = Object::parse(call).ok().and_then(|call| call.get("id").and_then(decode_string));
            let is_own = |result: &Entry<'_>| result.object.string("tool_call_id") == id;
            let (own, others) = results.into_iter().partition(is_own);
            let own: Vec<Entry<'_>> = own;
            split.extend(own);
            results = others;
        }
        split.extend(results);
    }
    conversation.0 = split;
    changed
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "literals read better without a reference")]
    fn check(rule: &Rule, messages: Value, expected: Value) {
        let text = messages.to_string();
        let mut conversation = Conversation::read(&text).unwrap();
        let changed = change_messages(&mut conversation, rule);
        let json: Value = serde_json::from_str(&conversation.to_json()).unwrap();
        assert_eq!(json, expected, "{rule}");
        assert_eq!(changed, messages != expected, "{rule}");
        assert!(!change_messages(&mut conversation, rule), "{rule} twice changes nothing more");
    }

    #[test]
    fn later_system_messages_join_the_first() {
        check(
            &Rule::SystemFirst,
            json!([{"role":"system","content":"a"},{"role":"user","content":"hi"},{"role":"developer","content":"b \"c\""}]),
            json!([{"role":"system","content":"a\n\nb \"c\""},{"role":"user","content":"hi"}]),
        );
        check(
            &Rule::SystemFirst,
            json!([{"role":"user","content":"hi"},{"role":"system","content":[{"type":"text","text":"a"}]}]),
            json!([{"role":"system","content":[{"type":"text","text":"a"}]},{"role":"user","content":"hi"}]),
        );
    }

    #[test]
    fn system_text_becomes_the_users() {
        let users = json!([{"role":"user","content":"a"},{"role":"user","content":"b"}]);
        check(&Rule::SystemAsUser, users.clone(), users);
        check(
            &Rule::SystemAsUser,
            json!([{"role":"system","content":"a"},{"role":"user","content":"hi"}]),
            json!([{"role":"user","content":"<system>\n\na\n\n</system>\n\nhi"}]),
        );
    }

    #[test]
    fn the_user_and_the_assistant_take_turns() {
        let call = json!({"role":"assistant","content":null,"tool_calls":[{"id":"1"}]});
        let result = json!({"role":"tool","tool_call_id":"1","content":"r"});
        let user = json!({"role":"user","content":"a"});
        check(
            &Rule::AlternateRoles,
            json!([user, call, result, user]),
            json!([user, call, result, {"role":"assistant","content":"OK."}, user]),
        );
        let (system, answer) =
            (json!({"role":"system","content":"s"}), json!({"role":"assistant","content":"b"}));
        check(
            &Rule::AlternateRoles,
            json!([system, answer]),
            json!([system, {"role":"user","content":"Continue."}, answer]),
        );
        let complete = json!([system, user, call, result, call, result, answer, user]);
        check(&Rule::AlternateRoles, complete.clone(), complete);
    }

    #[test]
    fn calls_and_results_become_text() {
        let call = json!({"id":"1","function":{"name":"f","arguments":"{\"x\":1}"}});
        let picture = json!({"type":"image_url","image_url":{"url":"x"}});
        check(
            &Rule::CallsAsText,
            json!([{"role":"user","content":"a"}, {"role":"assistant","content":"t","tool_calls":[call, call]},
                {"role":"tool","tool_call_id":"1","name":"f","content":[picture]}, {"role":"user","content":"b"}]),
            json!([{"role":"user","content":"a"},
                {"role":"assistant","content":"t\n\n<tool_call>\n{\"name\":\"f\",\"arguments\":{\"x\":1}}\n</tool_call>\n<tool_call>\n{\"name\":\"f\",\"arguments\":{\"x\":1}}\n</tool_call>"},
                {"role":"user","content":[{"type":"text","text":"<tool_response>"}, picture,
                    {"type":"text","text":"</tool_response>"}, {"type":"text","text":"b"}]}]),
        );
    }

    #[test]
    fn neighbours_of_one_role_are_merged() {
        check(
            &Rule::AlternateRoles,
            json!([{"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"b"}]},
                {"role":"assistant","content":"x"},{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]},
                {"role":"tool","tool_call_id":"1","content":"r"},{"role":"tool","tool_call_id":"2","content":"s"}]),
            json!([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
                {"role":"assistant","content":"x","tool_calls":[{"id":"1"}]},
                {"role":"tool","tool_call_id":"1","content":"r"},{"role":"tool","tool_call_id":"2","content":"s"}]),
        );
    }

    #[test]
    fn calls_and_results_have_the_names_of_their_tools() {
        check(
            &Rule::ToolNames,
            json!([{"role":"user","name":"a.b","content":"hi"},
                {"role":"assistant","tool_calls":[{"id":"1","function":{"name":"read","arguments":"{}"}},
                    {"id":"2","function":{"name":"mcp.github.read","arguments":"{}"}}]},
                {"role":"tool","name":"mcp.github.read","tool_call_id":"2","content":"x"}]),
            json!([{"role":"user","name":"a.b","content":"hi"},
                {"role":"assistant","tool_calls":[{"id":"1","function":{"name":"read","arguments":"{}"}},
                    {"id":"2","function":{"name":"mcp_github_read_2c9be892","arguments":"{}"}}]},
                {"role":"tool","name":"mcp_github_read_2c9be892","tool_call_id":"2","content":"x"}]),
        );
    }

    #[test]
    fn a_conversation_ends_with_and_has_a_user_message() {
        check(
            &Rule::AssistantNotLast,
            json!([{"role":"assistant","content":"x"}]),
            json!([{"role":"assistant","content":"x"},{"role":"user","content":"Continue."}]),
        );
        check(
            &Rule::UserMessage,
            json!([{"role":"system","content":"x"},{"role":"assistant","content":"y"}]),
            json!([{"role":"system","content":"x"},{"role":"user","content":"Continue."},{"role":"assistant","content":"y"}]),
        );
    }

    #[test]
    fn contents_take_the_form_that_is_wanted() {
        let parts =
            json!([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]);
        check(&Rule::TextContent, parts.clone(), json!([{"role":"user","content":"a\n\nb"}]));
        let picture = json!([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]);
        check(&Rule::TextContent, picture.clone(), picture);
        check(
            &Rule::PartsContent,
            json!([{"role":"user","content":"a"}]),
            json!([{"role":"user","content":[{"type":"text","text":"a"}]}]),
        );
        check(
            &Rule::NullContent,
            json!([{"role":"assistant","content":null,"tool_calls":[{}]}]),
            json!([{"role":"assistant","content":"","tool_calls":[{}]}]),
        );
        check(
            &Rule::EmptyContent,
            json!([{"role":"user","content":""},{"role":"assistant","content":"","tool_calls":[{"id":"1"}]},
                {"role":"tool","content":"","tool_call_id":"1"}]),
            json!([{"role":"assistant","tool_calls":[{"id":"1"}]},
                {"role":"tool","content":"(no result)","tool_call_id":"1"}]),
        );
    }

    #[test]
    fn results_get_names_and_short_ids() {
        let call = |id: &str| json!({"id":id,"type":"function","function":{"name":"read","arguments":"{}"}});
        let messages = json!([{"role":"assistant","tool_calls":[call("call_1234567890")]},
            {"role":"tool","tool_call_id":"call_1234567890","content":"x"}]);
        check(
            &Rule::ResultName,
            messages.clone(),
            json!([messages[0],{"role":"tool","tool_call_id":"call_1234567890","content":"x","name":"read"}]),
        );
        let id = short_id("call_1234567890");
        check(
            &Rule::ShortIds,
            messages,
            json!([{"role":"assistant","tool_calls":[call(&id)]},{"role":"tool","tool_call_id":id,"content":"x"}]),
        );
    }

    #[test]
    fn each_call_has_one_result() {
        let call = |id: &str| json!({"id":id,"function":{"name":"f"}});
        let result = |id: &str, text: &str| json!({"role":"tool","tool_call_id":id,"content":text});
        check(
            &Rule::OneResultPerCall,
            json!([{"role":"assistant","tool_calls":[call("a"),call("b")]},result("a","1"),result("a","2"),{"role":"user","content":"x"}]),
            json!([{"role":"assistant","tool_calls":[call("a"),call("b")]},result("a","1\n\n2"),
                {"role":"tool","content":"(no result)","tool_call_id":"b"},{"role":"user","content":"x"}]),
        );
        check(
            &Rule::OneCallPerMessage,
            json!([{"role":"assistant","content":"t","tool_calls":[call("a"),call("b")]},result("b","2"),result("a","1")]),
            json!([{"role":"assistant","content":"t","tool_calls":[call("a")]},result("a","1"),
                {"role":"assistant","content":"","tool_calls":[call("b")]},result("b","2")]),
        );
    }
}
