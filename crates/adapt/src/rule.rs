//! The rules, by name. A rule is stored and shown by its name, so names never change.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use wire::settings::Scalar;

/// The rules that apply to one upstream and model.
pub type RuleSet = BTreeSet<Rule>;

/// One construct that a server refuses, with the change that avoids it. [`crate::rows`] says more of each.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// `pattern` in a tool's schema.
    ToolPattern,
    /// `minLength` and `maxLength`.
    ToolStringLength,
    /// `minItems`, `maxItems`, `minProperties` and `maxProperties`.
    ToolItemCount,
    /// `format`.
    ToolFormat,
    /// `$ref`, `$defs` and `definitions`.
    ToolReference,
    /// `oneOf`, `anyOf` and `allOf`.
    ToolCombinator,
    /// `const`.
    ToolConst,
    /// `not`, `if`, `then`, `else`.
    ToolNegation,
    /// `additionalProperties` or `patternProperties` with a schema.
    ToolAdditionalProperties,
    /// `type` as a list.
    ToolTypeList,
    /// `nullable`.
    ToolNullable,
    /// An object without `properties`.
    ToolNoProperties,
    /// Everything that grammar compilers limit: patterns, lengths, counts and formats at once.
    ToolGrammarLimits,
    /// Every keyword but the basic ones.
    ToolBasicSchema,
    /// `strict` in a tool.
    ToolStrict,
    /// Names that are too long, or have other characters than letters, digits, `-` and `_`.
    ToolNames,
    /// System messages after the conversation's beginning, where the owner wants them to stay there.
    LaterSystemAsUser,
    /// System messages after the first message.
    SystemFirst,
    /// System messages at all.
    SystemAsUser,
    /// The role `developer`.
    DeveloperAsSystem,
    /// Calls and results at all.
    CallsAsText,
    /// Two messages of one role in a row.
    AlternateRoles,
    /// An assistant's message at the end.
    AssistantNotLast,
    /// A conversation without a message of the user.
    UserMessage,
    /// Content without text.
    EmptyContent,
    /// Content as parts.
    TextContent,
    /// Content as text.
    PartsContent,
    /// `null` as content.
    NullContent,
    /// Reasoning under two names in one message.
    OneReasoning,
    /// Content and reasoning in a message with calls.
    ReasoningOrContent,
    /// Tool results without a name.
    ResultName,
    /// Call ids that are not nine letters or digits.
    ShortIds,
    /// Calls without exactly one result.
    OneResultPerCall,
    /// Several calls in one message.
    OneCallPerMessage,
    /// Pictures.
    NoImages,
    /// Audio.
    NoAudio,
    /// Files.
    NoFiles,
    /// Tools, for a server that was started without a parser of calls.
    Unparsed,
    /// One parameter.
    Parameter(Parameter),
}

/// The change of one parameter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Parameter {
    /// It is left out.
    Drop(String),
    /// It is left out where it has the value that it has without being named.
    DropDefault(String),
    /// It goes under another name.
    Rename(String, String),
    /// Its value is at most this number, written in decimal.
    AtMost(String, String),
    /// `reasoning_effort` is low, medium or high.
    LimitEffort,
}

/// The part of a request's meaning that a rule costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// None: the adapted request says the same.
    Lossless,
    /// The server no longer checks something in a call; respool checks what it can of it in the reply.
    Enforced,
    /// Something that the reply can do without: it is said, and needs no consent.
    Minor,
    /// Something that the client asked for is missing: the owner must allow it.
    Lossy,
    /// A picture, sound or file becomes a text that says so. Allowed unless the owner forbids it.
    Media,
}

const RULE: Scalar = Scalar::Form("a rule of docs/requests.md", |text| {
    let is_pattern = text.ends_with('*');
    if is_pattern { Ok(()) } else { Ok(text.parse::<Rule>().map(drop)?) }
});

wire::settings! {
    /// `[adapt]`: the owner's consent to rules that lose something.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Consent {
        /// Changes of a request that cost a part of its meaning and are allowed where a server refuses it
        /// (docs/requests.md). `*` at the end stands for every rule that begins so. The refusal names the
        /// rule.
        pub lossy: Vec<String> = Vec::new(),
            with_form(RULE),
            with_example(r#"["parameter.drop:tool_choice", "messages.system_as_user"]"#);
        /// Replace pictures, audio and files by a text that says so where a model takes none. Otherwise every
        /// later request of the conversation fails, too.
        pub media: bool = true;
    }
}

impl Consent {
    /// True when this rule may be applied.
    pub fn allows(&self, rule: &Rule) -> bool {
        match rule.loss() {
            Loss::Lossless | Loss::Enforced | Loss::Minor => true,
            Loss::Media => self.media,
            Loss::Lossy => {
                let name = rule.to_string();
                self.lossy.iter().any(|allowed| match allowed.strip_suffix('*') {
                    Some(start) => name.starts_with(start),
                    None => *allowed == name,
                })
            }
        }
    }
}

