//! The configuration: defaults ← file ← environment ← flags, checked whole, with every problem reported at once.
//!
//! The modules own their structs; here they are composed, layered and checked. One table ([`KEYS`]) says what exists: it
//! drives the checks, `config show` and the generated page. [`resolve`] is pure: it gets file text, environment and flags
//! as arguments. Only [`Loaded::from_process`] touches the process. No module imports this one but `main` and `cli`.

mod changes;
mod contradictions;
mod cover;
mod effect;
mod environment;
mod experts;
mod file;
mod flags;
mod keys;
mod misspelt;
mod page;
mod problem;
mod search;
mod shape;
mod show;
mod tree;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

pub use effect::Change;
pub use flags::Flags;
pub use keys::{KEYS, Key};
pub use misspelt::Misspelt;
pub use page::page;
pub use problem::{Place, Problem, Problems};

use crate::adapt::Consent;
use crate::agent::AgentConfig;
use crate::alerts::AlertsConfig;
use crate::expert::ExpertsConfig;
use crate::observe::LogConfig;
use crate::otlp::OtlpConfig;
use crate::relay::{
    ContextConfig, ModelConfig, ReasoningField, RecoveryConfig, RelayConfig, ToolParsing, ToolsMode,
};
use crate::server::{LimitsConfig, Listen, ServerConfig};
use crate::store::{ResponsesConfig, RunsConfig, StoreConfig};
use crate::tools::programs::{find_in_path, path_without};
use crate::tools::{AuditConfig, ToolsConfig, audit};
use crate::units::{Secret, Unusable};
use crate::upstream::UpstreamConfig;
use crate::usage::{BudgetsConfig, PriceConfig, UsageConfig};
use experts::ExpertsDocument;
use tree::Table;

/// Environment variables, by name.
pub type Environment = BTreeMap<String, String>;

/// The whole configuration, checked. Its default is what holds when nothing at all is configured.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `listen`, `trusted_hosts`, `client_keys` and `[limits]`.
    pub server: ServerConfig,
    /// The modes, `[models]`, `[recovery]` and `[context]`.
    pub relay: RelayConfig,
    /// `[[upstream]]`: at least one, each with a name; the first is the default one.
    pub upstreams: Vec<UpstreamConfig>,
    /// `[log]`.
    pub log: LogConfig,
    /// `state_dir` and `[runs]`.
    pub store: StoreConfig,
    /// `[agents.NAME]`, by name.
    pub agents: BTreeMap<String, AgentConfig>,
    /// `[tools]`.
    pub tools: ToolsConfig,
    /// `[experts]`.
    pub experts: ExpertsConfig,
    /// `[usage]`.
    pub usage: UsageConfig,
    /// `[prices]`, by model; `own` stands for one's own hardware.
    pub prices: BTreeMap<String, PriceConfig>,
    /// `[budgets]`.
    pub budgets: BudgetsConfig,
    /// `[alerts]`.
    pub alerts: AlertsConfig,
    /// `[otlp]`.
    pub otlp: OtlpConfig,
}

impl Default for Settings {
    fn default() -> Self {
        Document::default().settings(&Environment::new())
    }
}

impl Settings {
    /// Reads the file that is found, the process's environment and these flags.
    ///
    /// # Errors
    /// Everything that is wrong, with where it was written and what to do about it.
    pub fn load(flags: &Flags) -> Result<Self, Problems> {
        Loaded::from_process(flags).map(|loaded| loaded.settings)
    }
}

/// A configuration file's text and its name for messages.
#[derive(Clone, Copy, Debug)]
pub struct FileText<'a> {
    /// The path as it is shown.
    pub path: &'a Path,
    /// The whole text.
    pub text: &'a str,
}

/// Checked settings, and where each value came from.
#[derive(Clone)]
pub struct Loaded {
    /// The settings.
    pub settings: Settings,
    /// The file that was used.
    pub file: Option<PathBuf>,
    /// A `respool.toml` in the working directory that was not read, because nobody named it.
    pub unread: Option<PathBuf>,
    /// Environment variables that look like settings and are read by nothing.
    pub misspelt: Vec<Misspelt>,
    tree: Table,
}

