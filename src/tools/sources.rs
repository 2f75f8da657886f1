//! All configured sources of tools, opened once, and the selection of an agent's tools from them.

use std::path::Path;
use std::sync::Arc;

use super::config::{PolicyConfig, ToolsConfig};
use super::local::{Local, Naming, Workspace, agent_names};
use super::policy::Policy;
use super::set::ToolSet;
use super::source::Source;
use super::wanted::{Wanted, nearest};

/// Everything that `[tools]` sets up, shared by all agents.
pub struct Sources {
    config: Arc<ToolsConfig>,
    policy: Arc<Policy>,
    local: Option<Arc<Local>>,
}

impl Sources {
    /// Opens what can be opened without asking anybody else.
    ///
    /// # Errors
    /// What of the settings cannot be used.
    pub fn open(config: &ToolsConfig) -> Result<Self, Vec<String>> {
        let workspace = config.local.workspace.as_deref().map(Workspace::open).transpose();
        let workspace = workspace.map_err(|problem| vec![format!("tools.local.workspace: {problem}")])?;
        let root = workspace.as_ref().map(|workspace| workspace.root.as_path());
        let policy = Policy::new(&config.policy, root).map_err(|problem| vec![problem])?;
        Ok(Self {
            policy: Arc::new(policy),
            local: workspace.map(|workspace| Arc::new(Local::new(Arc::new(workspace), Naming::Agent))),
            config: Arc::new(config.clone()),
        })
    }

    /// The tools of an agent, by the names in its `tools`.
    ///
    /// # Errors
    /// One text for each name that nothing offers.
    pub async fn select(&self, wanted: &[String]) -> Result<ToolSet, Vec<String>> {
        let mut problems = Vec::new();
        let mut local = Wanted::default();
        for name in wanted {
            match self.check(name) {
                Ok(()) => local.0.push(name.clone()),
                Err(problem) => problems.push(problem),
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let mut sources: Vec<(Arc<dyn Source>, Wanted)> = Vec::new();
        if let Some(source) = &self.local {
            sources.push((Arc::clone(source) as _, local));
        }
        Ok(ToolSet { policy: Arc::clone(&self.policy), config: Arc::clone(&self.config), sources })
    }

    fn check(&self, name: &str) -> Result<(), String> {
        if !agent_names().any(|known| known == name) {
            let hint = nearest(name, agent_names()).map(|near| format!("; did you mean {near:?}?"));
            return Err(format!("nothing offers a tool {name:?}{}", hint.unwrap_or_default()));
        }
        if self.local.is_none() {
            return Err(format!("the tool {name:?} needs a workspace: set tools.local.workspace"));
        }
        Ok(())
    }
}

impl ToolSet {
    /// The tools of an agent that shares its sources with nobody.
    ///
    /// # Errors
    /// As [`Sources::open`] and [`Sources::select`].
    pub async fn open(config: &ToolsConfig, wanted: &[String]) -> Result<Self, Vec<String>> {
        Sources::open(config)?.select(wanted).await
    }

    /// The chat's four tools on a workspace: `shell_command`, `read_file`, `edit_file`, `write_file`. Rules, timeouts and
    /// limits know them as `exec`, `read`, `edit` and `write` too.
    ///
    /// # Errors
    /// When the workspace cannot be opened or a rule cannot be used.
    pub fn for_chat(config: &ToolsConfig, policy: &PolicyConfig, workspace: &Path) -> Result<Self, String> {
        let workspace = Workspace::open(workspace)?;
        let policy = Arc::new(Policy::new(policy, Some(&workspace.root))?);
        let local: Arc<dyn Source> = Arc::new(Local::new(Arc::new(workspace), Naming::Chat));
        Ok(Self {
            policy,
            config: Arc::new(config.clone()),
            sources: vec![(local, Wanted(vec!["*".into()]))],
        })
    }
}
