//! Translates the effort of reasoning that a client asks for into what a family of models obeys.
//!
//! Clients say it in six ways; chat templates read one or two. A model without a row gets the request as it
//! came. Sources: the chat templates of the models, and the documentation of vLLM, `SGLang`, llama.cpp and
//! Ollama.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value, json};
use wire::Object;
use wire::pattern::compile_pattern;

use crate::declared::merge;
use crate::parameters::EFFORT;

/// The effort that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    /// No reasoning.
    Off,
    /// Little.
    Low,
    /// The model's usual.
    Medium,
    /// Much.
    High,
}

/// The switch that a family of models obeys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// `reasoning_effort` with low, medium and high; it cannot be off.
    Effort,
    /// A field of `chat_template_kwargs` that is true or false.
    Template(&'static str),
    /// `chat_template_kwargs.thinking_budget`: 0 is off.
    Budget,
    /// `reasoning_effort` with `none` for off: Ollama's models, Mistral's.
    EffortOrNone,
}

/// One family of models.
#[derive(Debug)]
pub struct Family {
    /// The family's name.
    pub name: &'static str,
    /// A regular expression for the names of its models.
    pub models: &'static str,
    /// The switch that it obeys.
    pub switch: Switch,
}

/// The families; the first that fits counts.
pub const FAMILIES: &[Family] = &[
    Family { name: "gpt-oss", models: r"(?i)gpt-?oss", switch: Switch::Effort },
    Family { name: "Qwen 3", models: r"(?i)qwen-?3|qwq", switch: Switch::Template("enable_thinking") },
    Family {
        name: "DeepSeek V3.1 and newer",
        models: r"(?i)deepseek-?v(?:3\.[1-9]|[4-9])",
        switch: Switch::Template("thinking"),
    },
    Family {
        name: "GLM 4.5 and newer",
        models: r"(?i)glm-?(?:4\.[5-9]|[5-9])",
        switch: Switch::Template("enable_thinking"),
    },
    Family {
        name: "Granite 3.2 and newer",
        models: r"(?i)granite-?(?:3\.[2-9]|[4-9])",
        switch: Switch::Template("thinking"),
    },
    Family {
        name: "Nemotron Nano, Super and Ultra",
        models: r"(?i)nemotron",
        switch: Switch::Template("enable_thinking"),
    },
    Family {
        name: "Hunyuan A13B and HY",
        models: r"(?i)hunyuan|\bhy-",
        switch: Switch::Template("enable_thinking"),
    },
    Family {
        name: "Kimi K2.5 and newer",
        models: r"(?i)kimi-?k(?:2\.[5-9]|[3-9])",
        switch: Switch::Template("thinking"),
    },
    Family { name: "Gemma 4", models: r"(?i)gemma-?4", switch: Switch::Template("enable_thinking") },
    Family {
        name: "ERNIE 4.5 VL",
        models: r"(?i)ernie-?4\.5-vl",
        switch: Switch::Template("enable_thinking"),
    },
    Family { name: "EXAONE 4", models: r"(?i)exaone-?4", switch: Switch::Template("enable_thinking") },
    Family { name: "SmolLM 3", models: r"(?i)smollm-?3", switch: Switch::Template("enable_thinking") },
    Family { name: "Seed OSS", models: r"(?i)seed-?oss", switch: Switch::Budget },
    Family {
        name: "Magistral, Mistral Small 4",
        models: r"(?i)magistral|mistral-small-?4",
        switch: Switch::EffortOrNone,
    },
];

static PATTERNS: LazyLock<Vec<(Regex, &'static Family)>> =
    LazyLock::new(|| FAMILIES.iter().map(|family| (compile_pattern(family.models), family)).collect());

/// The family of a model, by its name at the server.
pub fn family_of(model: &str) -> Option<&'static Family> {
    PATTERNS.iter().find(|(pattern, _)| pattern.is_match(model)).map(|(_, family)| *family)
}

/// The effort that a request asks for, in whichever of the six ways; `None` when it says nothing.
pub fn asked_effort(object: &Object<'_>) -> Option<Effort> {
    let nested = |field: &str| object.get(field).and_then(|text| serde_json::from_str::<Value>(text).ok());
    let word = |text: &str| match text {
        "none" | "off" | "disabled" => Some(Effort::Off),
        "minimal" | "low" => Some(Effort::Low),
        "medium" | "adaptive" | "enabled" => Some(Effort::Medium),
        "high" | "xhigh" | "max" => Some(Effort::High),
        _ => None,
    };
    let switch = |value: &Value| match value {
        Value::Bool(true) => Some(Effort::Medium),
        Value::Bool(false) => Some(Effort::Off),
        Value::String(text) => word(text),
        _ => None,
    };
    let effort = object.string(EFFORT).and_then(|effort| word(&effort));
    let reasoning = || {
        let reasoning = nested("reasoning")?;
        reasoning.get("effort").or_else(|| reasoning.get("enabled")).and_then(switch)
    };
    let thinking = || nested("thinking")?.get("type").and_then(switch);
    let plain =
        || ["enable_thinking", "think"].into_iter().find_map(|field| nested(field).as_ref().and_then(switch));
    let template = || {
        let template = nested("chat_template_kwargs")?;
        ["enable_thinking", "thinking"].into_iter().find_map(|field| template.get(field).and_then(switch))
    };
    effort.or_else(reasoning).or_else(thinking).or_else(plain).or_else(template)
}

