//! The tools of one agent, of all origins, with the policy in front. This is the only way to run a tool: a
//! source runs a call only with a permit, which only `source` can make.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;

use super::config::ToolsConfig;
use super::contract::{Approver, Effect, Invocation, Preview, ToolError, ToolOutput, ToolSpec, Tools};
use super::diff::shorten_diff;
use super::mcp::Server;
use super::offer::Offer;
use super::plain::plain_text;
use super::policy::held::HeldPolicy;
use super::record::Record;
use super::server_problem::ServerProblem;
use super::source::{Source, denial_error, request_permit};
use super::unavailable::UnavailableTool;
use super::wanted::{Wanted, setting_for};
use wire::visible::make_visible;

/// Why a call does not run where only those run that look.
const ONLY_LOOKS: &str =
    "this chat is read-only: files are read, and commands that only look run, until the user ends that";

/// The tools of one agent.
pub struct ToolSet {
    pub(super) policy: Arc<HeldPolicy>,
    pub(super) config: Arc<ToolsConfig>,
    /// The sources, each with the names that the agent wants from it.
    pub(super) sources: Vec<(Arc<dyn Source>, Wanted)>,
    /// The MCP servers of a chat, which wait for [`Self::start_servers`].
    pub(super) servers: Vec<Arc<Server>>,
}

impl ToolSet {
    /// Returns everything on offer, under unique names.
    fn offers(&self) -> Vec<(&Arc<dyn Source>, Offer)> {
        let mut names = BTreeSet::new();
        let wanted = self.sources.iter().flat_map(|(source, wanted)| {
            let offers = source.offers().into_iter().filter(|offer| wanted.contains_tool(&offer.name));
            offers.map(move |offer| (source, offer))
        });
        wanted.filter(|(_, offer)| names.insert(offer.spec.name.clone())).collect()
    }

    /// Returns the set itself, unless two of its tools have the same name.
    ///
    /// # Errors
    /// The names that two tools have.
    pub(super) fn without_doubles(self) -> Result<Self, Vec<UnavailableTool>> {
        let mut seen = BTreeMap::new();
        let mut problems = Vec::new();
        let offers = self.sources.iter().flat_map(|(source, wanted)| {
            source.offers().into_iter().filter(|offer| wanted.contains_tool(&offer.name))
        });
        for Offer { spec, name } in offers {
            if let Some(other) = seen.insert(spec.name.clone(), name.clone()).filter(|other| *other != name) {
                problems.push(UnavailableTool::SameName { one: other, other: name, called: spec.name });
            }
        }
        if problems.is_empty() { Ok(self) } else { Err(problems) }
    }

    /// Finds the tool of this name in the configuration (`mcp:files/read_file`), as a model sees it.
    pub fn find_configured(&self, name: &str) -> Option<ToolSpec> {
        let found = self.offers().into_iter().find(|(_, offer)| offer.name == name);
        found.map(|(_, offer)| self.with_settings(offer))
    }

    /// Returns all tools by their names in the configuration, as a model sees them.
    pub fn all_configured(&self) -> BTreeMap<String, ToolSpec> {
        let mut all = BTreeMap::new();
        for (_, offer) in self.offers() {
            all.entry(offer.name.clone()).or_insert_with(|| self.with_settings(offer));
        }
        all
    }

    /// Returns true if a rule of the policy asks a person before calls of this tool, by its name in the
    /// configuration or the one that the model calls.
    pub fn asks_before(&self, name: &str, called: Option<&str>) -> bool {
        let names: Vec<String> = [Some(name), called].into_iter().flatten().map(str::to_owned).collect();
        self.policy.current().asks_before(&names)
    }

    /// Returns the effect that a call would have now. `tool`: its name in the configuration. `None` if the
    /// set has no such tool.
    pub async fn effect_of(&self, tool: &str, invocation: &Invocation) -> Option<Effect> {
        let (source, offer) = self.offers().into_iter().find(|(_, offer)| offer.name == tool)?;
        let invocation = Invocation { name: offer.spec.name, ..invocation.clone() };
        let (diff, replaces) = match source.preview_call(&invocation).await {
            Ok(Some(Preview::Change { diff, replaces })) => (diff, replaces),
            // A call that will fail makes no change.
            _ => (None, None),
        };
        let change = diff.map(|diff| shorten_diff(make_visible(&diff)));
        Some(Effect { tool: tool.to_owned(), change, replaces })
    }

    /// Starts the MCP servers of a chat that do not run, and waits until each has its tools or a problem, at
    /// most this long.
    pub async fn start_servers(&self, limit: Duration) {
        self.servers.iter().for_each(|server| server.begin());
        join_all(self.servers.iter().map(|server| server.wait_until_started(limit))).await;
    }

    /// Returns the MCP servers of a chat by name: how many tools each has, or why it cannot be called now.
    pub fn servers(&self) -> Vec<(&str, Result<usize, ServerProblem>)> {
        let found = |server: &Server| match server.problem() {
            Some(problem) => Err(problem),
            None => Ok(server.tool_names().map_or(0, |names| names.len())),
        };
        self.servers.iter().map(|server| (server.name(), found(server))).collect()
    }

