//! Translates the effort of reasoning that a client asks for into what a family of models obeys.
//!
//! Clients say it in six ways; chat templates read one or two. respool adds the field that the model obeys,
//! and keeps the client's field, because some hosted services read it. It does not change a request for a
//! model that has no row.
//! Sources: the chat templates of the models, and the documentation of vLLM, `SGLang`, llama.cpp and Ollama.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Value, json};
use wire::Object;
use wire::pattern::compile_pattern;

use crate::declared::{Declared, EFFORT, merge};

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
    /// `chat_template_kwargs.thinking_budget`: 0 is off, 512 tokens are little.
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

/// Returns the family of a model, by its name at the server.
fn family_of(model: &str) -> Option<&'static Family> {
    PATTERNS.iter().find(|(pattern, _)| pattern.is_match(model)).map(|(_, family)| *family)
}

/// Returns true for the name of a model that writes OpenAI's Harmony, which always reasons.
pub fn is_gpt_oss(model: &str) -> bool {
    family_of(model).is_some_and(|family| family.switch == Switch::Effort)
}

/// Returns true for a field that can say the effort.
fn is_of_effort(key: &str) -> bool {
    matches!(key, EFFORT | "reasoning" | "thinking" | "enable_thinking" | "think" | "chat_template_kwargs")
}

/// Returns the effort that a request asks for, in any of the six ways; `None` if it says nothing of it.
pub fn asked_effort(object: &Object<'_>) -> Option<Effort> {
    // Most requests say nothing of it.
    if !object.may_have(is_of_effort) {
        return None;
    }
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

/// The facts about the receiver of a request that decide how the effort is written.
#[derive(Clone, Copy, Debug)]
pub struct EffortReader<'a> {
    /// The model's name at the server.
    pub model: &'a str,
    /// The server is Ollama, which reads `reasoning_effort` alone.
    pub is_ollama: bool,
    /// The parameters that the owner declares for the model.
    pub declared: &'a Declared,
}

impl<'a> EffortReader<'a> {
    /// Writes the effort that the client asks for in the way that the model obeys. Returns false when nothing
    /// changes.
    pub fn write_effort(&self, object: &mut Object<'a>) -> bool {
        if self.declared.decides_reasoning() {
            return false;
        }
        let Some(effort) = asked_effort(object) else { return false };
        let off = &self.declared.reasoning_off;
        if effort == Effort::Off && !off.is_empty() {
            return off.iter().filter(|(key, value)| merge(object, key, value, true)).count() > 0;
        }
        let Some(switch) = self.switch(effort) else { return false };
        match switch {
            Switch::Effort if effort == Effort::Off => set_effort(object, "low"),
            Switch::Effort | Switch::EffortOrNone => set_effort(object, effort.word()),
            Switch::Template(field) => {
                set_in_template(object, field, &json!({ field: effort != Effort::Off }))
            }
            Switch::Budget => match effort {
                Effort::Off => set_in_template(object, "thinking_budget", &json!({"thinking_budget": 0})),
                Effort::Low => set_in_template(object, "thinking_budget", &json!({"thinking_budget": 512})),
                Effort::Medium | Effort::High => false,
            },
        }
    }

    fn switch(&self, effort: Effort) -> Option<Switch> {
        let switch = family_of(self.model).map(|family| family.switch);
        // Ollama refuses to let a model reason that cannot.
        let is_known = switch.is_some() || effort == Effort::Off;
        if self.is_ollama { is_known.then_some(Switch::EffortOrNone) } else { switch }
    }
}

