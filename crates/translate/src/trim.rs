//! Shortens a conversation that does not fit the model's window: long tool results first, then old messages.
//!
//! These parts stay: system and developer messages, the first and the last real user message, and the newest
//! call with its results. A call and its results stay or go together. A note in place of the removed parts
//! says how much they were. A pure function over the messages' texts; unchanged messages keep their bytes.
//! Called by `relay`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use super::loop_guard::is_real_user;
use wire::{Message, Object, array_elements, decode_string, encode_string};

/// The length of a shortened tool result, before messages are left out and, if that is not enough,
/// afterwards. In bytes, with the note.
const KEPT: usize = 1024;
const KEPT_AT_LEAST: usize = 256;

/// The beginning of the notes.
const NOTE: &str = "[respool ";

/// A shortened conversation, and the amount that was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trimmed {
    /// The messages, as a JSON array.
    pub messages: String,
    /// The number of shortened tool results.
    pub results: usize,
    /// The number of messages left out.
    pub left_out: usize,
    /// The bytes that were saved.
    pub bytes: usize,
}

/// Removes as little as possible to bring the messages to `target` bytes, or everything that may go if that
/// is not enough. `None` when they are short enough, or nothing may go.
pub fn trim_conversation(messages: &[Message<'_>], target: usize) -> Option<Trimmed> {
    let mut draft = Draft::new(messages, target);
    draft.shorten_results(KEPT);
    draft.leave_out();
    draft.shorten_results(KEPT_AT_LEAST);
    draft.into_trimmed()
}

struct Draft<'m, 'a> {
    messages: &'m [Message<'a>],
    /// The text to send for each message; `None` for a removed one.
    texts: Vec<Option<Cow<'a, str>>>,
    before: usize,
    size: usize,
    target: usize,
}

