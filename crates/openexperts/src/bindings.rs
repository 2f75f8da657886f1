//! `bindings.yaml`: which of the user's tools implement the abstract tools of a package. The file is the
//! user's, never the package's. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::json;

use super::diagnostic::{At, Code, Diagnostic, FileReport, Report, Severity, suggest_nearest};
use super::fields::Fields;
use super::manifest::TriggerKind;
use super::own_files::BINDINGS;
use super::package::Package;
use super::yaml::{self, Entry, Value};

wire::string_enum! {
    /// Where a tool's operations are.
    BindingType {
        /// On an MCP server of `[tools.mcp.NAME]`.
        #[default]
        Mcp = "mcp",
        /// At OpenClaw's gateway.
        Gateway = "gateway",
        /// Among respool's own tools.
        Local = "local",
    }
}

/// Keys that would hold a secret.
const SECRETS: [&str; 8] = ["token", "key", "api_key", "apikey", "password", "secret", "headers", "env"];

/// The binding of one abstract tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binding {
    /// Where its operations are.
    pub kind: BindingType,
    /// The MCP server; empty for the other types.
    pub server: String,
    /// Operations that have a different name there.
    pub operations: BTreeMap<String, String>,
}

impl Binding {
    /// Returns the operation's tool as the configuration names it.
    pub fn configured_name(&self, operation: &str) -> String {
        let own = self.operations.get(operation).map_or(operation, String::as_str);
        match self.kind {
            BindingType::Mcp => format!("mcp:{}/{own}", self.server),
            BindingType::Gateway => format!("gateway:{own}"),
            BindingType::Local => own.to_owned(),
        }
    }

    /// Returns the tools to request, by their names in the configuration.
    pub fn requested_tools(&self, operations: &[String]) -> Vec<String> {
        match self.kind {
            BindingType::Mcp => vec![format!("mcp:{}/*", self.server)],
            _ => operations.iter().map(|operation| self.configured_name(operation)).collect(),
        }
    }

    /// Returns the target in a word or two, for people.
    pub fn target(&self) -> &str {
        if self.kind == BindingType::Mcp { &self.server } else { self.kind.as_str() }
    }
}

/// Whose messages start a channel trigger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChannelBinding {
    /// The channels.
    pub channels: Vec<String>,
    /// The senders; empty: all of these channels.
    pub senders: Vec<String>,
}

impl ChannelBinding {
    /// Returns true if a message starts the trigger; `channel_name` and `sender_id` are compared exactly.
    pub fn admits(&self, message: &serde_json::Value) -> bool {
        let is_in = |list: &[String], field: &str| {
            message
                .get(field)
                .and_then(serde_json::Value::as_str)
                .is_some_and(|text| list.iter().any(|one| one == text))
        };
        is_in(&self.channels, "channel_name")
            && (self.senders.is_empty() || is_in(&self.senders, "sender_id"))
    }
}

/// The file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bindings {
    /// By abstract tool.
    pub tools: BTreeMap<String, Binding>,
    /// By channel trigger.
    pub triggers: BTreeMap<String, ChannelBinding>,
}

impl Bindings {
    /// Returns why a channel trigger is off; `None` if channels are named for it.
    pub fn why_channel_off(&self, trigger: &str) -> Option<String> {
        let is_named = self.triggers.get(trigger).is_some_and(|binding| !binding.channels.is_empty());
        (!is_named).then(|| {
            format!("no channels are named for it under `triggers.{trigger}.channels` of bindings.yaml")
        })
    }

    /// Reads the file's text and reports everything that is wrong with it. If there is an error, none of it
    /// is used.
    pub fn from_text(text: &str) -> (Self, Vec<Diagnostic>) {
        let mut report = Report::default();
        let bindings = Self::from_yaml(text, &mut report.file(BINDINGS));
        let findings = report.into_sorted();
        let is_sound = findings.iter().all(|finding| finding.severity == Severity::Warn);
        (if is_sound { bindings } else { Self::default() }, findings)
    }