/// Without the tree, which holds secrets as they were written.
impl fmt::Debug for Loaded {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Loaded")
            .field("settings", &self.settings)
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

impl Loaded {
    /// Reads the file that is found, the process's environment and these flags.
    ///
    /// # Errors
    /// Everything that is wrong, with where it was written and what to do about it.
    pub fn from_process(flags: &Flags) -> Result<Self, Problems> {
        let environment = process_environment();
        let named = flags.config.as_deref();
        let found = search::find(named, &environment)?;
        let file = found.as_ref().map(|(path, text)| FileText { path, text });
        let mut loaded = resolve(file, &environment, flags)?.for_this_process();
        let here = std::env::current_dir().unwrap_or_default();
        loaded.misspelt = misspelt::find_misspelt(&environment, &loaded.tree);
        loaded.unread = search::unread(&here, named, &environment, loaded.file.as_deref());
        Ok(loaded)
    }

    /// For a server: what it does not read may hold the keys that it is to ask for.
    ///
    /// # Errors
    /// When there is a `respool.toml` in the working directory that was not read.
    pub fn without_unread(self) -> Result<Self, Problems> {
        let Some(unread) = &self.unread else { return Ok(self) };
        let why = format!(
            "this file is not read, because no option names it: respool takes no configuration from the directory it is started \
             in. Name it (--config {}, or its whole path in RESPOOL_CONFIG), or move it to ~/.config/respool or /etc/respool",
            search::FILE
        );
        Err(Problems::one(Place::named(unread.display().to_string()), why))
    }

    /// With what only this process knows: the program that it runs, and which files are its own.
    fn for_this_process(mut self) -> Self {
        let state_dir = self.settings.store.state_dir.clone();
        let tools = &mut self.settings.tools;
        tools.local.launcher = Some("/proc/self/exe".into());
        tools.audit =
            Some(AuditConfig { file: state_dir.join(audit::FILE), content: self.settings.log.content });
        let program = std::env::current_exe().ok();
        let log = Some(state_dir.join(audit::FILE));
        let own = [self.file.clone(), self.settings.log.file.clone(), program, log, Some(state_dir)];
        tools.local.own_files.extend(own.into_iter().flatten().filter_map(|path| path.canonicalize().ok()));
        let writable = tools.local.writable_by_commands();
        for sink in &mut self.settings.alerts.sink {
            sink.search_path = Some(path_without(&writable));
            tools.local.started.push(sink.program.clone());
            // One that is not found keeps its name, and the sink says so.
            let found = sink.program.first().and_then(|name| find_in_path(name, &writable).ok());
            sink.program.iter_mut().zip(found).for_each(|(name, path)| *name = path.display().to_string());
        }
        self
    }

    /// Where other files of the configuration are looked for: beside the file that was used, else in the user's
    /// configuration directory.
    pub fn directory(&self) -> Option<PathBuf> {
        let beside = self.file.as_ref().and_then(|file| file.parent()).map(Path::to_owned);
        beside.or_else(|| search::user_dir(&process_environment()))
    }

    /// What was found to be of no use when it was used, each with where it was written.
    pub fn problems(&self, found: Vec<Unusable>) -> Problems {
        let mut problems = Problems::default();
        for Unusable { key, why } in found {
            let key: Vec<&str> = key.iter().map(String::as_str).collect();
            problems.add(tree::place_of(&self.tree, &key), contradictions::written(&key), why);
        }
        problems.into_result().err().unwrap_or_default()
    }

    /// Returns the place where the address of an upstream was written, by its number in the settings.
    pub fn place_of_upstream(&self, index: usize) -> Place {
        tree::place_of(&self.tree, &["upstream", &index.to_string(), "url"])
    }

    /// The keys whose values are others than in `before`, as they are written: `upstream[1].url`.
    pub fn changed_keys(&self, before: &Self) -> Vec<String> {
        changes::changed(&before.tree, &self.tree)
    }