/// The rules without a value, with their names.
const NAMED: &[(Rule, &str)] = &[
    (Rule::ToolPattern, "tools.pattern"),
    (Rule::ToolStringLength, "tools.string_length"),
    (Rule::ToolItemCount, "tools.item_count"),
    (Rule::ToolFormat, "tools.format"),
    (Rule::ToolReference, "tools.reference"),
    (Rule::ToolCombinator, "tools.combinator"),
    (Rule::ToolConst, "tools.const"),
    (Rule::ToolNegation, "tools.negation"),
    (Rule::ToolAdditionalProperties, "tools.additional_properties"),
    (Rule::ToolTypeList, "tools.type_list"),
    (Rule::ToolNullable, "tools.nullable"),
    (Rule::ToolNoProperties, "tools.no_properties"),
    (Rule::ToolGrammarLimits, "tools.grammar_limits"),
    (Rule::ToolBasicSchema, "tools.basic_schema"),
    (Rule::ToolStrict, "tools.strict"),
    (Rule::ToolNames, "tools.names"),
    (Rule::LaterSystemAsUser, "messages.later_system_as_user"),
    (Rule::SystemFirst, "messages.system_first"),
    (Rule::SystemAsUser, "messages.system_as_user"),
    (Rule::DeveloperAsSystem, "messages.developer_as_system"),
    (Rule::CallsAsText, "messages.calls_as_text"),
    (Rule::AlternateRoles, "messages.alternate_roles"),
    (Rule::AssistantNotLast, "messages.assistant_not_last"),
    (Rule::UserMessage, "messages.user_message"),
    (Rule::EmptyContent, "messages.empty_content"),
    (Rule::TextContent, "messages.text_content"),
    (Rule::PartsContent, "messages.parts_content"),
    (Rule::NullContent, "messages.null_content"),
    (Rule::OneReasoning, "messages.one_reasoning"),
    (Rule::ReasoningOrContent, "messages.reasoning_or_content"),
    (Rule::ResultName, "messages.result_name"),
    (Rule::ShortIds, "messages.short_ids"),
    (Rule::OneResultPerCall, "messages.one_result_per_call"),
    (Rule::OneCallPerMessage, "messages.one_call_per_message"),
    (Rule::NoImages, "media.images"),
    (Rule::NoAudio, "media.audio"),
    (Rule::NoFiles, "media.files"),
    (Rule::Unparsed, "calls.unparsed"),
];

impl Rule {
    /// Its name; empty for a rule with a value.
    fn name(&self) -> &'static str {
        NAMED.iter().find(|(known, _)| known == self).map_or("", |(_, name)| *name)
    }

    /// The setting that allows the rule.
    pub fn consent_setting(&self) -> String {
        match self.loss() {
            Loss::Media => "`[adapt] media = true`".to_owned(),
            _ => format!("`[adapt] lossy = [\"{self}\"]`"),
        }
    }

    /// A short name for logs and metrics: all rules about single parameters share one.
    pub fn label(&self) -> &'static str {
        if matches!(self, Self::Parameter(_)) { "refused_parameter" } else { self.name() }
    }

    pub(crate) fn is_about_tools(&self) -> bool {
        self.name().starts_with("tools.")
    }

    /// True for a rule that changes messages or the media in them.
    pub fn is_about_messages(&self) -> bool {
        let name = self.name();
        name.starts_with("messages.") || name.starts_with("media.") || *self == Self::ToolNames
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parameter(Parameter::Drop(name)) => write!(f, "parameter.drop:{name}"),
            Self::Parameter(Parameter::DropDefault(name)) => write!(f, "parameter.drop_default:{name}"),
            Self::Parameter(Parameter::Rename(from, to)) => write!(f, "parameter.rename:{from}:{to}"),
            Self::Parameter(Parameter::AtMost(name, limit)) => write!(f, "parameter.at_most:{name}:{limit}"),
            Self::Parameter(Parameter::LimitEffort) => f.write_str("parameter.limit_effort"),
            rule => f.write_str(rule.name()),
        }
    }
}

/// A rule's name that this version does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the name of a rule; docs/requests.md lists them")]
pub struct UnknownRule(pub String);

impl FromStr for Rule {
    type Err = UnknownRule;

    fn from_str(name: &str) -> Result<Self, UnknownRule> {
        if let Some((rule, _)) = NAMED.iter().find(|(_, known)| *known == name) {
            return Ok(rule.clone());
        }
        let parts: Vec<&str> = name.split(':').collect();
        let parameter = match parts.as_slice() {
            ["parameter.drop", name] => Parameter::Drop((*name).to_owned()),
            ["parameter.drop_default", name] => Parameter::DropDefault((*name).to_owned()),
            ["parameter.rename", from, to] => Parameter::Rename((*from).to_owned(), (*to).to_owned()),
            ["parameter.at_most", name, limit] if limit.parse::<f64>().is_ok() => {
                Parameter::AtMost((*name).to_owned(), (*limit).to_owned())
            }
            ["parameter.limit_effort"] => Parameter::LimitEffort,
            _ => return Err(UnknownRule(name.to_owned())),
        };
        Ok(Self::Parameter(parameter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back() {
        let parameters = [
            Parameter::Drop("store".to_owned()),
            Parameter::DropDefault("tool_choice".to_owned()),
            Parameter::Rename("max_completion_tokens".to_owned(), "max_tokens".to_owned()),
            Parameter::AtMost("temperature".to_owned(), "1".to_owned()),
            Parameter::LimitEffort,
        ];
        let rules = NAMED.iter().map(|(rule, _)| rule.clone()).chain(parameters.map(Rule::Parameter));
        for rule in rules {
            assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule.clone()));
        }
        assert!("tools.nothing".parse::<Rule>().is_err());
    }

    #[test]
    fn lossy_rules_need_consent() {
        let tool_choice = Rule::Parameter(Parameter::Drop("tool_choice".to_owned()));
        let none = Consent::default();
        assert!(
            none.allows(&Rule::ToolPattern) && none.allows(&Rule::NoImages) && !none.allows(&tool_choice)
        );
        let all = Consent { lossy: vec!["parameter.drop:*".to_owned()], media: false };
        assert!(all.allows(&tool_choice) && !all.allows(&Rule::NoImages));
    }
}