impl<'m, 'a> Draft<'m, 'a> {
    fn new(messages: &'m [Message<'a>], target: usize) -> Self {
        let texts: Vec<_> = messages.iter().map(|message| Some(message.to_json())).collect();
        let size = texts.iter().flatten().map(|text| text.len()).sum();
        Self { messages, texts, before: size, size, target }
    }

    fn excess(&self) -> usize {
        self.size.saturating_sub(self.target)
    }

    fn replace_text(&mut self, place: usize, text: Option<String>) {
        let length = |text: &Option<Cow<'_, str>>| text.as_ref().map_or(0, |text| text.len());
        let text = text.map(Cow::Owned);
        self.size = self.size + length(&text) - length(&self.texts[place]);
        self.texts[place] = text;
    }

    /// Shortens tool results, the oldest first.
    fn shorten_results(&mut self, kept: usize) {
        for place in 0..self.messages.len() {
            let excess = self.excess();
            if excess == 0 {
                return;
            }
            if !self.messages[place].has_role("tool") {
                continue;
            }
            let Some(text) = &self.texts[place] else { continue };
            let shorter = shorter_result(&self.messages[place].object, excess, kept);
            if let Some(shorter) = shorter.filter(|shorter| shorter.len() < text.len()) {
                self.replace_text(place, Some(shorter));
            }
        }
    }

    /// Leaves out the oldest exchanges first, then the oldest calls of the current one.
    fn leave_out(&mut self) {
        let bounds = Bounds::new(self.messages);
        let exchanges = split_range(bounds.middle_range(), |place| is_real_user(&self.messages[place]));
        self.leave_out_parts(&exchanges, &bounds);
        let mut calls =
            split_range(bounds.current_range(), |place| self.messages[place].has_role("assistant"));
        calls.pop();
        self.leave_out_parts(&calls, &bounds);
    }

    fn leave_out_parts(&mut self, parts: &[Range<usize>], bounds: &Bounds) {
        let mut gone = LeftOut::default();
        for part in parts {
            if self.excess() == 0 {
                return;
            }
            if !bounds.is_closed(part) {
                continue;
            }
            let may_go = |place: &usize| {
                let message = &self.messages[*place];
                !(message.has_role("system")
                    || message.has_role("developer")
                    || message.content_starts_with(NOTE))
            };
            let places: Vec<usize> = part.clone().filter(may_go).collect();
            self.leave_out_places(&places, &mut gone);
        }
    }

    /// Replaces messages by a note at the first one, if that makes the conversation shorter.
    fn leave_out_places(&mut self, places: &[usize], gone: &mut LeftOut) {
        let Some(first) = places.first() else { return };
        let texts = places.iter().filter_map(|place| self.texts[*place].as_ref());
        let bytes: usize = texts.map(|text| text.len()).sum();
        let original = places.iter().map(|place| self.messages[*place].to_json().len()).sum::<usize>();
        let next = LeftOut {
            place: gone.place.or(Some(*first)),
            messages: gone.messages + places.len(),
            bytes: gone.bytes + original,
        };
        let note = next.to_message();
        let replaced = gone.place.and_then(|place| self.texts[place].as_ref()).map_or(0, |text| text.len());
        if note.len() >= bytes + replaced {
            return;
        }
        places.iter().for_each(|place| self.replace_text(*place, None));
        *gone = next;
        if let Some(place) = gone.place {
            self.replace_text(place, Some(note));
        }
    }

    fn into_trimmed(self) -> Option<Trimmed> {
        if self.size == self.before {
            return None;
        }
        let changed = |(message, text): &(&Message<'_>, &Option<Cow<'_, str>>)| {
            message.has_role("tool") && matches!(text, Some(Cow::Owned(text)) if !is_note(text))
        };
        let results = self.messages.iter().zip(&self.texts).filter(changed).count();
        let is_gone = |text: &&Option<Cow<'_, str>>| {
            text.as_ref().is_none_or(|text| matches!(text, Cow::Owned(text) if is_note(text)))
        };
        let left_out = self.texts.iter().filter(is_gone).count();
        let texts: Vec<Cow<'_, str>> = self.texts.into_iter().flatten().collect();
        let messages = format!("[{}]", texts.join(","));
        Some(Trimmed { messages, results, left_out, bytes: self.before - self.size })
    }
}

/// The messages that a note replaces.
#[derive(Default)]
struct LeftOut {
    place: Option<usize>,
    messages: usize,
    bytes: usize,
}