/// Writes the effort in the way that the model obeys. `off`: the fields that the owner declares for "off", if
/// any. Returns false when nothing changes.
pub fn apply_effort<'a>(
    object: &mut Object<'a>,
    model: &str,
    is_ollama: bool,
    off: Option<&'a Map<String, Value>>,
) -> bool {
    let Some(effort) = asked_effort(object) else { return false };
    if let (Effort::Off, Some(off)) = (effort, off) {
        return off.iter().filter(|(key, value)| merge(object, key, value, true)).count() > 0;
    }
    let family = family_of(model);
    let switch = if is_ollama { Some(Switch::EffortOrNone) } else { family.map(|family| family.switch) };
    let Some(switch) = switch else { return false };
    let changed = match switch {
        Switch::Effort => set_effort(object, if effort == Effort::Off { Effort::Low } else { effort }, "low"),
        Switch::EffortOrNone => set_effort(object, effort, "none"),
        Switch::Template(field) => {
            let kwargs = json!({ field: effort != Effort::Off });
            merge(object, "chat_template_kwargs", &kwargs, true)
        }
        Switch::Budget if effort == Effort::Off => {
            merge(object, "chat_template_kwargs", &json!({"thinking_budget": 0}), true)
        }
        Switch::Budget => false,
    };
    changed | remove_foreign_switches(object, switch)
}

fn set_effort(object: &mut Object<'_>, effort: Effort, off: &str) -> bool {
    let word = match effort {
        Effort::Off => off,
        Effort::Low => "low",
        Effort::Medium => "medium",
        Effort::High => "high",
    };
    if object.is_string(EFFORT, word) {
        return false;
    }
    object.set(EFFORT, format!("\"{word}\""));
    true
}

/// Removes the other ways of saying it: strict servers refuse unknown fields.
fn remove_foreign_switches(object: &mut Object<'_>, switch: Switch) -> bool {
    let keeps_effort = matches!(switch, Switch::Effort | Switch::EffortOrNone);
    let foreign = ["reasoning", "thinking", "enable_thinking", "think"]
        .into_iter()
        .chain((!keeps_effort).then_some(EFFORT));
    foreign.filter(|field| object.remove(field)).count() > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(model: &str, body: &str, expected: &str) {
        let mut object = Object::parse(body).unwrap();
        let changed = apply_effort(&mut object, model, false, None);
        assert_eq!(object.to_json(), expected, "{model}");
        assert_eq!(changed, body != expected);
        assert!(!apply_effort(&mut object, model, false, None), "twice changes nothing more");
    }

    #[test]
    fn off_reaches_each_family() {
        let off = r#"{"chat_template_kwargs":{"enable_thinking":false}}"#;
        for said in [
            r#"{"reasoning_effort":"none"}"#,
            r#"{"reasoning":{"effort":"none"}}"#,
            r#"{"reasoning":{"enabled":false}}"#,
            r#"{"thinking":{"type":"disabled"}}"#,
            r#"{"enable_thinking":false}"#,
            r#"{"think":false}"#,
        ] {
            check("Qwen/Qwen3-32B", said, off);
        }
        check("openai/gpt-oss-20b", r#"{"enable_thinking":false}"#, r#"{"reasoning_effort":"low"}"#);
        check("deepseek-v3.2", r#"{"think":false}"#, r#"{"chat_template_kwargs":{"thinking":false}}"#);
        check("seed-oss-36b", r#"{"think":false}"#, r#"{"chat_template_kwargs":{"thinking_budget":0}}"#);
        check("magistral-small", r#"{"think":false}"#, r#"{"reasoning_effort":"none"}"#);
    }

    #[test]
    fn a_model_without_a_row_keeps_the_request() {
        check("llama-3.3-70b", r#"{"think":false}"#, r#"{"think":false}"#);
        check("qwen3", r#"{"model":"qwen3"}"#, r#"{"model":"qwen3"}"#);
    }

    #[test]
    fn levels_reach_the_model() {
        check("gpt-oss-120b", r#"{"reasoning":{"effort":"xhigh"}}"#, r#"{"reasoning_effort":"high"}"#);
        check(
            "glm-4.6",
            r#"{"reasoning_effort":"high"}"#,
            r#"{"chat_template_kwargs":{"enable_thinking":true}}"#,
        );
    }

    #[test]
    fn the_owners_way_of_off_counts() {
        let off: Map<String, Value> =
            serde_json::from_str(r#"{"chat_template_kwargs":{"mode":"quick"}}"#).unwrap();
        let mut object = Object::parse(r#"{"think":false}"#).unwrap();
        assert!(apply_effort(&mut object, "my-model", false, Some(&off)));
        assert_eq!(object.to_json(), r#"{"think":false,"chat_template_kwargs":{"mode":"quick"}}"#);
    }
}
