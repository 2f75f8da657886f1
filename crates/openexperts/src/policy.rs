//! Who decides about an operation: the tiers of a package's policy. The prompt lists them, and the tool
//! boundary enforces them. Pure.

use std::collections::BTreeMap;

use super::diagnostic::{At, Spanned, suggest_nearest};
use super::duration::Length;
use super::fields;
use super::fields::{Fields, Listing};
use super::yaml::Value;

wire::string_enum! {
    /// Whether an operation runs when it is called.
    Tier {
        /// It runs.
        Auto = "auto",
        /// A person is asked before it runs.
        #[default]
        Confirm = "confirm",
        /// It never runs; its inputs become a draft.
        Manual = "manual",
    }
}

wire::string_enum! {
    /// The action when no person answers in time.
    OnTimeout {
        /// The call is rejected and the step fails.
        #[default]
        Reject = "reject",
        /// The person is notified again and may still answer.
        Escalate = "escalate",
    }
}

wire::string_enum! {
    /// The consequence of a rejected call in a process.
    OnReject {
        /// The attempt ends as failed, and there is no further one.
        #[default]
        Fail = "fail",
        /// The model reads the person's comment, and goes on.
        Continue = "continue",
    }
}

impl Tier {
    /// Returns how much freedom it gives: a stricter tier has a smaller number.
    pub const fn freedom(self) -> u8 {
        match self {
            Self::Manual => 0,
            Self::Confirm => 1,
            Self::Auto => 2,
        }
    }
}

/// An override, as written.
#[derive(Clone, Debug)]
pub struct Override {
    /// `tool.operation`.
    pub key: Spanned<String>,
    /// The tier.
    pub tier: Tier,
}

/// `policy` of a manifest.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The tier of operations without an override.
    pub default: Tier,
    /// The overrides, in order.
    pub overrides: Listing<Override>,
    /// How long to wait for a person.
    pub timeout: Option<Length>,
    /// The action after that.
    pub on_timeout: OnTimeout,
    /// The consequence of a rejection.
    pub on_reject: OnReject,
    /// Whether the expert leaves decisions it is unsure of to a person.
    pub on_low_confidence: bool,
    /// Whether a person is notified of a draft at once.
    pub on_manual_ready: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            default: Tier::Confirm,
            overrides: Listing::default(),
            timeout: None,
            on_timeout: OnTimeout::Reject,
            on_reject: OnReject::Fail,
            on_low_confidence: true,
            on_manual_ready: true,
        }
    }
}

impl Policy {
    /// Reads `policy` of a manifest.
    pub fn from_fields(owner: &mut Fields<'_, '_, '_>) -> Self {
        let mut policy = Self::default();
        let Some(mut fields) = owner.map("policy") else { return policy };
        if let Some(mut approval) = fields.map("approval") {
            let unwrapped = approval.word("default", Tier::NAMES);
            policy.default = unwrapped.map_or(Tier::Confirm, |tier| tier.value);
            policy.overrides = read_overrides(&mut approval);
            policy.timeout = approval.duration("timeout", false).map(|length| length.value);
            policy.on_timeout =
                approval.word("on_timeout", OnTimeout::NAMES).map_or(OnTimeout::Reject, |word| word.value);
            policy.on_reject =
                approval.word("on_reject", OnReject::NAMES).map_or(OnReject::Fail, |word| word.value);
            if approval.value_of("timeout").is_none() {
                let help = "write `timeout`, or remove on_timeout";
                approval.note_idle(
                    "on_timeout",
                    "there is no `timeout`, so a person is waited for without end",
                    help,
                );
            }
            approval.finish_strictly();
        }
        if let Some(mut escalation) = fields.map("escalation") {
            escalation.channel();
            policy.on_low_confidence = escalation.boolean("on_low_confidence").is_none_or(|flag| flag.value);
            policy.on_manual_ready = escalation.boolean("on_manual_ready").is_none_or(|flag| flag.value);
            escalation.finish_strictly();
        }
        fields.finish_strictly();
        policy
    }

