//! `respool alerts`: shows the alerts that a server has found, tests the sinks, and silences rules. Reads and
//! writes the state directory, also while a server uses it.

use std::io;
use std::path::Path;
use std::time::Duration;

use clap::Subcommand;
use serde_json::Value;

use super::failure::Failure;
use super::listing::{ListArgs, Noun, parse_span};
use super::running::{find_listener, is_answering, warn_of_unkept_records};
use super::runtime::new_runtime;
use super::say::{flat_text, say, say_on_stderr};
use alerts::{Alerts, AlertsConfig, OpenAlert, Rule, Silence, Silences, read_open};
use settings::{Loaded, Settings};
use store::{Store, StoreConfig};

#[derive(Debug, Subcommand)]
pub(super) enum AlertsCommand {
    /// List open alerts.
    #[command(after_help = "Example:\n  respool alerts list --json")]
    List(ListArgs),
    /// Send a test message to every sink, and report each result.
    #[command(after_help = "Example:\n  respool alerts test")]
    Test,
    /// Silence an alert for a while.
    #[command(after_help = "Example:\n  respool alerts silence upstream_down --subject gpu-box --for 8h")]
    Silence {
        /// The rule, as `list` shows it
        #[arg(value_parser = parse_rule)]
        rule: Rule,
        /// Only alerts about this subject, as `list` shows it [default: all alerts of the rule]
        #[arg(long, default_value = "", hide_default_value = true)]
        subject: String,
        /// For how long
        #[arg(long = "for", default_value = "8h", value_name = "TIME", value_parser = parse_span)]
        span: Duration,
    },
    /// End the silences that cover an alert, before their time.
    #[command(after_help = "Example:\n  respool alerts unsilence upstream_down --subject gpu-box")]
    Unsilence {
        /// The rule, as `list` shows it
        #[arg(value_parser = parse_rule)]
        rule: Rule,
        /// Only silences that cover alerts about this subject [default: all silences of the rule]
        #[arg(long)]
        subject: Option<String>,
    },
}

impl AlertsCommand {
    /// Returns true if it only shows what is recorded.
    pub(super) fn only_reads(&self) -> bool {
        matches!(self, Self::List(_))
    }
}

impl Default for AlertsCommand {
    fn default() -> Self {
        Self::List(ListArgs::default())
    }
}

pub(super) fn run_alerts(loaded: &Loaded, command: AlertsCommand) -> Result<(), Failure> {
    match command {
        AlertsCommand::List(arguments) => list_alerts(loaded, &arguments),
        AlertsCommand::Test => test_sinks(loaded),
        AlertsCommand::Silence { rule, subject, span } => silence_rule(loaded, rule, subject, span),
        AlertsCommand::Unsilence { rule, subject } => end_silence(loaded, rule, subject.as_deref()),
    }
}

/// Returns `[alerts]`, with a link to the page at the listen address unless another link is configured.
pub(super) fn alerts_config(settings: &Settings) -> AlertsConfig {
    let mut config = settings.alerts.clone();
    if config.link.is_none() {
        config.link = page_address(&settings.server.listen.to_string());
    }
    config
}

/// Returns the URL of the page; `None` if the system chooses the port or this machine has no name.
fn page_address(listen: &str) -> Option<String> {
    let (host, port) = listen.rsplit_once(':').filter(|(_, port)| *port != "0")?;
    let host = match host {
        // It listens on all addresses of this machine.
        "0.0.0.0" | "[::]" => nix::unistd::gethostname().ok()?.into_string().ok()?,
        host => host.to_owned(),
    };
    Some(format!("http://{host}:{port}"))
}

