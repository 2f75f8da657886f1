//! An abstract tool of a package, bound to the user's tools: which operations are offered to the model, under
//! which names and schemas, and how one is called. Called by `tools` and `experts`.
//!
//! Operations stay declared while their server is down. The tier has been applied before a call arrives here,
//! so the default of `[tools.policy]` does not ask again; its rules that deny or ask still apply.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value, json};

use openexperts::{
    Binding, BindingType, Bindings, Diagnostic, Operation, Package, Severity, Tier, Tool,
    label::function_name,
};
use tools::{
    Approver, Availability, Consent, Effect, Invocation, Question, QuestionKind, ServerProblem, Sources,
    ToolError, ToolOutput, ToolSet, ToolSpec, Tools as _, UnavailableTool,
};

/// How long a command that a person runs waits for the first start of MCP servers.
pub(super) const FIRST_START: Duration = Duration::from_secs(30);

/// Why an expert's triggers are held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingProblem {
    /// The abstract tool; empty if the problem concerns the whole file, or a budget.
    pub tool: String,
    /// The problem, for people.
    pub text: String,
    /// True if a person has to change something; otherwise it may resolve itself.
    pub is_final: bool,
}

impl fmt::Display for BindingProblem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.tool.is_empty() {
            write!(out, "{}: ", self.tool)?;
        }
        out.write_str(&self.text)
    }
}

/// One abstract tool, bound.
pub(super) struct BoundTool {
    name: String,
    /// The package's file; `None`: all of the server's operations are offered.
    declared: Option<Tool>,
    binding: Binding,
    /// `None` if its source cannot be opened.
    set: Option<ToolSet>,
}

/// An operation on offer.
#[derive(Clone, Debug)]
pub(super) struct OfferedOperation {
    /// `tool.operation`, as policies and people call it.
    pub(super) title: String,
    /// As the model sees it, under the name `tool__operation`.
    pub(super) spec: ToolSpec,
    /// A rule of `[tools.policy]` asks before it runs.
    pub(super) owner_asks: bool,
    /// The tool's name in the configuration.
    configured: String,
}

impl OfferedOperation {
    /// Returns true if both stand for the same tool of the same server.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.title == other.title && self.configured == other.configured
    }
}

/// Returns the tools of a package, bound as the user says, and what keeps them from being ready. Servers are
/// started without waiting for them.
pub(super) fn bind_tools(
    package: &Package,
    bindings: &Bindings,
    sources: &Sources,
) -> (Vec<BoundTool>, Vec<BindingProblem>) {
    let (mut tools, mut problems) = (Vec::new(), Vec::new());
    for name in package.manifest.tools.items.iter().map(|name| &name.value) {
        let declared = package.offered_tools().find(|tool| tool.name.value == *name).cloned();
        let problem = |text: String| BindingProblem { tool: name.clone(), text, is_final: true };
        let Some(binding) = bindings.tools.get(name).cloned() else {
            let expert = &package.manifest.name.value;
            problems
                .push(problem(format!("it is not bound: run `respool expert bind {expert} {name} SERVER`")));
            tools.push(BoundTool { name: name.clone(), declared, binding: Binding::default(), set: None });
            continue;
        };
        let operations = declared.iter().flat_map(|tool| &tool.operations.items);
        let operations: Vec<String> = operations.map(|operation| operation.name.clone()).collect();
        let set = match select_offered(sources, &binding.requested_tools(&operations)) {
            Ok(set) => Some(set),
            Err(whys) => {
                let whys: Vec<String> = whys.iter().map(|why| describe_unavailable(why, &binding)).collect();
                problems.push(problem(whys.join("; ")));
                None
            }
        };
        tools.push(BoundTool { name: name.clone(), declared, binding, set });
    }
    (tools, problems)
}

/// Selects the tools of a binding. Those that no source offers are left out, unless that leaves none. An MCP
/// server may lack some, too.
fn select_offered(sources: &Sources, wanted: &[String]) -> Result<ToolSet, Vec<UnavailableTool>> {
    sources.select_now(wanted).or_else(|whys| {
        let is_offered = |name: &&String| !whys.contains(&UnavailableTool::Unknown((*name).clone()));
        let offered: Vec<String> = wanted.iter().filter(is_offered).cloned().collect();
        if offered.is_empty() { Err(whys) } else { sources.select_now(&offered) }
    })
}

