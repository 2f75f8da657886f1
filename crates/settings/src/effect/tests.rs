//! A changed configuration, key by key.

use super::*;
use crate::keys::KEYS;
use crate::{Environment, FileText, Flags, resolve};

fn load(text: &str) -> Loaded {
    let environment: Environment = [("VLLM_KEY", "sk-of-the-environment"), ("KEYS", "sk-0123456789abcdef")]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into();
    let file = FileText { path: "respool.toml".as_ref(), text };
    resolve(Some(file), &environment, &Flags::default())
        .unwrap_or_else(|problems| panic!("{problems}\n{text}"))
}

/// Which of the settings of `after` take effect at once where `before` was in effect, and which wait.
fn change(before: &str, after: &str) -> Change {
    let start = load(before);
    load(after).change(&start, &start, &start.settings)
}

#[test]
fn what_loosens_anything_waits_for_a_restart() {
    let check = |before: &str, after: &str, expected: &[&str]| {
        let change = change(before, after);
        assert_eq!(change.waiting, expected, "{before} -> {after}");
    };
    check("", "[budgets]\nday = 1.0\n[limits]\nmax_repeats = 3", &[]);
    check("", "[tools.local]\nsandbox = \"off\"", &["tools.local.sandbox"]);
    check("", "allow_unauthenticated = true", &["allow_unauthenticated"]);
    check(
        "",
        "allow_admin_routes = true\ntrusted_hosts = [\"a.example\"]",
        &["allow_admin_routes", "trusted_hosts"],
    );
    check("", "operator_keys_env = \"KEYS\"", &["operator_keys_env"]);
    check("", "listen = \"127.0.0.1:9\"\n[log]\ncontent = true", &["listen", "log.content"]);
    check("", "client_keys = [\"sk-a\"]", &[]);
    check("client_keys = [\"sk-a\", \"sk-b\"]", "client_keys = [\"sk-b\"]", &[]);
    check("client_keys = [\"sk-a\"]", "", &["client_keys (removing the last one would open the server)"]);
    let url = |more: &str| format!("[[upstream]]\nname = \"box\"\nurl = \"http://127.0.0.1:9\"\n{more}");
    check(&url(""), "[[upstream]]\nname = \"other\"\nurl = \"http://127.0.0.1:10\"", &[]);
    check(&url(""), &url("api_key = \"sk-x\""), &[]);
    let key = "api_key_env = \"VLLM_KEY\"\n";
    check(&url(""), &url(key), &["upstream (`box` would get a key of the environment)"]);
    check(&url(key), &url(&format!("{key}weight = 3")), &[]);
    check(
        &url(key),
        &url(key).replace(":9", ":10"),
        &["upstream (`box` would get a key of the environment)"],
    );
    check(
        &url(""),
        "[[upstream]]\nname = \"box\"\nurl = \"replay:fixtures\"",
        &["upstream (`box` is a new replay)"],
    );
    check(
        &format!("[experts]\nmodel = \"m\"\nupstream = \"box\"\n{}", url("")),
        "[experts]\nmodel = \"m\"\n[[upstream]]\nname = \"b\"\nurl = \"http://127.0.0.1:9\"",
        &["experts.upstream", "upstream (experts still ask `box`)"],
    );
    let sink = |more: &str| format!("[[alerts.sink]]\n{more}");
    check("", &sink("type = \"webhook\"\nurl = \"http://127.0.0.1:9\""), &[]);
    check(
        "",
        &sink("type = \"command\"\nprogram = [\"sh\"]"),
        &["alerts.sink (a new one of type `command`)"],
    );
    let ntfy = |port: u16| {
        sink(&format!("type = \"ntfy\"\nurl = \"http://127.0.0.1:{port}\"\ntoken_env = \"KEYS\""))
    };
    check(&ntfy(9), &ntfy(10), &["alerts.sink (a new one of type `ntfy`)"]);
    check(&ntfy(9), &format!("{}\n[alerts]\nrepeat = \"1h\"", ntfy(9)), &[]);
}

#[test]
fn reloaded_agents_gain_no_tools() {
    let helper = |tools: &str, more: &str| {
        format!("[tools.local]\nworkspace = \"/\"\n[agents.helper]\nmodel = \"m\"\ntools = [{tools}]\n{more}")
    };
    let (few, many) = (helper("\"read\"", ""), helper("\"read\", \"exec\"", ""));
    let found = change(&few, &many);
    assert_eq!(found.settings.agents["helper"].tools, ["read"]);
    assert_eq!(found.waiting, ["agents.helper.tools (those that it did not have)"]);
    let found = change(&many, &few);
    assert_eq!(
        (&found.settings.agents["helper"].tools[..], found.waiting.len()),
        (&["read".to_owned()][..], 0)
    );
    // The way back needs a restart too: it is not known who wrote the file.
    let start = load(&many);
    let back = load(&many).change(&start, &load(&few), &found.settings);
    assert_eq!(back.settings.agents["helper"].tools, ["read"]);
    let found = change(&few, &helper("\"read\"", "max_iterations = 9\n[agents.plain]\nmodel = \"m\""));
    assert_eq!(found.settings.agents["helper"].max_iterations, 9);
    assert!(found.settings.agents.contains_key("plain") && found.waiting.is_empty());
    let found = change(&few, &helper("\"read\"", "[agents.new]\nmodel = \"m\"\ntools = [\"exec\"]"));
    assert!(!found.settings.agents.contains_key("new"));
    assert_eq!(found.waiting, ["agents.new (a new agent with tools or a prompt file)"]);
    let found = change(&few, &helper("\"read\"", "system_prompt_file = \"/etc/shadow\""));
    assert_eq!(found.settings.agents["helper"].system_prompt_file, None);
    assert_eq!(found.waiting, ["agents.helper.system_prompt_file"]);
    assert!(change(&few, "[tools.local]\nworkspace = \"/\"").settings.agents.is_empty(), "an agent can go");
}

