//! The greeting at the start: which endpoint, which files, and what the assistant may do without asking.
//! Pure; every line describes the settings in effect, not the defaults.

use std::path::{Path, PathBuf};

use super::ChatOptions;
use super::project_rules::repository_of;
use tools::programs::holds_home;
use tools::{Level, LocalConfig, PolicyConfig, Rule, ToolsConfig, Verdict, reached_services};

/// The most rules that are listed one by one.
const MOST_RULES: usize = 6;

/// The sources of the settings and the destinations of requests.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The endpoints, each with the source of its key.
    pub upstreams: Vec<String>,
    /// The configuration file.
    pub config: Option<PathBuf>,
    /// The file of the system prompt; `None` for the built-in one.
    pub system: Option<PathBuf>,
    /// A sentence about files of the working directory that are not used.
    pub unread: Option<String>,
}

/// Says which part of the repository the assistant does not see, if it begins below its top.
pub(super) fn partial_line(root: &Path) -> Option<String> {
    let top = repository_of(root).filter(|top| *top != root && !holds_home(top))?;
    Some(format!("It sees this directory alone: begin in {} for the whole repository.", top.display()))
}

/// Returns the lines below the headline. `rules`: the project's file whose rules are in the prompt.
pub(super) fn greeting_lines(
    sources: &Sources,
    rules: Option<&str>,
    tools: &ToolsConfig,
    options: &ChatOptions,
) -> Vec<String> {
    let of = |path: &Option<PathBuf>, none: &str| path.as_deref().map_or(none.to_owned(), display_path);
    let upstream = format!("upstream: {}", sources.upstreams.join(", "));
    let files = format!(
        "settings: {} · prompt: {}{}",
        of(&sources.config, "defaults, no file"),
        of(&sources.system, "built in"),
        rules.map(|name| format!(" and {name}")).unwrap_or_default()
    );
    let servers: Vec<&str> = tools.mcp.keys().map(String::as_str).collect();
    let servers =
        (!servers.is_empty()).then(|| format!("MCP servers, which are starting: {}", servers.join(", ")));
    let permission = if options.read_only {
        "only looks and changes nothing (/readonly off ends that)".to_owned()
    } else {
        permission_line(&tools.policy, options.yes)
    };
    let permitted = format!("It {permission}. /help shows the commands, Esc stops a turn.");
    sources.unread.iter().cloned().chain([upstream, files]).chain(servers).chain([permitted]).collect()
}

fn display_path(path: &Path) -> String {
    path.display().to_string()
}

/// Describes which calls the policy allows, asks about or denies, and the effect of `--yes`.
pub(super) fn permission_line(policy: &PolicyConfig, yes: bool) -> String {
    let default = match (policy.default, yes) {
        (Verdict::Ask, true) => "runs everything without asking (--yes)",
        (Verdict::Ask, false) => "asks before it changes or runs anything",
        (Verdict::Allow, _) => {
            "runs and changes everything without asking ([tools.policy] default = \"allow\")"
        }
        (Verdict::Deny, _) => "may do nothing ([tools.policy] default = \"deny\")",
    };
    if policy.rule.is_empty() {
        return default.to_owned();
    }
    let mut rules: Vec<String> = policy.rule.iter().take(MOST_RULES).map(describe_rule).collect();
    let more = policy.rule.len().saturating_sub(MOST_RULES);
    if more > 0 {
        rules.push(format!("{more} more (respool config show)"));
    }
    format!("{default}, unless a rule decides first: {}", rules.join(", "))
}

/// Says what differs in a directory that holds the home directory.
pub(super) fn home_warning(root: &Path) -> Option<String> {
    holds_home(root).then(|| {
        "Your home directory is in here, with its keys: reading is asked about, too. Better start the chat in a \
         project."
            .to_owned()
    })
}

/// Describes how commands are confined.
pub(super) fn sandbox_line(config: &LocalConfig, level: &Level) -> String {
    let network = match (level, config.network) {
        (Level::Off | Level::Missing(_) | Level::Filter, _) => "",
        (_, Some(false)) => ", without a network",
        _ if reached_services(config).is_some() => ", with the network and the services of this machine",
        _ => ", with the network, but without the services of this machine",
    };
    format!("sandbox of commands: {level}{network}")
}

