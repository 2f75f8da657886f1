//! All configured sources of tools, opened once, and the selection of an agent's tools from them.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::config::{LocalConfig, McpConfig, PolicyConfig, ToolsConfig};
use super::gateway::{Connection, Gateway, known};
use super::local::{Local, Naming, Workspace, agent_names};
use super::mcp::Server;
use super::offer::MCP_PREFIX;
use super::policy::Policy;
use super::policy::held::{HeldPolicy, Policies};
use super::sandbox::{Level, held_from_programs};
use super::server_problem::{Availability, ServerProblem};
use super::set::ToolSet;
use super::source::Source;
use super::unavailable::UnavailableTool;
use super::wanted::Wanted;
use wire::pattern::matches_stars;
use wire::units::{UnusableSetting, zip_results};

/// The time to wait for the first start of an MCP server; one that takes longer offers its tools when it is
/// up.
const FIRST_START: Duration = Duration::from_secs(30);

/// Everything that `[tools]` sets up, shared by all agents.
pub struct Sources {
    config: Arc<ToolsConfig>,
    policy: Arc<HeldPolicy>,
    root: Option<PathBuf>,
    local: Option<Arc<Local>>,
    gateway: Option<Connection>,
    /// The reason why the last check could not reach the gateway.
    gateway_problem: Mutex<Option<ServerProblem>>,
    /// The running MCP servers, which some agent wants.
    servers: Mutex<BTreeMap<String, Arc<Server>>>,
}

/// A policy that was checked and is not in force yet.
#[derive(Debug)]
pub struct StricterPolicy(Policies);

/// The names that an agent wants, by source.
#[derive(Default)]
struct Sorted {
    local: Wanted,
    gateway: Wanted,
    mcp: BTreeMap<String, Wanted>,
}

impl Sources {
    /// Opens the sources that need no other process.
    ///
    /// # Errors
    /// The settings that cannot be used.
    pub fn open(config: &ToolsConfig) -> Result<Self, Vec<UnusableSetting>> {
        let one = |key: &[&str], why: &dyn Display| vec![UnusableSetting::new(key, why)];
        let workspace = config.local.workspace.as_deref().map(Workspace::open).transpose();
        let workspace = workspace.map_err(|why| one(&["tools", "local", "workspace"], &why));
        let gateway = Connection::new(&config.gateway).map_err(|why| one(&["tools", "gateway"], &why));
        let root = workspace.as_ref().ok().and_then(Option::as_ref).map(|workspace| workspace.root.clone());
        let policy = Policy::new(&config.policy, root.as_deref());
        let ((workspace, gateway), policy) = zip_results(zip_results(workspace, gateway), policy)?;
        let local = workspace.map(|mut workspace| {
            workspace.refuses_links = AtomicBool::new(policy.judges_paths());
            let local = config.local_beside_servers(&workspace.root);
            Local::new(workspace, Naming::Agent, &local)
        });
        let local = local.transpose().map_err(|why| one(&["tools", "local", "sandbox"], &why))?;
        if let Some(local) = &local {
            log_confinement(local.sandbox());
        }
        let mut config = config.clone();
        // The programs of MCP servers stay away from what commands write.
        let held = held_from_programs(&config.local);
        config.mcp.values_mut().for_each(|server| server.held.clone_from(&held));
        Ok(Self {
            policy: Arc::new(HeldPolicy::new(&config.policy, policy)),
            root,
            local: local.map(Arc::new),
            gateway,
            gateway_problem: Mutex::new(Some(ServerProblem {
                text: "the gateway has not been checked yet".to_owned(),
                prospect: Availability::Starting,
            })),
            servers: Mutex::default(),
            config: Arc::new(config),
        })
    }