fn list_alerts(loaded: &Loaded, arguments: &ListArgs) -> Result<(), Failure> {
    new_runtime()?.block_on(warn_of_unkept_records(&loaded.settings));
    let dir = &loaded.settings.store.state_dir;
    let listen = find_listener(&loaded.settings);
    let Some(open) = read_open(dir, clock::now()) else {
        if is_answering(&listen) && dir.exists() {
            let what = format!(
                "The respool that runs at {listen} has not written its alerts to {}: its page shows them.",
                dir.display()
            );
            return Err(what.into());
        }
        let what =
            format!("No alerts have been recorded in {} yet. `respool serve` records them.", dir.display());
        say_on_stderr(&what);
        return Ok(());
    };
    arguments.print_rows(
        open,
        Noun("open alert", "open alerts"),
        |alert| alert.since,
        alert_json,
        alert_line,
    );
    note_own_node(loaded);
    if let Err(error) = tempfile::NamedTempFile::new_in(dir) {
        say_on_stderr(&format!(
            "respool: warning: {} cannot be written ({error}), so this list may be an old one: the page shows the alerts of now.",
            dir.display()
        ));
    }
    if !is_answering(&listen) {
        say_on_stderr(&format!("No respool answers at {listen}: these alerts are those of before it ended."));
    }
    Ok(())
}

/// Returns an alert as JSON, with its times as other lists have them.
fn alert_json(alert: &OpenAlert) -> Value {
    let mut shown = serde_json::to_value(alert).unwrap_or_default();
    for name in ["since", "silenced_until"] {
        if let Some(time) = shown[name].as_u64() {
            shown[name] = clock::format_time(time).into();
        }
    }
    shown["severity"] = severity_of(alert).into();
    if let Some(rule) = Rule::from_name(&alert.rule) {
        (shown["meaning"], shown["todo"]) = (rule.meaning().into(), rule.todo().into());
    }
    shown
}

fn severity_of(alert: &OpenAlert) -> &'static str {
    Rule::from_name(&alert.rule).map_or("", |rule| rule.severity().as_str())
}

fn alert_line(alert: &OpenAlert) -> String {
    let since = clock::format_time(alert.since);
    let until = alert.silenced_until.map(clock::format_time);
    let silenced = until.map(|until| format!("  (silenced until {until})")).unwrap_or_default();
    let todo = Rule::from_name(&alert.rule).map_or("", Rule::todo);
    let severity = severity_of(alert);
    format!("{since}  {severity:<8}  {}  {}  {} {todo}{silenced}", alert.rule, alert.subject, alert.what)
}

fn test_sinks(loaded: &Loaded) -> Result<(), Failure> {
    let config = &alerts_config(&loaded.settings);
    if config.sink.is_empty() {
        return Err("no sink is configured: add [[alerts.sink]] to respool.toml (docs/operating.md)"
            .to_owned()
            .into());
    }
    let sent = new_runtime()?.block_on(Alerts::test_sinks(config));
    for (sink, result) in &sent {
        match result {
            Ok(()) => say(&flat_text(&format!("{sink}: delivered"))),
            Err(why) => say(&flat_text(&format!("{sink}: not delivered: {why}"))),
        }
    }
    if sent.iter().all(|(_, result)| result.is_ok()) { Ok(()) } else { Err(Failure::Reported) }
}

/// Reads the name of a rule.
fn parse_rule(name: &str) -> Result<Rule, Failure> {
    let known = || Rule::ALL.iter().map(|rule| rule.as_str()).collect::<Vec<_>>().join(", ");
    Rule::from_name(name)
        .ok_or_else(|| format!("there is no rule `{name}`. Available rules: {}", known()).into())
}

fn silence_rule(loaded: &Loaded, rule: Rule, subject: String, span: Duration) -> Result<(), Failure> {
    check_silence(loaded, rule, &subject, span)?;
    let now = clock::now();
    let silence = Silence {
        rule: rule.as_str().to_owned(),
        subject,
        until: now.saturating_add(clock::to_millis(span)),
    };
    let (until, subject) = (clock::format_time(silence.until), silence.subject.clone());
    change_silences(&loaded.settings.store, |dir| Silences::add(dir, silence, now))?;
    let about = if subject.is_empty() { String::new() } else { format!(" about {subject}") };
    say(&flat_text(&format!("Silenced {}{about} until {until}.", rule.as_str())));
    Ok(())
}

