//! `[tools.*]`: where tools come from, what bounds them and what they may do.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::audit::AuditConfig;
use super::programs::{Started, check_variables, paths_in};
use super::sandbox::Level;
use wire::settings::Scalar;
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
        /// As much of a sandbox as the kernel permits.
        #[default]
        Auto = "auto",
        /// Nothing starts without a sandbox that protects files.
        Require = "require",
        /// No sandbox: only the processes are kept together.
        Off = "off",
    }
}

wire::settings! {
    /// `[tools]`.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct ToolsConfig {
        /// How long a tool may take, by its name; `*` for any text in it.
        #[serde(deserialize_with = "deserialize_durations")]
        pub timeouts: BTreeMap<String, Duration> = BTreeMap::new(),
            with_example(r#"{ exec = "2m", "mcp:files/*" = "10s" }"#);
        /// How much of a tool's result the model gets, by its name; `*` for any text in it.
        pub result_limits: BTreeMap<String, Size> = BTreeMap::new(), with_example(r#"{ web_fetch = "64KiB" }"#);
        sections {
            /// `[tools.local]`.
            pub local: LocalConfig = LocalConfig::default();
            /// `[tools.gateway]`.
            pub gateway: GatewayConfig = GatewayConfig::default();
            /// `[tools.mcp.NAME]`, by name.
            pub mcp: BTreeMap<String, McpConfig> = BTreeMap::new(), at("mcp.<NAME>");
            /// `[tools.policy]`.
            pub policy: PolicyConfig = PolicyConfig::default();
        }
        derived {
            /// The log of what tools did, if one is kept.
            pub audit: Option<AuditConfig> = None;
        }
    }
}

fn deserialize_durations<'de, D: Deserializer<'de>>(
    source: D,
) -> Result<BTreeMap<String, Duration>, D::Error> {
    let written = BTreeMap::<String, String>::deserialize(source)?;
    let read = |(name, text): (String, String)| parse_duration(&text).map(|duration| (name, duration));
    written.into_iter().map(read).collect::<Result<_, _>>().map_err(serde::de::Error::custom)
}

wire::settings! {
    /// `[tools.local]`.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct LocalConfig {
        /// The directory that local tools cannot leave.
        pub workspace: Option<PathBuf> = None, when_unset("no local tools", r#""~/work""#);
        /// Further environment variables for commands (docs/tools.md). A name passes the variable whatever
        /// its value; a pattern with `*` passes no variable that looks like a secret.
        pub pass_env: Vec<String> = Vec::new(), with_example(r#"["CARGO_*", "VIRTUAL_ENV"]"#);
        /// The sandbox for commands: as much as the kernel permits (`auto`), no start without one that
        /// protects files (`require`), or none (`off`); docs/tools.md says what each level stops.
        pub sandbox: SandboxMode = SandboxMode::default();
        /// Whether commands in the sandbox have a network.
        pub network: Option<bool> = None, when_unset("`false` for agents, `true` in `respool chat`", "true");
        /// The TCP ports on this machine's loopback that commands with a network reach, where they have a
        /// network of their own (docs/tools.md): those of databases for tests, and of a proxy.
        pub loopback_ports: Vec<u16> = Vec::new(), with_example("[5432]");
        /// Files and directories that commands in the sandbox may read, in addition to the workspace and the
        /// directories of the system and of tools.
        pub readable: Vec<PathBuf> = Vec::new(), with_example(r#"["/srv/data"]"#);
        /// Files and directories that commands in the sandbox may write, in addition to the workspace and the
        /// usual caches.
        pub writable: Vec<PathBuf> = Vec::new(), with_example(r#"["~/builds"]"#);
        /// Files and directories in the workspace that commands in the sandbox never write, in addition to
        /// `.git` and settings of editors and agents: scripts that your hooks or `.envrc` run, for example.
        pub read_only: Vec<PathBuf> = Vec::new(), with_example(r#"["scripts"]"#);
        /// Whether commands may write a workspace with a git repository where bubblewrap is missing, although
        /// they can then change the repository's hooks and configuration.
        pub unprotected_repositories: bool = false;
        derived {
            /// The highest level of the sandbox that is used; `None`: the highest there is. For tests.
            pub highest_level: Option<Level> = None;
            /// The program with the `sandbox-exec` command: respool. `None` if this process is another one.
            pub launcher: Option<PathBuf> = None;
            /// The places below those that commands write that MCP servers are given.
            pub named_by_servers: Vec<PathBuf> = Vec::new();
            /// The state directory, where commands at work have their locks.
            pub state_dir: Option<PathBuf> = None;
            /// respool's own files, which no tool writes.
            pub own_files: Vec<PathBuf> = Vec::new();
            /// Directories with respool's keys, which no command reads.
            pub hidden: Vec<PathBuf> = Vec::new();
            /// The variables that hold respool's own keys: all that the configuration names, once it is
            /// loaded.
            pub key_variables: Vec<String> = Vec::new();
        }
    }
}

impl LocalConfig {
    /// Returns the directories that commands write, without symlinks: the workspace, and the places that the
    /// configuration adds.
    pub fn writable_by_commands(&self) -> Vec<PathBuf> {
        let places = self.workspace.iter().chain(&self.writable);
        places.filter_map(|place| place.canonicalize().ok()).collect()
    }
}

wire::settings! {
    /// `[tools.gateway]`.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct GatewayConfig {
        /// OpenClaw's gateway.
        pub url: Option<String> = None,
            with_form(Scalar::HttpUrl),
            when_unset("no gateway tools", r#""http://127.0.0.1:18789""#);
        /// The gateway's token or password.
        pub token: Option<Secret> = None, when_unset("no token is sent", r#""secret""#);
        /// The environment variable that holds the token.
        pub token_env: Option<String> = None, when_unset("the token in `token`", r#""OPENCLAW_GATEWAY_TOKEN""#);
        /// The session for which tools run.
        pub session_key: Option<String> = None, when_unset("the gateway's main session", r#""agent:main:main""#);
    }
}

wire::settings! {
    /// One `[tools.mcp.NAME]`: a command (stdio) or a URL (streamable HTTP).
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct McpConfig {
        /// The program of an MCP server on standard input and output.
        pub command: Option<String> = None, when_unset("the server at `url`", r#""npx""#);
        /// Its arguments.
        pub args: Vec<String> = Vec::new(),
            with_example(r#"["-y", "@modelcontextprotocol/server-filesystem", "."]"#);
        /// Its environment, in addition to `PATH`, `HOME` and the like; respool's own is not passed on.
        pub env: BTreeMap<String, Secret> = BTreeMap::new(),
            with_form(Scalar::Text),
            with_example(r#"{ API_TOKEN = "secret" }"#);
        /// An MCP server over streamable HTTP.
        pub url: Option<String> = None,
            with_form(Scalar::HttpUrl),
            when_unset("the server that `command` starts", r#""https://mcp.example.org/mcp""#);
        /// Headers sent to `url`.
        pub headers: BTreeMap<String, Secret> = BTreeMap::new(),
            with_example(r#"{ Authorization = "Bearer secret" }"#);
        derived {
            /// The directories from which none of its code comes.
            pub held: Vec<PathBuf> = Vec::new();
        }
    }
}

impl McpConfig {
    /// Finds the program that a command starts outside the sandbox.
    ///
    /// # Errors
    /// When commands could have written code that it runs.
    pub(crate) fn find_program(&self, command: &str) -> Result<Started, String> {
        check_variables(
            self.env.iter().map(|(name, value)| (name.as_str(), value.expose_secret())),
            &self.held,
        )?;
        Started::find(&[&[command.to_owned()], &self.args[..]].concat(), &self.held)
    }

    /// Returns why the program of the server cannot be started, as far as its file shows.
    pub fn find_program_problem(&self) -> Option<String> {
        let command = self.command.clone()?;
        let started = match self.find_program(&command) {
            Ok(started) => started,
            Err(why) => return Some(why),
        };
        let program = started.line.first().map(Path::new)?;
        match program.metadata() {
            Ok(found) if found.is_file() && found.permissions().mode() & 0o111 != 0 => None,
            Ok(_) => Some(format!(
                "{command} is not an executable file: run `chmod +x {command}`, or correct `command`"
            )),
            Err(error) => {
                let todo = hint_of_arguments(&command)
                    .unwrap_or_else(|| "install it, or correct `command`".to_owned());
                Some(format!("{command} cannot be started: {error}; {todo}"))
            }
        }
    }
}

/// Returns how a command is written that has its arguments in it.
pub(crate) fn hint_of_arguments(command: &str) -> Option<String> {
    let mut words = command.split_whitespace();
    let (program, arguments) = (words.next()?, words.map(|word| format!("{word:?}")).collect::<Vec<_>>());
    let arguments = arguments.join(", ");
    (!arguments.is_empty())
        .then(|| format!("write `command = {program:?}` and `args = [{arguments}]`, each argument by itself"))
}

impl ToolsConfig {
    /// Returns the settings of local tools, with the paths below a workspace that command lines and
    /// environments of MCP servers contain: these may find code there.
    pub(super) fn local_beside_servers(&self, workspace: &Path) -> LocalConfig {
        let mut local = self.local.clone();
        // A server may be given the workspace or a directory above it: that names no code of the server.
        let is_around = |path: &PathBuf| path.canonicalize().is_ok_and(|path| workspace.starts_with(path));
        for server in self.mcp.values() {
            let variables = server.env.values().map(Secret::expose_secret);
            for text in server.command.iter().chain(&server.args).map(String::as_str).chain(variables) {
                local.named_by_servers.extend(paths_in(text).into_iter().filter(|path| !is_around(path)));
            }
        }
        local
    }
}

wire::settings! {
    /// `[tools.policy]`.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct PolicyConfig {
        /// The verdict if no rule matches. `ask` counts as a denial where no person can be asked.
        pub default: Verdict = Verdict::default();
        sections {
            /// `[[tools.policy.rule]]`, in order: the first that matches decides.
            pub rule: Vec<Rule> = Vec::new(), at("rule[]");
        }
    }
}

wire::settings! {
    /// One `[[tools.policy.rule]]`. It matches when all the patterns it has match; `*` stands for any text.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Rule {
        /// The tool's name; `*` stands for any text. The first matching rule decides: `allow` needs
        /// everything that the call touches to match, `deny` and `ask` any part of it.
        pub tool: Option<String> = None, when_unset("any tool", r#""exec""#);
        /// A pattern for the command line; `*` stands for any text without operators (docs/tools.md).
        pub command: Option<String> = None, when_unset("any command", r#""git *""#);
        /// A pattern for the path in the workspace; `**` crosses folders, `*` does not.
        pub path: Option<String> = None, when_unset("any path", r#""src/**""#);
        /// A pattern for the host.
        pub host: Option<String> = None, when_unset("any host", r#""*.example.org""#);
        /// Arguments of the gateway's and MCP servers' tools that are plain text: the rule's patterns need
        /// not match them (docs/tools.md).
        pub free_text: Vec<String> = Vec::new(), with_example(r#"["note"]"#);
        /// The verdict of the rule.
        pub then: Verdict = Verdict::default(), must_be_set(r#""allow""#);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_do_not_belong_into_the_command() {
        let hint = "write `command = \"python3\"` and `args = [\"crm.py\", \"-v\"]`, each argument by itself";
        assert_eq!(hint_of_arguments("python3 crm.py -v").as_deref(), Some(hint));
        assert_eq!(hint_of_arguments("python3"), None);
    }
}