    /// Prepares a changed policy: the strictest of all since the start decides. `None` if nothing changes.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn prepare_policy(
        &self,
        config: &PolicyConfig,
    ) -> Result<Option<StricterPolicy>, Vec<UnusableSetting>> {
        let prepared = self.policy.prepare_addition(config, self.root.as_deref())?;
        Ok(prepared.map(StricterPolicy))
    }

    /// Returns true if this policy is in force, and no stricter one.
    pub fn holds_only(&self, policy: &PolicyConfig) -> bool {
        self.policy.is_only(policy)
    }

    /// Puts the policy in force for calls that begin from now on.
    pub fn hold_policy(&self, policy: StricterPolicy) {
        if let Some(local) = &self.local {
            local.refuse_links(policy.0.judges_paths());
        }
        self.policy.replace_policies(policy.0);
    }

    /// Returns the sandbox of agents' commands; `None` without a workspace.
    pub fn sandbox(&self) -> Option<&Level> {
        self.local.as_ref().map(|local| local.sandbox())
    }

    /// Returns the reason why an MCP server cannot be called now; `None` if it can. It starts a server that
    /// does not run yet and does not wait for it.
    pub fn mcp_problem(&self, name: &str) -> Option<ServerProblem> {
        if !self.config.mcp.contains_key(name) {
            let text = format!("there is no [tools.mcp.{name}] in the configuration");
            return Some(ServerProblem { text, prospect: Availability::Unusable });
        }
        self.ensure_server(name).problem()
    }

    /// Checks within seconds whether the gateway can be reached.
    pub async fn look_at_gateway(&self) {
        let Some(gateway) = &self.gateway else { return };
        let problem =
            gateway.problem().await.map(|text| ServerProblem { text, prospect: Availability::Down });
        *self.gateway_problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }

    /// Returns the reason why OpenClaw's gateway refuses respool, which is asked now; `None` if it does not.
    pub async fn gateway_refusal(&self) -> Option<String> {
        self.gateway.as_ref()?.refusal().await
    }

    /// Returns the reason why OpenClaw's gateway cannot be called, as of the last check; `None` if it can.
    pub fn gateway_problem(&self) -> Option<ServerProblem> {
        self.gateway_problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until these MCP servers have started or failed to, at most this long. It starts those that do
    /// not run yet, all at once.
    pub async fn await_servers(&self, names: impl IntoIterator<Item = &str>, limit: Duration) {
        let configured = names.into_iter().filter(|name| self.config.mcp.contains_key(*name));
        let servers: Vec<_> = configured.map(|name| self.ensure_server(name)).collect();
        let starts = servers.iter().map(|server| server.wait_until_started(limit));
        futures::future::join_all(starts).await;
    }

    /// Checks within seconds whether these MCP servers still answer. One that does not is marked as down
    /// when this returns.
    pub async fn confirm_servers(&self, names: impl IntoIterator<Item = &str>) {
        let configured = names.into_iter().filter(|name| self.config.mcp.contains_key(*name));
        let servers: Vec<_> = configured.map(|name| self.ensure_server(name)).collect();
        futures::future::join_all(servers.iter().map(|server| server.confirm_reachable())).await;
    }

    /// Returns the tools of an agent, by the names in its `tools`.
    ///
    /// # Errors
    /// Each name that nothing offers. An MCP server that is down for now is not an error: its
    /// tools come with it.
    pub async fn select_tools(&self, wanted: &[String]) -> Result<ToolSet, Vec<UnavailableTool>> {
        let sorted = self.sort_wanted(wanted)?;
        let checks: Vec<_> =
            sorted.mcp.iter().map(|(name, wanted)| (self.ensure_server(name), wanted.clone())).collect();
        let checks = checks.iter().map(|(server, wanted)| missing_tools(server, wanted));
        let problems: Vec<_> = futures::future::join_all(checks).await.into_iter().flatten().collect();
        if problems.is_empty() { self.build_set(sorted) } else { Err(problems) }
    }

    /// Does the same without waiting for MCP servers: it starts those that do not run yet, and their tools
    /// come with them.
    ///
    /// # Errors
    /// Each name that nothing can offer with this configuration.
    pub fn select_now(&self, wanted: &[String]) -> Result<ToolSet, Vec<UnavailableTool>> {
        self.build_set(self.sort_wanted(wanted)?)
    }

    fn sort_wanted(&self, wanted: &[String]) -> Result<Sorted, Vec<UnavailableTool>> {
        let mut sorted = Sorted::default();
        let problems: Vec<_> =
            wanted.iter().filter_map(|name| self.sort_name(name, &mut sorted).err()).collect();
        if problems.is_empty() { Ok(sorted) } else { Err(problems) }
    }

    fn build_set(&self, sorted: Sorted) -> Result<ToolSet, Vec<UnavailableTool>> {
        let mut sources: Vec<(Arc<dyn Source>, Wanted)> = Vec::new();
        if let Some(local) = &self.local {
            sources.push((Arc::clone(local) as _, sorted.local));
        }
        if let Some(connection) = &self.gateway {
            let gateway = Gateway::new(connection, &sorted.gateway, self.root.clone());
            sources.push((gateway, sorted.gateway));
        }
        let servers = sorted.mcp.into_iter();
        sources.extend(servers.map(|(name, wanted)| (self.ensure_server(&name) as Arc<dyn Source>, wanted)));
        let (policy, config) = (Arc::clone(&self.policy), Arc::clone(&self.config));
        let set = ToolSet { policy, config, sources, servers: Vec::new() };
        set.without_doubles()
    }

    /// Assigns a name to its source. Local tools come first: the gateway has tools of these names too, but
    /// does not offer them over HTTP.
    fn sort_name(&self, name: &str, sorted: &mut Sorted) -> Result<(), UnavailableTool> {
        let needs =
            |what: &str| Err(UnavailableTool::Needs { tool: name.to_owned(), needed: what.to_owned() });
        if agent_names().any(|known| known == name) {
            sorted.local.0.push(name.to_owned());
            return if self.local.is_some() {
                Ok(())
            } else {
                needs("a workspace: set tools.local.workspace")
            };
        }
        if name.strip_prefix(known::PREFIX).is_some_and(|own| !known::is_name(own)) {
            return Err(UnavailableTool::NotOfGateway(name.to_owned()));
        }
        if known::known_names().any(|known| known == name) || name.starts_with(known::PREFIX) {
            sorted.gateway.0.push(name.to_owned());
            return if self.gateway.is_some() {
                Ok(())
            } else {
                needs("OpenClaw's gateway: set tools.gateway.url")
            };
        }
        if let Some((server, _)) = name.strip_prefix(MCP_PREFIX).and_then(|rest| rest.split_once('/')) {
            sorted.mcp.entry(server.to_owned()).or_default().0.push(name.to_owned());
            return if self.config.mcp.contains_key(server) {
                Ok(())
            } else {
                needs(&format!("[tools.mcp.{server}]"))
            };
        }
        Err(UnavailableTool::Unknown(name.to_owned()))
    }

    /// Returns the server of this name, and starts it if it does not run yet.
    fn ensure_server(&self, name: &str) -> Arc<Server> {
        let mut running = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        let config = self.config.mcp.get(name).cloned().unwrap_or_default();
        let start = || Server::start(name, &config, self.root.clone());
        Arc::clone(running.entry(name.to_owned()).or_insert_with(start))
    }
}