/// Says why an operation cannot be had, in the words of bindings.
fn describe_unavailable(why: &UnavailableTool, binding: &Binding) -> String {
    match why {
        UnavailableTool::Unknown(name) => format!(
            "{} has no tool {name:?}: name one of its tools with `respool expert bind … --operation OPERATION=NAME`",
            binding.target()
        ),
        why => why.to_string(),
    }
}

/// The findings of phase 2 of validation.
#[derive(Clone, Debug, Default)]
pub struct BindingCheck {
    /// The problems that keep the expert from being ready.
    pub problems: Vec<BindingProblem>,
    /// Where the tool files and the servers disagree; this does not keep the expert from being ready.
    pub mismatches: Vec<String>,
    /// Tools and what they are bound to.
    pub bound: Vec<(String, String)>,
}

/// Checks a package's bindings against what the configuration offers.
pub async fn check_binding(package: &Package, text: &str, sources: &Sources) -> BindingCheck {
    let CheckedBindings { bindings, mut problems, warnings: mut mismatches } =
        CheckedBindings::from_text(text, package);
    let (tools, unbound) = bind_tools(package, &bindings, sources);
    // Of a file with an error nothing is used, so that all tools seem to lack a binding.
    if problems.is_empty() {
        problems = unbound;
    }
    await_sources(&tools, sources, FIRST_START).await;
    problems.extend(tools.iter().filter_map(|tool| tool.describe_problem(sources)));
    problems.extend(find_clashes(&tools));
    let bound = tools.iter().filter_map(BoundTool::target);
    let tiers = package.tiers();
    let drafts = tiers.operations(Tier::Manual);
    mismatches.extend(tools.iter().flat_map(|tool| tool.find_mismatches(drafts)));
    BindingCheck {
        problems,
        mismatches,
        bound: bound.map(|(tool, target)| (tool.to_owned(), target.to_owned())).collect(),
    }
}

/// Waits, at most this long, until the servers of the tools have started or failed, and checks that the
/// gateway is reachable if one is needed.
pub(super) async fn await_sources(tools: &[BoundTool], sources: &Sources, limit: Duration) {
    let gateway = async {
        if tools.iter().any(BoundTool::is_at_gateway) {
            sources.look_at_gateway().await;
        }
    };
    tokio::join!(sources.await_servers(tools.iter().filter_map(BoundTool::server_problem), limit), gateway);
}

/// Reports a problem for each name that several operations have: the model cannot distinguish them.
pub(super) fn find_clashes(tools: &[BoundTool]) -> Vec<BindingProblem> {
    let mut seen: BTreeMap<String, OfferedOperation> = BTreeMap::new();
    let mut problems = Vec::new();
    for tool in tools {
        for operation in tool.operations() {
            let first = seen.entry(operation.spec.name.clone()).or_insert_with(|| operation.clone());
            if !first.is_same(&operation) {
                let is_one_title = first.title == operation.title;
                let named = |one: &OfferedOperation| {
                    if is_one_title {
                        format!("{} ({})", one.title, one.configured)
                    } else {
                        one.title.clone()
                    }
                };
                let text = format!(
                    "{} and {} have the same name {} for the model: map one of them to another name in bindings.yaml, or leave it out of the tool's file",
                    named(&operation),
                    named(first),
                    operation.spec.name
                );
                problems.push(BindingProblem { tool: tool.name.clone(), text, is_final: true });
            }
        }
    }
    problems
}

/// The user's bindings of a package, with the findings about them. They go to the log, so none quotes a line
/// of the file: it may hold a secret that does not belong there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckedBindings {
    /// The bindings; empty if the file has an error.
    pub bindings: Bindings,
    /// The errors, which keep the expert from being ready.
    pub problems: Vec<BindingProblem>,
    /// The warnings, for people.
    pub warnings: Vec<String>,
}

impl CheckedBindings {
    /// Reads the text of a file of bindings.
    pub fn from_text(text: &str, package: &Package) -> Self {
        let (bindings, findings) = Bindings::from_text(text);
        let (errors, warnings): (Vec<_>, Vec<_>) =
            findings.iter().partition(|finding| finding.severity == Severity::Error);
        let problem = |text: String| BindingProblem { tool: String::new(), text, is_final: true };
        let problems = errors.into_iter().map(|finding| problem(finding.to_line())).collect();
        let mut warnings: Vec<String> = warnings.into_iter().map(Diagnostic::to_line).collect();
        warnings.extend(bindings.unknown_bindings(package));
        Self { bindings, problems, warnings }
    }