#[test]
fn keys_once_needed_stay_needed_until_a_restart() {
    let start = load("");
    let with_keys = load("client_keys = [\"sk-a\"]");
    let first = with_keys.change(&start, &start, &start.settings);
    assert!(first.settings.server.asks_for_keys() && first.live == ["client_keys"]);
    let second = load("").change(&start, &with_keys, &first.settings);
    assert!(second.settings.server.asks_for_keys(), "{:?}", second.waiting);
    assert!(second.settings.upstreams[0].client_keys_end_here, "keys of respool do not go upstream");
    assert!(first.settings.upstreams[0].client_keys_end_here);
    assert_eq!(second.waiting.len(), 1);
}

/// Regression: a misspelt model could be corrected only by a restart, which nothing said.
#[test]
fn another_model_of_experts_takes_effect() {
    let (none, first) = (load(""), load("[experts]\nmodel = 'a'\n"));
    let second = load("[experts]\nmodel = 'b'\n").change(&first, &first, &first.settings);
    assert_eq!((second.settings.experts.model.as_deref(), second.waiting.len()), (Some("b"), 0));
    let begun = first.change(&none, &none, &none.settings);
    assert_eq!(begun.waiting, ["experts.model (whether experts run at all)"]);
    assert_eq!(begun.settings.experts.model, None);
}

/// A key that is in no table below would be forgotten by both.
#[test]
fn every_key_takes_effect_or_needs_a_restart() {
    let known: Vec<&str> = AT_ONCE.iter().copied().chain(IN_PART.iter().map(|(path, _)| *path)).collect();
    for path in known {
        assert!(KEYS.iter().any(|key| is_below(&plain(&key.path), path)), "{path} is not a key");
    }
    assert!(IN_PART.iter().all(|(path, _)| is_at_once(path)));
    let check = |path: &str, expected: bool| assert_eq!(is_at_once(path), expected, "{path}");
    check("upstream[0].url", true);
    check("upstream", true);
    check("client_keys_file", false);
    check("client_keys", true);
    check("tools.policy.rule[1].then", true);
    check("tools.local.sandbox", false);
    check("usage.keep", false);
    check("usage.compare", true);
    check("agents.\"a.b\".tools", true);
}

fn plain(path: &str) -> String {
    path.replace("[]", "")
}

/// Each key that takes effect at once is taken from the new settings, and no other one is.
#[test]
fn what_the_table_says_is_what_happens() {
    for key in KEYS.iter().filter(|key| !key.example.is_empty() && !key.path.contains(['<', '['])) {
        // The first model of experts needs a restart.
        let has_model = key.path == "experts.model";
        let start = load(if has_model { "[experts]\nmodel = 'another'\n" } else { "" });
        let (section, name) = key.path.rsplit_once('.').unwrap_or(("", &key.path));
        let header = if section.is_empty() { String::new() } else { format!("[{section}]\n") };
        let text = format!("{header}{name} = {}", changed(&key.path, &key.example));
        let environment: Environment = Environment::new();
        let file = FileText { path: "respool.toml".as_ref(), text: &text };
        // Some need others too; those are tested by hand above.
        let Ok(new) = resolve(Some(file), &environment, &Flags::default()) else { continue };
        if new.changed_keys(&start).is_empty() {
            continue;
        }
        let change = new.change(&start, &start, &start.settings);
        let took_effect = change.settings != start.settings;
        assert_eq!(took_effect, is_at_once(&key.path), "{text}");
        assert_eq!(change.waiting.is_empty(), is_at_once(&key.path), "{text}: {:?}", change.waiting);
    }
}

/// Another value than the default, where the example is the default.
fn changed(path: &str, example: &str) -> String {
    match path {
        _ if example == "true" => "false".to_owned(),
        _ if example == "false" => "true".to_owned(),
        "tools_mode" => "\"live\"".to_owned(),
        "tool_parsing" => "\"raw\"".to_owned(),
        "reasoning" => "\"drop\"".to_owned(),
        "recovery.final_errors" => "\"plain\"".to_owned(),
        "context.on_overflow" => "\"trim\"".to_owned(),
        "tools.policy.default" => "\"deny\"".to_owned(),
        "listen" => "\"127.0.0.1:9\"".to_owned(),
        _ => match example.parse::<u64>() {
            Ok(number) => (number + 1).to_string(),
            Err(_) => example.replace(|c: char| c.is_ascii_digit(), "7"),
        },
    }
}