    /// Lists the bindings of tools, operations and channel triggers that the package does not have.
    pub fn unknown_bindings(&self, package: &Package) -> Vec<String> {
        let manifest = &package.manifest;
        let tools: Vec<&str> = manifest.tools.items.iter().map(|name| &*name.value).collect();
        let channels = manifest.triggers.items.iter().filter(|one| one.kind == Some(TriggerKind::Channel));
        let channels: Vec<&str> = channels.map(|one| &*one.name.value).collect();
        let unknown = |what: &str, name: &str, known: &[&str]| {
            let near = suggest_nearest(name, known.iter().copied());
            let message = format!(
                "bindings.yaml: the package has no {what} {name}; {near}it has: {}",
                known.join(", ")
            );
            (!known.contains(&name)).then_some(message)
        };
        let mut unknown_bindings: Vec<String> =
            self.tools.keys().filter_map(|name| unknown("required tool", name, &tools)).collect();
        unknown_bindings
            .extend(self.triggers.keys().filter_map(|name| unknown("channel trigger", name, &channels)));
        for declared in package.offered_tools() {
            let name = &declared.name.value;
            let known: Vec<&str> = declared.operations.items.iter().map(|one| &*one.name).collect();
            let mapped = self.tools.get(name).into_iter().flat_map(|binding| binding.operations.keys());
            unknown_bindings
                .extend(mapped.filter_map(|own| unknown(&format!("operation of {name}"), own, &known)));
        }
        unknown_bindings
    }

    fn from_yaml(text: &str, report: &mut FileReport<'_>) -> Self {
        let Some(root) = yaml::read_yaml(text, 1, report) else { return Self::default() };
        let entries = match &root.value {
            Value::Map(entries) => entries,
            Value::Null => return Self::default(),
            other => {
                let message = format!("bindings.yaml is {}, but it must be a map", other.kind());
                report.add(Code::WrongType, root.at, message, "begin with tools:");
                return Self::default();
            }
        };
        refuse_secrets(entries, report);
        let mut fields = Fields::new(entries, At::TOP, report);
        let tools = read_named(&mut fields, "tools", read_binding);
        let triggers = read_named(&mut fields, "triggers", |fields| Some(read_channel(fields)));
        fields.finish();
        Self { tools, triggers }
    }

    /// Returns the file's text.
    pub fn to_yaml(&self) -> String {
        let mut text = String::from(
            "# Which tools stand for the abstract tools of this expert. Written by `respool expert bind`.\ntools:\n",
        );
        for (name, binding) in &self.tools {
            let _ = writeln!(text, "  {}:\n    type: {}", json!(name), binding.kind);
            if binding.kind == BindingType::Mcp {
                let _ = writeln!(text, "    server: {}", json!(binding.server));
            }
            if !binding.operations.is_empty() {
                text.push_str("    operations:\n");
            }
            for (operation, own) in &binding.operations {
                let _ = writeln!(text, "      {}: {}", json!(operation), json!(own));
            }
        }
        if !self.triggers.is_empty() {
            text.push_str("triggers:\n");
        }
        for (name, channel) in &self.triggers {
            let _ = writeln!(
                text,
                "  {}:\n    channels: {}\n    senders: {}",
                json!(name),
                json!(channel.channels),
                json!(channel.senders)
            );
        }
        text
    }
}

fn refuse_secrets(entries: &[Entry], report: &mut FileReport<'_>) {
    for secret in entries.iter().filter(|entry| SECRETS.contains(&entry.key.value.to_lowercase().as_str())) {
        let message = format!("`{}` would be a secret, and none belongs here", secret.key.value);
        let help = "put credentials into [tools.mcp.NAME] env or headers of respool.toml";
        report.add(Code::WrongType, secret.key.at, message, help);
    }
}

