//! Replaces pictures, audio and files by short texts, in all messages, for a model that takes none.

use serde_json::{Value, json};
use wire::{Object, array_elements, encode_string};

use crate::conversation::Conversation;
use crate::rule::Rule;

/// Replaces the parts that this rule names. Returns false when there are none.
pub(crate) fn replace_media(conversation: &mut Conversation<'_>, rule: &Rule) -> bool {
    if !matches!(rule, Rule::NoImages | Rule::NoAudio | Rule::NoFiles) {
        return false;
    }
    let mut changed = false;
    for message in &mut conversation.0 {
        let Some(parts) = message.object.get("content").and_then(array_elements) else { continue };
        let replaced: Vec<String> =
            parts.iter().map(|part| text_for(part, rule).unwrap_or_else(|| (*part).to_owned())).collect();
        if replaced.iter().zip(&parts).any(|(new, old)| new != old) {
            message.set("content", format!("[{}]", replaced.join(",")));
            changed = true;
        }
    }
    changed
}

/// A picture of 64 by 64 white points that every model with sight can read.
const PICTURE: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAEAAAABACAIAAAAlC+aJAAAAS0lEQVR42u3PMQ0AAAwDoPo33UrYvQQckD4XAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAYHLAMpT0sIcNbcEAAAAAElFTkSuQmCC";
/// The beginning of a tenth of a second of silence, with 16,000 values of 16 bits a second. The rest is `A`s.
const SILENCE: &str = "UklGRqYMAABXQVZFZm10IBAAAAABAAEAgD4AAAB9AAACABAAZGF0YYIMAAAA";
/// How many groups of `AAAA` the silence has.
const SILENT_GROUPS: usize = 1067;

/// A request with a picture or a sound that is certainly good, which a model refuses only if it cannot see or
/// hear. `None` for a rule about something else.
pub fn known_good_request(rule: &Rule, model: &str) -> Option<String> {
    let part = match rule {
        Rule::NoImages => json!({"type": "image_url", "image_url": {"url": PICTURE}}),
        Rule::NoAudio => {
            let data = format!("{SILENCE}{}", "AAAA".repeat(SILENT_GROUPS));
            json!({"type": "input_audio", "input_audio": {"data": data, "format": "wav"}})
        }
        _ => return None,
    };
    let content = json!([{"type": "text", "text": "Say ok."}, part]);
    Some(
        json!({"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 1})
            .to_string(),
    )
}

/// True when a chat request's body has pictures in its messages.
pub fn has_pictures(body: &str) -> bool {
    let messages = Object::parse(body).ok().and_then(|object| object.get_original("messages"));
    let conversation = messages.and_then(Conversation::read);
    conversation.is_some_and(|mut conversation| replace_media(&mut conversation, &Rule::NoImages))
}

/// Returns true when a message's content has pictures or sounds.
pub fn has_media(content: &str) -> bool {
    let is_media = |part: &&str| matches!(rule_about(part), Some(Rule::NoImages | Rule::NoAudio));
    content.starts_with('[') && array_elements(content).is_some_and(|parts| parts.iter().any(is_media))
}

/// The rule that replaces this part.
fn rule_about(part: &str) -> Option<Rule> {
    match Object::parse(part).ok()?.string("type")?.as_str() {
        "image_url" | "image" | "input_image" | "video_url" | "image_file" => Some(Rule::NoImages),
        "input_audio" | "audio_url" | "audio" => Some(Rule::NoAudio),
        "file" | "input_file" | "document" => Some(Rule::NoFiles),
        _ => None,
    }
}

/// The text part that stands for this part, if the rule is about it.
fn text_for(part: &str, rule: &Rule) -> Option<String> {
    let (thing, verb) = match rule_about(part).filter(|about| about == rule)? {
        Rule::NoImages => ("picture", "see"),
        Rule::NoAudio => ("sound", "hear"),
        _ => ("file", "open"),
    };
    let details = details_of(part);
    let text = format!("[A {thing} was sent here{details}. This model cannot {verb} it.]");
    Some(format!(r#"{{"type":"text","text":{}}}"#, encode_string(&text)))
}

/// The file name, media type and size, as far as the part says them: ` (plan.pdf, application/pdf, 12 KB)`.
fn details_of(part: &str) -> String {
    let Ok(part) = serde_json::from_str::<Value>(part) else { return String::new() };
    let mut details = Vec::new();
    let holder =
        ["image_url", "input_audio", "audio_url", "file", "source"].iter().find_map(|key| part.get(key));
    let field = |key: &str| holder.and_then(|holder| holder.get(key)).or_else(|| part.get(key))?.as_str();
    details.extend(field("filename").map(|name| name.chars().take(80).collect::<String>()));
    let data =
        field("url").or_else(|| field("file_data")).or_else(|| field("data")).or_else(|| holder?.as_str());
    match data.and_then(|data| data.strip_prefix("data:")).and_then(|data| data.split_once(',')) {
        Some((head, data)) => {
            details.extend(head.split(';').next().filter(|kind| !kind.is_empty()).map(str::to_owned));
            details.push(format!("{} KB", (data.len() * 3 / 4).div_ceil(1000)));
        }
        None => details.extend(field("format").or_else(|| field("media_type")).map(str::to_owned)),
    }
    if details.is_empty() { String::new() } else { format!(" ({})", details.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_become_texts_in_all_messages() {
        let messages = json!([
            {"role":"user","content":[{"type":"text","text":"look"},
                {"type":"image_url","image_url":{"url":format!("data:image/png;base64,{}", "A".repeat(4000))}}]},
            {"role":"tool","content":[{"type":"image_url","image_url":{"url":"https://example.org/a.png"}}]},
            {"role":"user","content":[{"type":"input_audio","input_audio":{"data":"x","format":"wav"}}]}
        ])
        .to_string();
        let mut conversation = Conversation::read(&messages).unwrap();
        assert!(replace_media(&mut conversation, &Rule::NoImages));
        let json: Value = serde_json::from_str(&conversation.to_json()).unwrap();
        let text = "[A picture was sent here (image/png, 3 KB). This model cannot see it.]";
        assert_eq!(json[0]["content"][1], json!({"type":"text","text":text}));
        assert_eq!(json[1]["content"][0]["text"], "[A picture was sent here. This model cannot see it.]");
        assert_eq!(json[2]["content"][0]["type"], "input_audio");
        assert!(!replace_media(&mut conversation, &Rule::NoImages));
        assert!(replace_media(&mut conversation, &Rule::NoAudio));
        assert!(conversation.to_json().contains("(wav)"));
    }
}