    /// Stands for a file that cannot be read.
    pub fn unreadable(error: &std::io::Error) -> Self {
        let text = format!("bindings.yaml cannot be read: {error}");
        let problem = BindingProblem { tool: String::new(), text, is_final: true };
        Self { problems: vec![problem], ..Self::default() }
    }
}

/// Returns a tool of a package that is not bound.
#[cfg(test)]
pub(super) fn unbound(declared: Tool) -> BoundTool {
    let name = declared.name.value.clone();
    BoundTool { name, declared: Some(declared), binding: Binding::default(), set: None }
}

impl BoundTool {
    /// The MCP server that it is bound to, if configured.
    pub(super) fn server_problem(&self) -> Option<&str> {
        let is_mcp = self.set.is_some() && self.binding.kind == BindingType::Mcp;
        is_mcp.then_some(self.binding.server.as_str())
    }

    /// True if its operations are at OpenClaw's gateway, and that is configured.
    pub(super) fn is_at_gateway(&self) -> bool {
        self.set.is_some() && self.binding.kind == BindingType::Gateway
    }

    fn source_problem(&self, sources: &Sources) -> Option<ServerProblem> {
        match self.server_problem() {
            Some(server) => sources.mcp_problem(server),
            None if self.is_at_gateway() => sources.gateway_problem(),
            None => None,
        }
    }

    /// True while its server is starting for the first time.
    pub(super) fn is_starting(&self, sources: &Sources) -> bool {
        self.source_problem(sources).is_some_and(|problem| problem.prospect == Availability::Starting)
    }

    /// Why it cannot be called at the moment, although it is bound.
    pub(super) fn describe_problem(&self, sources: &Sources) -> Option<BindingProblem> {
        let Some(ServerProblem { text, prospect }) = self.source_problem(sources) else {
            return self.find_no_operation();
        };
        let text = match self.server_problem() {
            Some(server) => format!("its MCP server {server} cannot be used: {text}"),
            None => format!("OpenClaw's gateway cannot be reached: {text}"),
        };
        Some(BindingProblem { tool: self.name.clone(), text, is_final: prospect == Availability::Unusable })
    }

    /// Returns the problem of a tool none of whose operations the server has.
    fn find_no_operation(&self) -> Option<BindingProblem> {
        let (known, declared) = (self.set.as_ref()?.all_configured(), self.declared.as_ref()?);
        let mut operations = declared.operations.items.iter();
        let has_some = |it: &Operation| known.contains_key(&self.binding.configured_name(&it.name));
        if known.is_empty() || declared.operations.items.is_empty() || operations.any(has_some) {
            return None;
        }
        let named: Vec<&str> = declared.operations.items.iter().map(|it| it.name.as_str()).collect();
        let text = format!(
            "{} has none of its operations ({}); it has {}: name them with `respool expert bind … --operation OPERATION=NAME`",
            self.binding.target(),
            named.join(", "),
            known.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
        );
        Some(BindingProblem { tool: self.name.clone(), text, is_final: true })
    }

    /// Lists where the tool file and the server disagree, for people. Empty until the server has been up
    /// once. The server need not have `drafts`, which are never called.
    fn find_mismatches(&self, drafts: &[String]) -> Vec<String> {
        let (Some(set), Some(declared)) = (&self.set, &self.declared) else { return Vec::new() };
        let known = set.all_configured();
        if known.is_empty() {
            return Vec::new();
        }
        let mut found = Vec::new();
        for operation in &declared.operations.items {
            let title = format!("{}.{}", self.name, operation.name);
            let own = self.binding.configured_name(&operation.name);
            match known.get(&own) {
                None if drafts.contains(&title) => {}
                None => found.push(format!(
                    "{title}: {} has no {own}; it has {}",
                    self.binding.target(),
                    known.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
                )),
                Some(spec) => found.extend(differing_properties(&title, operation, &spec.parameters)),
            }
        }
        found
    }

    /// The name of what it is bound to; empty if it is not bound.
    pub(super) fn target(&self) -> Option<(&str, &str)> {
        let is_bound = self.binding != Binding::default();
        is_bound.then(|| (self.name.as_str(), self.binding.target()))
    }