/// Changes the silences in the state directory and, where nodes share a database, those of all nodes.
fn change_silences<T>(
    config: &StoreConfig,
    change: impl FnOnce(&Path) -> io::Result<T>,
) -> Result<T, Failure> {
    let dir = &config.state_dir;
    let unsaved = |error: io::Error| format!("the silences cannot be saved in {}: {error}", dir.display());
    std::fs::create_dir_all(dir).map_err(unsaved)?;
    if config.store.url.is_none() {
        return Ok(change(dir).map_err(unsaved)?);
    }
    let runtime = new_runtime()?;
    let opened = Store::open_in_place(config);
    let shared = opened.and_then(|store| Ok((runtime.block_on(store.silences())?, store)));
    let store = match shared {
        Ok((list, store)) => {
            list.map_or(Ok(()), |list| Silences::replace(dir, &list)).map_err(unsaved)?;
            Some(store)
        }
        Err(error) => {
            say_on_stderr(&format!("This holds on this node alone: {error}"));
            None
        }
    };
    let changed = change(dir).map_err(unsaved)?;
    if let Some(store) = store {
        runtime.block_on(store.set_silences(Silences::read_text(dir)))?;
    }
    Ok(changed)
}

/// Says that other nodes have alerts of their own, where several share a database.
fn note_own_node(loaded: &Loaded) {
    let StoreConfig { state_dir, store, .. } = &loaded.settings.store;
    if store.url.is_some() {
        say_on_stderr(&format!(
            "This is about the node with the `state_dir` {}: each node lists its own alerts.",
            state_dir.display()
        ));
    }
}

/// Refuses a silence that can never cover an alert.
fn check_silence(loaded: &Loaded, rule: Rule, subject: &str, span: Duration) -> Result<(), Failure> {
    if span.is_zero() {
        return Err(
            "a silence of no time has no effect: write `--for 8h`, or `respool alerts unsilence` to end one"
                .into(),
        );
    }
    let names: Vec<&str> = loaded.settings.upstreams.iter().map(|upstream| upstream.name.as_str()).collect();
    if rule.is_about_upstream() && !subject.is_empty() && !names.contains(&subject) {
        return Err(
            format!("there is no upstream `{subject}`. Available upstreams: {}", names.join(", ")).into()
        );
    }
    Ok(())
}

fn end_silence(loaded: &Loaded, rule: Rule, subject: Option<&str>) -> Result<(), Failure> {
    let end = |dir: &Path| Silences::end(dir, rule, subject, clock::now());
    let ended = change_silences(&loaded.settings.store, end)?;
    say(&match ended {
        0 => format!("No silence of {} was in effect.", rule.as_str()),
        count => format!("Ended {} of {}.", Noun("silence", "silences").count_things(count), rule.as_str()),
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_out() {
        let read =
            r#"{"rule":"error_rate","subject":"","what":"x","since":1795223698000,"is_silenced":false}"#;
        let shown = alert_json(&serde_json::from_str(read).unwrap());
        assert_eq!((&shown["since"], shown.get("silenced_until")), (&"2026-11-21T01:14:58Z".into(), None));
        assert_eq!(shown["todo"], Rule::ErrorRate.todo());
    }

    #[test]
    fn the_page_is_where_the_server_listens() {
        let check = |listen, expected: Option<&str>| assert_eq!(page_address(listen).as_deref(), expected);
        check("127.0.0.1:8003", Some("http://127.0.0.1:8003"));
        check("[::1]:8003", Some("http://[::1]:8003"));
        check("box.lan:80", Some("http://box.lan:80"));
        check("127.0.0.1:0", None);
        let named = page_address("0.0.0.0:8003").unwrap();
        assert!(named.ends_with(":8003") && !named.contains("0.0.0.0"), "{named}");
    }
}