    /// Returns the tier of an operation: its override, else the default.
    pub fn read_tier(&self, tool: &str, operation: &str) -> Tier {
        let is_meant = |one: &&Override| one.key.value.split_once('.') == Some((tool, operation));
        self.overrides.items.iter().find(is_meant).map_or(self.default, |one| one.tier)
    }
}

fn read_overrides(approval: &mut Fields<'_, '_, '_>) -> Listing<Override> {
    let mut listing = Listing::default();
    for entry in approval.entries_of("overrides").unwrap_or_default() {
        let text = match &entry.value.value {
            Value::Text(text) => Some(text),
            _ => None,
        };
        let tier = text.and_then(|text| fields::word_of::<Tier>(text));
        match (tier, text) {
            (Some(_), _) => {}
            (None, Some(text)) => unknown_tier(approval, &entry.key.value, text, entry.value.at),
            (None, None) => approval.wrong_type(&entry.key.value, &entry.value, "auto, confirm or manual"),
        }
        // Its key is checked whatever its value is; if there is an error above, the package is not used.
        listing.items.push(Override { key: entry.key.clone(), tier: tier.unwrap_or_default() });
    }
    listing
}

fn unknown_tier(approval: &mut Fields<'_, '_, '_>, key: &str, text: &str, at: At) {
    let message = format!("the tier of \"{key}\" is \"{text}\", which is not one of the tiers");
    let near = suggest_nearest(text, Tier::NAMES.iter().copied());
    let help = format!("{near}possible values: {}", Tier::NAMES.join(", "));
    approval.report.add(super::Code::WrongEnum, at, message, help);
}

/// `learning` of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Learning {
    /// Whether the expert may propose learnings.
    pub enabled: bool,
    /// Who decides about a proposal.
    pub approval: Tier,
    /// The most entries in a file.
    pub max_entries: u32,
}

impl Default for Learning {
    fn default() -> Self {
        Self { enabled: false, approval: Tier::Confirm, max_entries: 50 }
    }
}

impl Learning {
    /// Reads `learning` of a manifest.
    pub fn from_fields(owner: &mut Fields<'_, '_, '_>) -> Self {
        let default = Self::default();
        let Some(mut fields) = owner.map("learning") else { return default };
        let read = Self {
            enabled: fields.boolean("enabled").is_some_and(|flag| flag.value),
            approval: fields.word("approval", Tier::NAMES).map_or(default.approval, |tier| tier.value),
            max_entries: fields
                .count("max_entries_per_file")
                .map_or(default.max_entries, |count| count.value),
        };
        if !read.enabled && !fields.is_repeated("enabled") {
            for name in ["approval", "max_entries_per_file"] {
                fields.note_idle(name, "the expert does not learn", "write enabled: true, or remove it");
            }
        }
        fields.finish();
        read
    }
}

/// Operations by tier, each as `tool.operation`, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tiers {
    by_tier: BTreeMap<&'static str, Vec<String>>,
}

impl Tiers {
    /// Returns the operations of a package, by effective tier.
    pub fn from_policy<'a>(policy: &Policy, operations: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        Self::from_pairs(
            operations
                .map(|(tool, operation)| (format!("{tool}.{operation}"), policy.read_tier(tool, operation))),
        )
    }

    /// Operations, each as `tool.operation`, with their tiers.
    pub fn from_pairs(operations: impl Iterator<Item = (String, Tier)>) -> Self {
        let mut tiers = Self::default();
        for (operation, tier) in operations {
            tiers.by_tier.entry(tier.as_str()).or_default().push(operation);
        }
        tiers.by_tier.values_mut().for_each(|list| list.sort());
        tiers
    }

    /// Returns the operations of a tier.
    pub fn operations(&self, tier: Tier) -> &[String] {
        self.by_tier.get(tier.as_str()).map_or(&[], Vec::as_slice)
    }
}