/// Returns a map whose keys are the user's, each with a map of its own.
fn read_named<T>(
    fields: &mut Fields<'_, '_, '_>,
    name: &'static str,
    read: impl Fn(Fields<'_, '_, '_>) -> Option<T>,
) -> BTreeMap<String, T> {
    let mut all = BTreeMap::new();
    for Entry { key, value, .. } in fields.entries_of(name).unwrap_or_default() {
        let Value::Map(entries) = &value.value else {
            fields.wrong_type(&key.value, value, "a map");
            continue;
        };
        refuse_secrets(entries, fields.report);
        all.extend(read(Fields::new(entries, key.at, fields.report)).map(|one| (key.value.clone(), one)));
    }
    all
}

fn read_binding(mut fields: Fields<'_, '_, '_>) -> Option<Binding> {
    if matches!(fields.value_of("type"), Some(node) if node.value == Value::Text("skill".to_owned())) {
        let at = fields.key("type").unwrap_or(fields.owner());
        let message = "`type: skill`, of later drafts of the format, is not supported";
        let help = "name the skill's SKILL.md in components.functions of the package, and bind the tool to an MCP server or the gateway";
        fields.report.add(Code::WrongEnum, at, message, help);
        return None;
    }
    let kind = fields.word("type", BindingType::NAMES);
    if kind.is_none() && fields.value_of("type").is_none() {
        fields.missing("type", "mcp");
    }
    let kind = kind?.value;
    let server = if kind == BindingType::Mcp {
        fields.required_text("server", "hubspot-mcp").value
    } else {
        String::new()
    };
    let mut operations = BTreeMap::new();
    for Entry { key, value, .. } in fields.entries_of("operations").unwrap_or_default() {
        match &value.value {
            Value::Text(own) => drop(operations.insert(key.value.clone(), own.clone())),
            _ => fields.wrong_type(&key.value, value, "the name of a tool there"),
        }
    }
    fields.finish();
    Some(Binding { kind, server, operations })
}

fn read_channel(mut fields: Fields<'_, '_, '_>) -> ChannelBinding {
    let texts = |list: super::fields::Listing<super::diagnostic::Spanned<String>>| {
        list.items.into_iter().map(|text| text.value).collect()
    };
    let (channels, senders) = (texts(fields.texts("channels")), texts(fields.texts("senders")));
    fields.finish();
    ChannelBinding { channels, senders }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, codes: &[&str]) -> Bindings {
        let (bindings, findings) = Bindings::from_text(text);
        let found: Vec<&str> = findings.iter().map(|finding| finding.code.as_str()).collect();
        assert_eq!(found, codes, "{text}");
        bindings
    }

    #[test]
    fn the_formats_example_survives_a_round_trip() {
        let text = "tools:\n  crm:\n    type: mcp\n    server: hubspot-mcp\n    operations:\n      get_contact: hubspot_get_contact_by_email\n  chat: {type: gateway}\ntriggers:\n  ask: {channels: [support]}\n";
        let bindings = check(text, &[]);
        let crm = &bindings.tools["crm"];
        assert_eq!(crm.configured_name("get_contact"), "mcp:hubspot-mcp/hubspot_get_contact_by_email");
        assert_eq!(crm.configured_name("get_deal"), "mcp:hubspot-mcp/get_deal");
        assert_eq!(bindings.tools["chat"].configured_name("sessions_send"), "gateway:sessions_send");
        assert_eq!(bindings.triggers["ask"].channels, ["support"]);
        assert_eq!(check(&bindings.to_yaml(), &[]), bindings);
        assert_eq!(check("", &[]), Bindings::default());
    }

    #[test]
    fn faulty_bindings_are_not_used() {
        assert_eq!(check("tools:\n  crm: {type: skill, server: x}\n", &["wrong-enum"]), Bindings::default());
        check("tools:\n  crm: {type: mcp}\n", &["missing-field"]);
        check("tools:\n  crm: {server: x}\n", &["missing-field"]);
        check("tools: [crm]\n", &["wrong-type"]);
        check("- crm\n", &["wrong-type"]);
        let with_secret =
            check("tools:\n  crm: {type: mcp, server: x, token: abc}\n", &["wrong-type", "unknown-key"]);
        assert!(with_secret.tools.is_empty());
        assert!(check("tool: {}\n", &["unknown-key"]).tools.is_empty());
        check("token: abc\ntools: {}\n", &["wrong-type", "unknown-key"]);
    }
}