impl Effort {
    fn word(self) -> &'static str {
        match self {
            Self::Off => "none",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

fn set_effort(object: &mut Object<'_>, word: &str) -> bool {
    let changes = !object.is_string(EFFORT, word);
    if changes {
        object.set(EFFORT, format!("\"{word}\""));
    }
    changes
}

/// Sets a field of `chat_template_kwargs`, unless the client has set it.
fn set_in_template(object: &mut Object<'_>, field: &str, kwargs: &Value) -> bool {
    let template = object.get("chat_template_kwargs").and_then(|text| Object::parse(text).ok());
    let is_set = template.is_some_and(|template| template.get_raw(field).is_some());
    !is_set && merge(object, "chat_template_kwargs", kwargs, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(model: &str, is_ollama: bool, declared: &Declared, body: &str) -> String {
        let mut object = Object::parse(body).unwrap();
        let reader = EffortReader { model, is_ollama, declared };
        let changed = reader.write_effort(&mut object);
        let written = object.to_json();
        assert_eq!(changed, body != written);
        assert!(!reader.write_effort(&mut object), "twice changes nothing more");
        written
    }

    /// `added`: the field that the body gets.
    fn check(model: &str, body: &str, added: &str) {
        let expected = format!("{},{added}}}", body.trim_end_matches('}'));
        assert_eq!(write(model, false, &Declared::default(), body), expected, "{model}");
    }

    #[test]
    fn off_reaches_each_family() {
        let off = r#""chat_template_kwargs":{"enable_thinking":false}"#;
        for said in [
            r#"{"reasoning_effort":"none"}"#,
            r#"{"reasoning":"off","think":false}"#,
            r#"{"enable_thinking":false}"#,
            r#"{"think":false}"#,
        ] {
            check("Qwen/Qwen3-32B", said, off);
        }
        for said in [
            r#"{"reasoning":{"effort":"none"}}"#,
            r#"{"reasoning":{"enabled":false}}"#,
            r#"{"thinking":{"type":"disabled"}}"#,
        ] {
            let expected = format!("{},{off}}}", &said[..said.len() - 1]);
            assert_eq!(write("qwen3.6", false, &Declared::default(), said), expected);
        }
        check("openai/gpt-oss-20b", r#"{"enable_thinking":false}"#, r#""reasoning_effort":"low""#);
        check("deepseek-v3.2", r#"{"think":false}"#, r#""chat_template_kwargs":{"thinking":false}"#);
        check("seed-oss-36b", r#"{"think":false}"#, r#""chat_template_kwargs":{"thinking_budget":0}"#);
        check("magistral-small", r#"{"think":false}"#, r#""reasoning_effort":"none""#);
    }

    #[test]
    fn levels_reach_the_model() {
        let effort = write("gpt-oss-120b", false, &Declared::default(), r#"{"reasoning_effort":"xhigh"}"#);
        assert_eq!(effort, r#"{"reasoning_effort":"high"}"#);
        check(
            "glm-4.6",
            r#"{"reasoning_effort":"high"}"#,
            r#""chat_template_kwargs":{"enable_thinking":true}"#,
        );
        check(
            "seed-oss-36b",
            r#"{"reasoning_effort":"low"}"#,
            r#""chat_template_kwargs":{"thinking_budget":512}"#,
        );
    }

    #[test]
    fn a_request_that_says_nothing_stays() {
        for (model, body) in [
            ("llama-3.3-70b", r#"{"think":false}"#),
            ("qwen3", r#"{"model":"qwen3"}"#),
            ("qwen3", r#"{"reasoning_effort":"high","chat_template_kwargs":{"enable_thinking":false}}"#),
        ] {
            assert_eq!(write(model, false, &Declared::default(), body), body);
        }
    }

    #[test]
    fn ollama_reads_the_effort() {
        let none = Declared::default();
        assert_eq!(
            write("llama3.3", true, &none, r#"{"think":false}"#),
            r#"{"think":false,"reasoning_effort":"none"}"#
        );
        assert_eq!(write("llama3.3", true, &none, r#"{"think":true}"#), r#"{"think":true}"#);
    }

    #[test]
    fn the_owners_word_counts() {
        let fields = |text: &str| serde_json::from_str(text).unwrap();
        let kwargs = r#"{"chat_template_kwargs":{"mode":"quick"}}"#;
        let off = Declared { reasoning_off: fields(kwargs), ..Declared::default() };
        let expected = r#"{"think":false,"chat_template_kwargs":{"mode":"quick"}}"#;
        assert_eq!(write("my-model", false, &off, r#"{"think":false}"#), expected);
        let set = Declared { set: fields(kwargs), ..Declared::default() };
        let high = r#"{"reasoning_effort":"high"}"#;
        assert_eq!(write("qwen3", false, &set, high), high);
    }
}