/// Logs how commands are confined.
fn log_confinement(level: &Level) {
    match level.gap() {
        None => tracing::info!(target: "respool::tools", sandbox = %level, "commands run in a sandbox"),
        Some(gap) => {
            tracing::warn!(target: "respool::tools", sandbox = %level, "the sandbox of commands has a gap: {gap}");
        }
    }
}

/// Returns the names that a server does not offer.
async fn missing_tools(server: &Server, wanted: &Wanted) -> Vec<UnavailableTool> {
    if let Err(problem) = server.wait_until_started(FIRST_START).await {
        return vec![problem];
    }
    let Some(names) = server.tool_names() else { return Vec::new() };
    let missing = wanted.0.iter().filter(|name| !names.iter().any(|known| matches_stars(name, known)));
    let problem = |name: &String| UnavailableTool::NotOffered { tool: name.clone(), offered: names.clone() };
    missing.map(problem).collect()
}

impl ToolSet {
    /// Opens the chat's four tools on a workspace: `shell_command`, `read_file`, `edit_file`, `write_file`.
    /// Rules, timeouts and limits also know them as `exec`, `read`, `edit` and `write`. Those of the MCP
    /// servers come with [`Self::start_servers`].
    ///
    /// # Errors
    /// When the workspace cannot be opened or a rule cannot be used.
    pub fn open_for_chat(
        config: &ToolsConfig,
        policy: &PolicyConfig,
        workspace: &Path,
    ) -> Result<Self, String> {
        let mut workspace = Workspace::open(workspace)?;
        let compiled = Policy::new(policy, Some(&workspace.root))
            .map_err(|found| found.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
        workspace.refuses_links = AtomicBool::new(compiled.judges_paths());
        let policy = Arc::new(HeldPolicy::new(policy, compiled));
        let root = workspace.root.clone();
        let local = config.local_beside_servers(&root);
        let held = held_from_programs(&LocalConfig { workspace: Some(root.clone()), ..local.clone() });
        let local = Local::new(workspace, Naming::Chat, &local)?;
        log_confinement(local.sandbox());
        let servers: Vec<Arc<Server>> = config
            .mcp
            .iter()
            .map(|(name, server)| {
                Server::prepare(name, &McpConfig { held: held.clone(), ..server.clone() }, Some(root.clone()))
            })
            .collect();
        let local: Arc<dyn Source> = Arc::new(local);
        let sources = std::iter::once(local).chain(servers.iter().map(|server| Arc::clone(server) as _));
        let sources = sources.map(|source| (source, Wanted(vec!["*".into()]))).collect();
        Ok(Self { policy, config: Arc::new(config.clone()), sources, servers })
    }
}