impl LeftOut {
    /// Writes the note as an assistant's message, so that roles still alternate, which some templates
    /// require.
    fn to_message(&self) -> String {
        let text = format!(
            "{NOTE}left out {} earlier message{} here ({} bytes), to fit the model's context window]",
            self.messages,
            if self.messages == 1 { "" } else { "s" },
            self.bytes
        );
        format!(r#"{{"role":"assistant","content":{}}}"#, encode_string(&text))
    }
}

fn is_note(text: &str) -> bool {
    text.starts_with(r#"{"role":"assistant","content":"[respool left out "#)
}

/// The places at which the conversation may be cut.
struct Bounds {
    first_user: Option<usize>,
    last_user: Option<usize>,
    count: usize,
    /// For each message that is a result: the message that made the call.
    asked_in: HashMap<usize, usize>,
    /// For each message that made calls: its last result.
    answered_in: HashMap<usize, usize>,
}

impl Bounds {
    fn new(messages: &[Message<'_>]) -> Self {
        let mut makers: HashMap<String, usize> = HashMap::new();
        let (mut asked_in, mut answered_in) = (HashMap::new(), HashMap::new());
        for (place, message) in messages.iter().enumerate() {
            let calls = message.tool_calls();
            makers.extend(calls.iter().filter_map(|call| Some((call.id.clone()?, place))));
            let id = message.object.string("tool_call_id").filter(|_| message.has_role("tool"));
            if let Some(maker) = id.and_then(|id| makers.get(&id)) {
                asked_in.insert(place, *maker);
                answered_in.insert(*maker, place);
            }
        }
        Self {
            first_user: messages.iter().position(is_real_user),
            last_user: messages.iter().rposition(is_real_user),
            count: messages.len(),
            asked_in,
            answered_in,
        }
    }

    /// Returns the messages between the first and the last user message.
    fn middle_range(&self) -> Range<usize> {
        let first = self.first_user.map_or(self.count, |place| place + 1);
        first..self.last_user.unwrap_or(0).max(first)
    }

    /// Returns the messages after the last user message.
    fn current_range(&self) -> Range<usize> {
        self.last_user.or(self.first_user).map_or(0, |place| place + 1)..self.count
    }

    /// Returns true when the part contains all results of its calls and all calls of its results.
    fn is_closed(&self, part: &Range<usize>) -> bool {
        part.clone().all(|place| {
            let maker = self.asked_in.get(&place);
            let result = self.answered_in.get(&place);
            maker.is_none_or(|maker| part.contains(maker))
                && result.is_none_or(|result| part.contains(result))
        })
    }
}

/// Cuts a range into parts at the places where `begins` is true.
fn split_range(range: Range<usize>, begins: impl Fn(usize) -> bool) -> Vec<Range<usize>> {
    let mut parts: Vec<Range<usize>> = Vec::new();
    for place in range {
        match parts.last_mut().filter(|_| !begins(place)) {
            Some(part) => part.end = place + 1,
            None => parts.push(place..place + 1),
        }
    }
    parts
}

/// Removes `excess` bytes of a tool message's content, but keeps at least `kept` bytes of each text.
fn shorter_result(message: &Object<'_>, excess: usize, kept: usize) -> Option<String> {
    let content = message.get("content")?;
    let shorter = match array_elements(content) {
        Some(parts) => shorter_parts(&parts, excess, kept)?,
        None => shorter_string(content, excess, kept)?,
    };
    let mut message = message.clone();
    message.set("content", shorter);
    Some(message.to_json())
}

fn shorter_parts(parts: &[&str], mut excess: usize, kept: usize) -> Option<String> {
    let mut changed = false;
    let parts: Vec<Cow<'_, str>> = parts
        .iter()
        .map(|part| match shorter_part(part, excess, kept) {
            Some(shorter) if shorter.len() < part.len() => {
                excess = excess.saturating_sub(part.len() - shorter.len());
                changed = true;
                Cow::Owned(shorter)
            }
            _ => Cow::Borrowed(*part),
        })
        .collect();
    changed.then(|| format!("[{}]", parts.join(",")))
}

fn shorter_part(part: &str, excess: usize, kept: usize) -> Option<String> {
    let mut object = Object::parse(part).ok()?;
    let shorter = shorter_string(object.get("text")?, excess, kept)?;
    object.set("text", shorter);
    Some(object.to_json())
}

/// Removes the middle of a JSON string; `None` for other JSON and for a short one.
fn shorter_string(json: &str, excess: usize, kept: usize) -> Option<String> {
    if excess == 0 || json.len() <= kept {
        return None;
    }
    let text = decode_string(json).filter(|text| text.len() > kept)?;
    let note = |cut: usize| {
        format!("\n\n{NOTE}cut {cut} bytes of this tool result here, to fit the model's context window]\n\n")
    };
    let note_size = encode_string(&note(text.len())).len();
    let room = kept.max(text.len().saturating_sub(excess)).saturating_sub(note_size);
    // The beginning often shows the subject, and the end the outcome.
    let head = text.floor_char_boundary(room * 2 / 3);
    let tail = text.ceil_char_boundary(text.len() - (room - head).min(text.len() - head));
    Some(encode_string(&format!("{}{}{}", &text[..head], note(tail - head), &text[tail..])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use wire::ChatRequest;

    fn trimmed(messages: &[Value], target: usize) -> Option<(Trimmed, Vec<Value>)> {
        let body = json!({"messages": messages}).to_string();
        let request = ChatRequest::parse(body.as_bytes()).unwrap();
        let trimmed = trim_conversation(&request.messages, target)?;
        let messages = serde_json::from_str(&trimmed.messages).unwrap();
        Some((trimmed, messages))
    }

    /// As the target is measured: the messages' texts without what joins them.
    fn size(messages: &[Value]) -> usize {
        messages.iter().map(|message| message.to_string().len()).sum()
    }

    fn user(text: &str) -> Value {
        json!({"role": "user", "content": text})
    }

    fn call(id: &str) -> Value {
        json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": id, "type": "function", "function": {"name": "read", "arguments": "{\"path\":\"a.txt\"}"}}]})
    }

    fn result(id: &str, bytes: usize) -> Value {
        json!({"role": "tool", "tool_call_id": id, "content": format!("{}{}END", "x".repeat(bytes), "y".repeat(40))})
    }

    fn system() -> Value {
        json!({"role": "system", "content": "You are an agent."})
    }

    #[test]
    fn what_fits_is_left_alone() {
        let messages = [system(), user("hi"), call("a"), result("a", 9_000)];
        assert_eq!(trimmed(&messages, size(&messages)), None);
        assert_eq!(trimmed(&[system(), user(&"long ".repeat(9_000))], 10), None, "nothing in it may go");
    }

    #[test]
    fn the_oldest_results_are_shortened_first() {
        let messages = [system(), user("go"), call("a"), result("a", 9_000), call("b"), result("b", 9_000)];
        let target = size(&messages) - 5_000;
        let (trimmed, left) = trimmed(&messages, target).unwrap();
        assert_eq!((trimmed.results, trimmed.left_out), (1, 0));
        assert_eq!(left[5], messages[5], "the newer one is whole");
        let content = left[3]["content"].as_str().unwrap();
        assert!(content.starts_with("xxx") && content.ends_with("yyyEND"), "{content}");
        let cut = messages[3]["content"].as_str().unwrap().len()
            - content.replace(|c| !"xyEND".contains(c), "").len();
        assert!(content.contains("[respool cut "), "{content}");
        assert!((5_000..5_200).contains(&cut), "{cut}");
        assert!((target - 100..=target).contains(&size(&left)), "{} of {target}", size(&left));
    }

    #[test]
    fn parts_and_escapes_are_cut_at_characters() {
        let mut result = result("a", 0);
        result["content"] = json!([{"type": "text", "text": "ä\n\"".repeat(3_000)}, {"type": "image_url", "image_url": {"url": "data:x"}}]);
        let messages = [user("go"), call("a"), result];
        let (trimmed, left) = trimmed(&messages, 4_000).unwrap();
        assert!(size(&left) <= 4_000 && trimmed.results == 1, "{}", size(&left));
        assert_eq!(left[2]["content"][1], messages[2]["content"][1]);
    }

    #[test]
    fn old_exchanges_go_before_the_calls_of_this_one() {
        let mut messages = vec![system(), user("first")];
        for turn in 0..4 {
            messages.extend([
                json!({"role": "assistant", "content": "a".repeat(900)}),
                user(&format!("{turn} {}", "u".repeat(900))),
            ]);
        }
        messages.extend([call("p"), result("p", 500), call("q"), result("q", 500)]);
        let (trimmed, left) = trimmed(&messages, 3_300).unwrap();
        assert_eq!((trimmed.results, trimmed.left_out), (0, 7));
        assert_eq!(left[..2], messages[..2]);
        assert_eq!(left[2]["role"], "assistant");
        assert!(
            left[2]["content"].as_str().unwrap().starts_with("[respool left out 7 earlier messages here ("),
            "{}",
            left[2]
        );
        assert_eq!(left[3..], messages[9..]);
    }

    #[test]
    fn the_newest_call_and_the_last_user_message_stay() {
        let internal = user("<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>> now");
        let mut messages = vec![system(), user("only one")];
        for turn in 0..50 {
            messages.extend([call(&turn.to_string()), result(&turn.to_string(), 200)]);
        }
        messages.push(internal.clone());
        let (trimmed, left) = trimmed(&messages, 0).unwrap();
        assert_eq!(trimmed.left_out, 98);
        assert_eq!(left.len(), 6, "{left:#?}");
        assert_eq!(
            (&left[1], &left[3], &left[4], &left[5]),
            (&messages[1], &messages[100], &messages[101], &internal)
        );
    }

    #[test]
    fn a_call_and_its_result_are_never_parted() {
        let late = result("a", 20);
        let messages = [user("1"), call("a"), user("2"), late, user(&"3".repeat(500)), user("4")];
        let (_, left) = trimmed(&messages, 0).unwrap();
        assert!(left.contains(&messages[1]) && left.contains(&messages[3]), "{left:#?}");
        assert!(!left.contains(&messages[4]));
    }

    /// A conversation: for each exchange the question's length, and for each call of it the lengths of its
    /// results.
    fn conversation(exchanges: &[(usize, Vec<Vec<usize>>)]) -> Vec<Value> {
        let mut messages = vec![system()];
        for (turn, (question, calls)) in exchanges.iter().enumerate() {
            messages.push(user(&"q".repeat(*question)));
            for (index, results) in calls.iter().enumerate() {
                let id = |place: usize| format!("c{turn}x{index}x{place}");
                let mut assistant = call(&id(0));
                let list: Vec<Value> =
                    (0..results.len()).map(|place| call(&id(place))["tool_calls"][0].clone()).collect();
                assistant["tool_calls"] = list.into();
                messages.push(assistant);
                messages.extend(results.iter().enumerate().map(|(place, bytes)| result(&id(place), *bytes)));
            }
            messages.push(json!({"role": "assistant", "content": "done"}));
        }
        messages.push(user("and now?"));
        messages
    }

    fn ids(messages: &[Value], role: &str) -> Vec<String> {
        let of = |message: &Value| match role {
            "tool" => vec![message["tool_call_id"].as_str().map(str::to_owned)],
            _ => message["tool_calls"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|call| call["id"].as_str().map(str::to_owned))
                .collect(),
        };
        messages.iter().filter(|message| message["role"] == role).flat_map(of).flatten().collect()
    }

    proptest! {
        #[test]
        fn what_must_stay_stays(
            exchanges in prop::collection::vec((1usize..3_000, prop::collection::vec(prop::collection::vec(0usize..6_000, 1..3), 0..4)), 1..6),
            part in 0usize..120,
        ) {
            let messages = conversation(&exchanges);
            let before = size(&messages);
            let target = before * part / 100;
            let Some((trimmed, left)) = trimmed(&messages, target) else {
                prop_assert!(before <= target || exchanges.iter().all(|(_, calls)| calls.is_empty()) );
                return Ok(());
            };
            prop_assert!(size(&left) < before, "it never grows");
            prop_assert_eq!(size(&left), before - trimmed.bytes);
            prop_assert_eq!((&left[0], &left[1], left.last()), (&messages[0], &messages[1], messages.last()));
            prop_assert_eq!(ids(&left, "assistant"), ids(&left, "tool"), "calls and results go together");
            let again = super::tests::trimmed(&left, target);
            prop_assert_eq!(again, None, "a second time changes nothing");
            if size(&left) > target {
                // An exchange that is shorter than the note in its place stays.
                let is_long = |message: &&Value| message["role"] == "user" && message.to_string().len() > 300;
                let middle = left.iter().skip(2).rev().skip(1);
                prop_assert!(middle.filter(is_long).count() == 0, "all that may go has gone");
            }
        }
    }
}