    /// The operations that are offered.
    pub(super) fn operations(&self) -> Vec<OfferedOperation> {
        let known = self.set.as_ref().map(ToolSet::all_configured).unwrap_or_default();
        match &self.declared {
            Some(tool) => {
                let operations = tool.operations.items.iter();
                operations.map(|operation| self.declared_operation(operation, &known)).collect()
            }
            None => self.all_operations(known),
        }
    }

    /// The server's schema with the package's description; until the server has been up once, the inputs from
    /// the tool file.
    fn declared_operation(
        &self,
        operation: &Operation,
        known: &BTreeMap<String, ToolSpec>,
    ) -> OfferedOperation {
        let configured = self.binding.configured_name(&operation.name);
        let mut spec = known.get(&configured).cloned().unwrap_or_else(|| ToolSpec {
            name: String::new(),
            description: String::new(),
            parameters: assumed_schema(operation),
            is_repeatable: false,
            timeout: None,
            result_limit: None,
        });
        if let Some(description) = operation.description.as_ref().filter(|text| !text.trim().is_empty()) {
            spec.description.clone_from(description);
        }
        self.find_offered(&operation.name, spec, configured)
    }

    /// Without a tool file, everything that the server has is offered.
    fn all_operations(&self, known: BTreeMap<String, ToolSpec>) -> Vec<OfferedOperation> {
        let prefix = format!("mcp:{}/", self.binding.server);
        let offered = known.into_iter().filter_map(|(configured, spec)| {
            let own = configured.strip_prefix(&prefix).unwrap_or(&configured).to_owned();
            let mut renamed = self.binding.operations.iter().filter(|(_, server)| **server == own);
            let operation = match renamed.next() {
                Some((operation, _)) => operation.as_str(),
                // The user gave its name to another tool of the server.
                None if self.binding.operations.contains_key(&own) => return None,
                None => own.as_str(),
            };
            Some(self.find_offered(operation, spec, configured.clone()))
        });
        offered.collect()
    }

    fn find_offered(&self, operation: &str, spec: ToolSpec, configured: String) -> OfferedOperation {
        let called = Some(spec.name.as_str()).filter(|called| !called.is_empty());
        let owner_asks = self.set.as_ref().is_some_and(|set| set.asks_before(&configured, called));
        let spec = ToolSpec { name: function_name(&self.name, operation), ..spec };
        OfferedOperation { title: format!("{}.{operation}", self.name), spec, owner_asks, configured }
    }

    /// The abstract tool's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Calls an operation. `approver`: the person who consented to it, if consent was needed.
    pub(super) async fn call(
        &self,
        operation: &OfferedOperation,
        invocation: &Invocation,
        approver: Option<&dyn Approver>,
    ) -> Result<ToolOutput, ToolError> {
        let Some(set) = &self.set else {
            return Err(ToolError::Unreachable(format!(
                "the tool {} of this expert is not bound",
                self.name
            )));
        };
        let Some(spec) = set.find_configured(&operation.configured) else {
            let what = format!("{} offers no {} now", self.binding.target(), operation.configured);
            return Err(ToolError::Unreachable(what));
        };
        if let Some(agreed) = approver.and_then(Approver::agreed_effect) {
            let now = self.effect(operation, invocation).await;
            if let Some(why) = find_difference(agreed, &now) {
                self.note_refusal(operation, invocation, "respool: it is not what was approved").await;
                return Err(ToolError::Denied(why));
            }
        }
        let invocation = Invocation { name: spec.name, ..invocation.clone() };
        let by = approver.and_then(Approver::prior_consent);
        set.call(&invocation, Some(&DecidedByTier { by })).await
    }
}

/// Why a person's consent to a call does not cover what it would do now.
fn find_difference(agreed: &Effect, now: &Effect) -> Option<String> {
    if agreed.tool != now.tool {
        return Some(format!(
            "not run: a person approved this call of {}, and the tool is bound to {} now. Make it again, and the person is asked again",
            agreed.tool, now.tool
        ));
    }
    let is_same = agreed.replaces == now.replaces && placeless(agreed).eq(placeless(now));
    (!is_same).then(|| {
        "not run: the file has changed since a person approved this call. Read it, and make the call that fits now; the person is asked again".to_owned()
    })
}

/// The lines of a change without their numbers: an edit fits below others that were approved with it.
fn placeless(effect: &Effect) -> impl Iterator<Item = &str> {
    effect.change.iter().flat_map(|change| change.lines()).filter(|line| !line.starts_with("@@ "))
}