fn describe_rule(rule: &Rule) -> String {
    let with = |name: &str, pattern: &Option<String>| {
        pattern.as_ref().map(|pattern| format!(" {name} `{pattern}`")).unwrap_or_default()
    };
    format!(
        "{} {}{}{}{}",
        rule.then.as_str(),
        rule.tool.as_deref().unwrap_or("any tool"),
        with("command", &rule.command),
        with("path", &rule.path),
        with("host", &rule.host)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use tools::sandbox_level;

    /// Regression: the banner said that it asks while the policy was `allow`.
    #[test]
    fn the_policy_that_holds_is_told() {
        let check = |toml: &str, yes: bool, expected: &str| {
            let policy: PolicyConfig = toml::from_str(toml).unwrap();
            assert_eq!(permission_line(&policy, yes), expected);
        };
        check("", false, "asks before it changes or runs anything");
        check("", true, "runs everything without asking (--yes)");
        check(
            "default = 'allow'",
            false,
            "runs and changes everything without asking ([tools.policy] default = \"allow\")",
        );
        check("default = 'deny'", true, "may do nothing ([tools.policy] default = \"deny\")");
        check(
            "[[rule]]\ntool = 'exec'\ncommand = 'git *'\nthen = 'allow'\n[[rule]]\nthen = 'deny'",
            false,
            "asks before it changes or runs anything, unless a rule decides first: allow exec command `git *`, deny any tool",
        );
        let many = "[[rule]]\nthen = 'allow'\n".repeat(8);
        let policy: PolicyConfig = toml::from_str(&many).unwrap();
        assert!(permission_line(&policy, false).ends_with("allow any tool, 2 more (respool config show)"));
    }

    #[test]
    fn a_home_is_no_project() {
        let home = std::env::home_dir().unwrap();
        assert!(
            home_warning(&home.canonicalize().unwrap()).is_some() && home_warning(Path::new("/")).is_some()
        );
        assert_eq!(home_warning(&home.join("project")), None);
    }

    #[test]
    fn the_sandbox_is_told() {
        let config = LocalConfig { sandbox: tools::SandboxMode::Off, ..LocalConfig::default() };
        assert_eq!(
            sandbox_line(&config, &sandbox_level(&config)),
            "sandbox of commands: off (tools.local.sandbox)"
        );
        let config = LocalConfig::default();
        assert!(
            sandbox_line(&config, &sandbox_level(&config)).starts_with("sandbox of commands: none: "),
            "without a launcher"
        );
    }

    #[test]
    fn the_rest_of_a_repository_is_named() {
        let place = tempfile::tempdir().unwrap();
        let (top, below) = (place.path(), place.path().join("src"));
        std::fs::create_dir_all(&below).unwrap();
        std::fs::create_dir(top.join(".git")).unwrap();
        assert_eq!(partial_line(top), None);
        assert!(partial_line(&below).unwrap().contains(&format!("begin in {} for", top.display())));
    }

    #[test]
    fn endpoint_and_files_are_told() {
        let sources = Sources { upstreams: vec!["http://a (key: $A)".into()], ..Sources::default() };
        let shown = |sources: &Sources| {
            let tools = toml::from_str("[mcp.files]\nurl = 'http://a'\n[mcp.web]\nurl = 'http://b'").unwrap();
            let options = ChatOptions { read_only: true, ..ChatOptions::default() };
            greeting_lines(sources, Some("AGENTS.md"), &tools, &options).join(" | ")
        };
        let more = " | MCP servers, which are starting: files, web | It only looks and changes \
                    nothing (/readonly off ends that). /help shows the commands, Esc stops a turn.";
        assert_eq!(
            shown(&sources),
            format!(
                "upstream: http://a (key: $A) | settings: defaults, no file · prompt: built in and AGENTS.md{more}"
            )
        );
        let sources = Sources { config: Some("/c".into()), system: Some("/s".into()), ..sources };
        assert_eq!(
            shown(&sources),
            format!("upstream: http://a (key: $A) | settings: /c · prompt: /s and AGENTS.md{more}")
        );
        let sources = Sources { unread: Some("x is not read".into()), ..sources };
        assert!(shown(&sources).starts_with("x is not read | upstream"));
    }
}