    fn with_settings(&self, offer: Offer) -> ToolSpec {
        let Offer { mut spec, name } = offer;
        spec.timeout = setting_for(&self.config.timeouts, &name).copied().or(spec.timeout);
        spec.result_limit =
            setting_for(&self.config.result_limits, &name).map(|size| size.to_usize()).or(spec.result_limit);
        spec
    }

    async fn call_guarded(
        &self,
        invocation: &Invocation,
        approver: Option<&dyn Approver>,
    ) -> Result<ToolOutput, ToolError> {
        let (source, offer) = self.find_offer(&invocation.name).await?;
        let subject = source.subject(&offer, &invocation.arguments).await?;
        let mut record = Record::new(&self.config, invocation, &offer);
        if let Some(approver) = approver.filter(|approver| approver.prior_consent().is_some()) {
            record.note_approval(approver);
        }
        let policy = self.policy.current();
        let is_held = approver.is_some_and(Approver::only_looks) && !source.only_looks(&offer);
        if approver.is_some_and(Approver::is_present)
            && (policy.leaves_to_person(&subject) || (is_held && policy.allows(&subject)))
            && let Some(output) = source.look(invocation).await
        {
            record.note_rule("the sandbox, in which it could only look");
            record.write_start().await;
            let looked = Ok(output);
            record.write_end(&looked).await;
            return looked;
        }
        if is_held {
            record.note_rule("the read-only mode of the chat");
            record.write_refusal().await;
            return Err(denial_error(&invocation.name, ONLY_LOOKS));
        }
        let permit =
            match request_permit(source.as_ref(), subject, policy, invocation, approver, &mut record).await {
                Ok(permit) => permit,
                Err(denial) => {
                    record.write_refusal().await;
                    return Err(denial);
                }
            };
        if let Some(approver) = approver {
            approver.note_permission(permit.target()).await;
        }
        record.write_start().await;
        let result = source.run_call(invocation, permit, approver).await;
        record.write_end(&result).await;
        result
    }

    /// Finds the tool of this name and its source. It waits a moment for a server that has not listed its
    /// tools yet.
    async fn find_offer(&self, name: &str) -> Result<(Arc<dyn Source>, Offer), ToolError> {
        let find = || self.offers().into_iter().find(|(_, offer)| offer.spec.name == name);
        if let Some((source, offer)) = find() {
            return Ok((Arc::clone(source), offer));
        }
        for (source, _) in &self.sources {
            source.await_tool(name).await?;
        }
        let found = find().map(|(source, offer)| (Arc::clone(source), offer));
        found.ok_or_else(|| {
            let offers = self.offers();
            unknown_tool(name, offers.iter().map(|(_, offer)| offer.spec.name.as_str()))
        })
    }
}

#[async_trait]
impl Tools for ToolSet {
    fn specs(&self) -> Vec<ToolSpec> {
        self.offers().into_iter().map(|(_, offer)| self.with_settings(offer)).collect()
    }

    async fn call(
        &self,
        invocation: &Invocation,
        approver: Option<&dyn Approver>,
    ) -> Result<ToolOutput, ToolError> {
        let result = self.call_guarded(invocation, approver).await;
        result.map(|output| plain_output(&output)).map_err(plain_error)
    }

    async fn note_refusal(&self, invocation: &Invocation, by: &str) {
        let Ok((_, offer)) = self.find_offer(&invocation.name).await else { return };
        let mut record = Record::new(&self.config, invocation, &offer);
        record.note_rule("the tier `confirm`");
        record.note_refusal(by);
        record.write_refusal().await;
    }

    async fn note_unknown(&self, invocation: &Invocation) {
        let Ok((_, offer)) = self.find_offer(&invocation.name).await else { return };
        Record::new(&self.config, invocation, &offer).write_interruption().await;
    }
}

/// Removes control characters from the output, for the model and for people.
fn plain_output(output: &ToolOutput) -> ToolOutput {
    ToolOutput {
        text: plain_text(&output.text),
        display: output.display.as_deref().map(make_visible),
        ..*output
    }
}

fn plain_error(error: ToolError) -> ToolError {
    match error {
        ToolError::Failed(text) => ToolError::Failed(plain_text(&text)),
        ToolError::Denied(text) => ToolError::Denied(plain_text(&text)),
        ToolError::Transient(text) => ToolError::Transient(plain_text(&text)),
        ToolError::Unreachable(text) => ToolError::Unreachable(plain_text(&text)),
        ToolError::Protocol(text) => ToolError::Protocol(plain_text(&text)),
        ToolError::TimedOut(text) => ToolError::TimedOut(plain_text(&text)),
    }
}

fn unknown_tool<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> ToolError {
    let known: Vec<&str> = known.collect();
    ToolError::Failed(format!("there is no tool {name:?}. Available tools: {}", known.join(", ")))
}