impl BoundTool {
    /// The effect that a call would have now.
    pub(super) async fn effect(&self, operation: &OfferedOperation, invocation: &Invocation) -> Effect {
        let tool = operation.configured.clone();
        let known = match &self.set {
            Some(set) => set.effect_of(&tool, invocation).await,
            None => None,
        };
        known.unwrap_or_else(|| Effect { tool, ..Effect::default() })
    }

    /// The server's tools, and a call of an operation under its own name there; `None` while that is not
    /// known.
    fn own_call(
        &self,
        operation: &OfferedOperation,
        invocation: &Invocation,
    ) -> Option<(&ToolSet, Invocation)> {
        let set = self.set.as_ref()?;
        let name = set.find_configured(&operation.configured)?.name;
        Some((set, Invocation { name, ..invocation.clone() }))
    }

    /// Writes into the audit log who refused a call.
    pub(super) async fn note_refusal(&self, operation: &OfferedOperation, invocation: &Invocation, by: &str) {
        if let Some((set, call)) = self.own_call(operation, invocation) {
            set.note_refusal(&call, by).await;
        }
    }

    /// Writes into the audit log that respool ended while a call ran.
    pub(super) async fn note_unknown(&self, operation: &OfferedOperation, invocation: &Invocation) {
        if let Some((set, call)) = self.own_call(operation, invocation) {
            set.note_unknown(&call).await;
        }
    }
}

/// A schema from the names of the inputs alone.
fn assumed_schema(operation: &Operation) -> Value {
    let properties: Map<String, Value> =
        operation.inputs.iter().map(|name| (name.clone(), json!({}))).collect();
    json!({"type": "object", "properties": properties})
}

/// Inputs in the tool file that the server does not know.
fn differing_properties(title: &str, operation: &Operation, schema: &Value) -> Option<String> {
    let known = schema["properties"].as_object()?;
    let missing: Vec<&str> =
        operation.inputs.iter().map(String::as_str).filter(|name| !known.contains_key(*name)).collect();
    (!missing.is_empty()).then(|| {
        let known: Vec<&str> = known.keys().map(String::as_str).collect();
        format!("{title}: the server takes no {}; it takes {}", missing.join(", "), known.join(", "))
    })
}

/// By binding a tool and installing a package, the owner consents to what the tiers allow, unless a rule of
/// the policy applies to the call. A call that a rule asks about runs only with a person's consent to it.
struct DecidedByTier<'a> {
    /// The person who consented to this call.
    by: Option<&'a str>,
}

#[async_trait]
impl Approver for DecidedByTier<'_> {
    fn prior_consent(&self) -> Option<&str> {
        self.by.or(Some("tier of the package"))
    }

    fn is_person(&self) -> bool {
        self.by.is_some()
    }

    async fn approve(&self, question: Question<'_>) -> Consent {
        const UNDECIDED: &str = "a rule of tools.policy asks about this call, and no person has agreed to it: the package's owner can give the operation the tier `confirm`";
        let is_decided = question.kind == QuestionKind::Call && (self.by.is_some() || question.is_by_default);
        if is_decided { Consent::Given } else { Consent::Refused(UNDECIDED.into()) }
    }
}

/// Shared by the runs of an expert.
pub(super) type BoundTools = Arc<Vec<BoundTool>>;

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: an approved edit was applied wherever the file had its old text by then.
    #[test]
    fn consent_covers_the_change_shown() {
        let effect = |change: &str, replaces: Option<&str>| Effect {
            tool: "edit".to_owned(),
            change: Some(change.to_owned()),
            replaces: replaces.map(str::to_owned),
        };
        let agreed = effect("--- a\n+++ a\n@@ -1 +1 @@\n x\n-y\n+z\n", None);
        let moved = effect("--- a\n+++ a\n@@ -8 +9 @@\n x\n-y\n+z\n", None);
        assert_eq!(find_difference(&agreed, &moved), None);
        for other in [
            effect("--- a\n+++ a\n@@ -1 +1 @@\n w\n-y\n+z\n", None),
            effect("--- a\n+++ a\n@@ -1 +1 @@\n x\n-y\n+z\n", Some("absent")),
            Effect { change: None, ..agreed.clone() },
            Effect { tool: "write".to_owned(), ..agreed.clone() },
        ] {
            assert!(find_difference(&agreed, &other).is_some(), "{other:?}");
        }
    }
}
