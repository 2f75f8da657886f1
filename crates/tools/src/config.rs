//! `[tools.*]`: where tools come from, what bounds them and what they may do.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::audit::AuditConfig;
use super::programs::{find_in_path, path_without};
use super::sandbox::Level;
use wire::units::{Secret, Size, parse_duration};

wire::string_enum! {
    /// The policy's answer to a call.
    Verdict {
        /// It runs.
        Allow = "allow",
        /// A person is asked; where no person can be asked, it is denied.
        #[default]
        Ask = "ask",
        /// It does not run, and the model gets an error.
        Deny = "deny",
    }
}

wire::string_enum! {
    /// Whether commands run in a sandbox.
    SandboxMode {
        /// As much of one as the kernel permits.
        #[default]
        Auto = "auto",
        /// Without one that holds files, nothing starts.
        Require = "require",
        /// None: only their processes are kept together.
        Off = "off",
    }
}

/// `[tools]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolsConfig {
    /// `[tools.local]`.
    pub local: LocalConfig,
    /// `[tools.gateway]`.
    pub gateway: GatewayConfig,
    /// `[tools.mcp.NAME]`, by name.
    pub mcp: BTreeMap<String, McpConfig>,
    /// `[tools.policy]`.
    pub policy: PolicyConfig,
    /// The log of what tools did; `None`: calls are not recorded.
    #[serde(skip)]
    pub audit: Option<AuditConfig>,
    /// How long a tool may take, by its name.
    #[serde(deserialize_with = "durations")]
    pub timeouts: BTreeMap<String, Duration>,
    /// How much of a tool's result the model gets, by its name.
    pub result_limits: BTreeMap<String, Size>,
}

fn durations<'de, D: Deserializer<'de>>(source: D) -> Result<BTreeMap<String, Duration>, D::Error> {
    let written = BTreeMap::<String, String>::deserialize(source)?;
    let read = |(name, text): (String, String)| parse_duration(&text).map(|duration| (name, duration));
    written.into_iter().map(read).collect::<Result<_, _>>().map_err(serde::de::Error::custom)
}

/// `[tools.local]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LocalConfig {
    /// The directory that local tools cannot leave; `None`: no local tools.
    pub workspace: Option<PathBuf>,
    /// Further variables that commands get: names, or patterns with `*`.
    pub pass_env: Vec<String>,
    /// Whether commands run in a sandbox.
    pub sandbox: SandboxMode,
    /// Whether commands have a network; `None`: in the chat alone.
    pub network: Option<bool>,
    /// Further places that commands may read.
    pub readable: Vec<PathBuf>,
    /// Further places that commands may write.
    pub writable: Vec<PathBuf>,
    /// Whether commands may write a workspace with a repository where bubblewrap cannot keep them from the
    /// repository itself.
    pub unprotected_repositories: bool,
    /// The highest level of the sandbox that is used; `None`: the highest there is. For tests.
    #[serde(skip)]
    pub highest_level: Option<Level>,
    /// The program that takes `sandbox-exec`: respool. `None` where this process is another one.
    #[serde(skip)]
    pub launcher: Option<PathBuf>,
    /// respool's own files, which no tool writes.
    #[serde(skip)]
    pub own_files: Vec<PathBuf>,
    /// The command lines that respool starts outside the sandbox: commands do not write what they name.
    #[serde(skip)]
    pub started: Vec<Vec<String>>,
    /// The variables that hold respool's own keys. Once the configuration is loaded, all that it names.
    #[serde(skip)]
    pub key_variables: Vec<String>,
}

impl LocalConfig {
    /// Returns the directories that commands write, without symlinks: the workspace, and the places that the
    /// configuration adds.
    pub fn writable_by_commands(&self) -> Vec<PathBuf> {
        let places = self.workspace.iter().chain(&self.writable);
        places.filter_map(|place| place.canonicalize().ok()).collect()
    }
}

/// `[tools.gateway]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatewayConfig {
    /// The gateway's base URL; `None`: no gateway tools.
    pub url: Option<String>,
    /// The gateway's token. Once the configuration is loaded, this holds the value of `token_env` too.
    pub token: Option<Secret>,
    /// The environment variable that holds the token.
    pub token_env: Option<String>,
    /// The session on whose behalf tools run (the gateway's `sessionKey`).
    pub session_key: Option<String>,
}

/// One `[tools.mcp.NAME]`: a command (stdio) or a URL (streamable HTTP).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct McpConfig {
    /// The program to start. Once the sources are open, its whole path, if it was found.
    pub command: Option<String>,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its environment, added to what it needs to run.
    pub env: BTreeMap<String, Secret>,
    /// The server's URL.
    pub url: Option<String>,
    /// Headers sent to the URL.
    pub headers: BTreeMap<String, Secret>,
    /// Where the program finds others: `PATH` without directories that commands write.
    #[serde(skip)]
    pub search_path: Option<OsString>,
}

impl ToolsConfig {
    /// The settings of commands, with the command lines of MCP servers.
    pub(super) fn local_with_servers(&self) -> LocalConfig {
        let mut local = self.local.clone();
        let line = |server: &McpConfig| server.command.iter().chain(&server.args).cloned().collect();
        local.started.extend(self.mcp.values().map(line));
        local
    }

    /// The same with the programs of MCP servers found, outside of what commands write.
    pub(super) fn with_programs(mut self) -> Self {
        let writable = self.local.writable_by_commands();
        for server in self.mcp.values_mut() {
            server.search_path = Some(path_without(&writable));
            let found = server.command.as_deref().and_then(|name| find_in_path(name, &writable).ok());
            server.command = found.map(|path| path.display().to_string()).or(server.command.take());
        }
        self
    }
}

/// `[tools.policy]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicyConfig {
    /// The answer when no rule matches.
    pub default: Verdict,
    /// `[[tools.policy.rule]]`, in order: the first that matches decides.
    pub rule: Vec<Rule>,
}

/// One `[[tools.policy.rule]]`. It matches when all the patterns it has match; `*` stands for any text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    /// The tool's name.
    pub tool: Option<String>,
    /// The command line.
    pub command: Option<String>,
    /// The path.
    pub path: Option<String>,
    /// The host.
    pub host: Option<String>,
    /// Arguments of foreign tools that hold text and nothing else, whatever it looks like to respool.
    pub free_text: Vec<String>,
    /// The rule's answer.
    pub then: Verdict,
}