    /// The effective values as TOML, each line with where its value came from; secrets are `"***"`.
    pub fn show(&self) -> String {
        show::show(&self.tree, self.file.as_deref(), self.unread.as_deref(), &self.misspelt)
    }
}

fn process_environment() -> Environment {
    let lossy = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    std::env::vars_os().map(|(name, value)| (lossy(name), lossy(value))).collect()
}

/// What the merged and cleaned layers look like.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Document {
    listen: Listen,
    trusted_hosts: Vec<String>,
    trusted_origins: Vec<String>,
    client_keys: Vec<Secret>,
    client_keys_env: Option<String>,
    client_keys_file: Option<PathBuf>,
    operator_keys_env: Option<String>,
    allow_unauthenticated: bool,
    allow_admin_routes: bool,
    pass_routes: Vec<String>,
    tools_mode: ToolsMode,
    tool_parsing: ToolParsing,
    reasoning: ReasoningField,
    keep_fields: Vec<String>,
    state_dir: Option<PathBuf>,
    upstream: Vec<UpstreamConfig>,
    models: BTreeMap<String, ModelConfig>,
    limits: LimitsConfig,
    recovery: RecoveryConfig,
    context: ContextConfig,
    adapt: Consent,
    log: LogConfig,
    runs: RunsConfig,
    responses: ResponsesConfig,
    agents: BTreeMap<String, AgentConfig>,
    tools: ToolsConfig,
    experts: ExpertsDocument,
    usage: UsageConfig,
    prices: BTreeMap<String, PriceConfig>,
    budgets: BudgetsConfig,
    alerts: AlertsConfig,
    otlp: OtlpConfig,
}

impl Document {
    fn settings(self, environment: &Environment) -> Settings {
        let mut upstreams: Vec<_> = self.upstream.into_iter().map(UpstreamConfig::named).collect();
        if upstreams.is_empty() {
            upstreams.push(UpstreamConfig::default().named());
        }
        Settings {
            server: ServerConfig {
                listen: self.listen,
                trusted_hosts: self.trusted_hosts,
                trusted_origins: self.trusted_origins,
                client_keys: self.client_keys,
                client_keys_env: self.client_keys_env,
                client_keys_file: self.client_keys_file,
                operator_keys: Vec::new(),
                operator_keys_env: self.operator_keys_env,
                allow_unauthenticated: self.allow_unauthenticated,
                allow_admin_routes: self.allow_admin_routes,
                pass_routes: self.pass_routes,
                limits: self.limits,
            },
            relay: RelayConfig {
                tools_mode: self.tools_mode,
                tool_parsing: self.tool_parsing,
                reasoning: self.reasoning,
                keep_fields: self.keep_fields,
                models: self.models,
                recovery: self.recovery,
                context: self.context,
                adapt: self.adapt,
            },
            upstreams,
            log: self.log,
            store: StoreConfig {
                state_dir: self.state_dir.unwrap_or_else(|| search::state_dir(environment)),
                runs: self.runs,
                responses: self.responses,
            },
            agents: self.agents,
            tools: self.tools,
            experts: self.experts.settings(environment),
            usage: self.usage,
            prices: self.prices,
            budgets: self.budgets,
            alerts: self.alerts,
            otlp: self.otlp,
        }
    }
}

/// Layers and checks a configuration from what it is made of, without looking at the process.
///
/// # Errors
/// Everything that is wrong, with where it was written and what to do about it.
pub fn resolve(
    file: Option<FileText<'_>>,
    environment: &Environment,
    flags: &Flags,
) -> Result<Loaded, Problems> {
    let mut problems = Problems::default();
    let home = environment.get("HOME").map(PathBuf::from);
    let checker = shape::Checker::new(home);
    let from_file = file.map(|file| file::read(file, &mut problems)).unwrap_or_default();
    let from_file = checker.clean(from_file, &mut problems);
    let from_environment = environment::layer(checker.schema(), &from_file, environment, &mut problems);
    let from_environment = checker.clean(from_environment, &mut problems);
    let tree = tree::merge(from_file, from_environment);
    let from_flags = checker.clean(flags.layer(&tree), &mut problems);
    let mut tree = tree::merge(tree, from_flags);
    checker.required(&tree, &mut problems);
    let document: Document = tree::deserialize(&tree, &mut problems);
    let mut settings = document.settings(environment);
    contradictions::check(&mut settings, &tree, environment, &mut problems);
    problems.into_result()?;
    tree::complete(&mut tree, &settings);
    Ok(Loaded {
        settings,
        file: file.map(|file| file.path.to_owned()),
        unread: None,
        misspelt: Vec::new(),
        tree,
    })
}

#[cfg(test)]
mod tests;
