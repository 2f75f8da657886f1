//! Tables of (file, environment, flags) against settings or problems, and the table of keys against the
//! structs.

mod problems;
mod table;

use std::path::Path;
use std::time::Duration;

use super::*;
use agent::Parser;
use relay::{ReasoningField, RelayConfig};
use server::ServerConfig;
use tools::{ToolsConfig, Verdict};
use upstream::{Address, UpstreamConfig};
use wire::units::{Secret, Size};

/// Resolves a file's text with an environment and the flags `--listen` and `--upstream`.
fn load(file: &str, environment: &[(&str, &str)], flags: [Option<&str>; 2]) -> Result<Loaded, Problems> {
    let pairs = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let home = ("HOME".to_owned(), "/home/u".to_owned());
    let flags = flags.map(|flag| flag.map(str::to_owned));
    let [listen, upstream] = flags;
    let file = FileText { path: Path::new("respool.toml"), text: file };
    resolve(Some(file), &pairs.chain([home]).collect(), &Flags { listen, upstream, ..Flags::default() })
}

fn settings(file: &str, environment: &[(&str, &str)], flags: [Option<&str>; 2]) -> Settings {
    load(file, environment, flags).unwrap_or_else(|problems| panic!("{problems}")).settings
}

fn from_file(file: &str) -> Settings {
    settings(file, &[], [None; 2])
}

#[test]
fn nothing_configured_is_a_working_configuration() {
    let loaded = resolve(None, &Environment::default(), &Flags::default()).unwrap();
    let settings = loaded.settings;
    assert_eq!(settings, Settings::default());
    assert_eq!(settings.server, ServerConfig::default());
    assert_eq!(settings.relay, RelayConfig::default());
    assert_eq!(
        settings.upstreams,
        [UpstreamConfig::with_address("http://127.0.0.1:8000/v1".parse().unwrap())]
    );
    assert_eq!(settings.upstreams[0].name, "127.0.0.1:8000");
    assert_eq!(settings.store.state_dir, Path::new("/var/lib/respool"));
    assert_eq!(from_file("").store.state_dir, Path::new("/home/u/.local/state/respool"));
}

#[test]
fn later_layers_win() {
    let file = "listen = 'a:1'\n[limits]\nheartbeat = '1s'\n";
    let of = |environment: &[(&str, &str)], flags| {
        let server = settings(file, environment, flags).server;
        (server.listen.to_string(), server.limits.heartbeat.as_secs(), server.limits.drain.as_secs())
    };
    let environment = [("RESPOOL__LISTEN", "b:2"), ("RESPOOL__LIMITS__HEARTBEAT", "2s")];
    assert_eq!(of(&[], [None; 2]), ("a:1".into(), 1, 30));
    assert_eq!(of(&environment, [None; 2]), ("b:2".into(), 2, 30));
    assert_eq!(of(&environment, [Some("localhost:0"), None]), ("localhost:0".into(), 2, 30));
}

#[test]
fn every_kind_of_value_can_come_from_the_environment() {
    let file = "[[upstream]]\nurl = \"http://a\"\n[[upstream]]\nurl = \"http://b\"\nweight = 2\n[models.\"gpt-oss-120b\"]\n";
    let environment = [
        ("RESPOOL__KEEP_FIELDS", r#"["a", "b"]"#),
        ("RESPOOL__LIMITS__MAX_REPEATS", "3"),
        ("RESPOOL__LIMITS__MAX_BODY", "1MiB"),
        ("RESPOOL__LOG__CONTENT", "true"),
        ("RESPOOL__LOG__LEVEL", "debug"),
        ("RESPOOL__UPSTREAM__1__API_KEY", "123"),
        ("RESPOOL__UPSTREAM__2__URL", "http://c"),
        ("RESPOOL__MODELS__GPT_OSS_120B__REASONING", "drop"),
        ("RESPOOL__MODELS__FAST", r#"{ target = "gpt-oss-120b" }"#),
        ("RESPOOL__AGENTS__SCOUT__MODEL", "m"),
        ("RESPOOL__AGENTS__SCOUT__TEMPERATURE", "1"),
        ("RESPOOL__TOOLS__TIMEOUTS", r#"{ exec = "2m" }"#),
        ("RESPOOL__TOOLS__POLICY__RULE", r#"[{ tool = "exec", then = "deny" }]"#),
        ("RESPOOL_CONFIG", "not a layer"),
    ];
    let settings = settings(file, &environment, [None; 2]);
    assert_eq!(settings.relay.keep_fields, ["a", "b"]);
    assert_eq!(settings.server.limits.max_repeats, 3);
    assert_eq!(settings.server.limits.max_body, Size::mib(1));
    assert!(settings.log.content);
    assert_eq!(settings.log.level.as_str(), "debug");
    let upstreams: Vec<_> = settings.upstreams.iter().map(|one| (one.name.as_str(), one.weight)).collect();
    assert_eq!(upstreams, [("a", 1), ("b", 2), ("c", 1)]);
    assert_eq!(settings.upstreams[1].api_key, Some(Secret::new("123")));
    assert_eq!(settings.relay.modes_for("fast").reasoning, ReasoningField::Drop);
    assert!((settings.agents["scout"].temperature - 1.0).abs() < f64::EPSILON);
    assert_eq!(settings.tools.timeouts["exec"], Duration::from_mins(2));
    assert_eq!(settings.tools.policy.rule[0].then, Verdict::Deny);
}

#[test]
fn the_upstream_flag_comes_first() {
    let names = |file: &str, url| {
        let settings = settings(file, &[], [None, Some(url)]);
        settings.upstreams.into_iter().map(|upstream| upstream.name).collect::<Vec<_>>()
    };
    let file = "upstream = [{ name = 'one', url = 'http://a' }, { name = 'two', url = 'http://b/v1', api_key = 'k' }]";
    assert_eq!(names("", "http://c"), ["c"]);
    assert_eq!(names("", "replay:some/dir"), ["replay:some/dir"]);
    assert_eq!(names(file, "http://c:1/v1"), ["c:1", "one", "two"]);
    assert_eq!(names(file, "http://b"), ["two", "one"]);
    let key = |file: &str| {
        settings(file, &[("VLLM_API_KEY", "k")], [None, Some("http://b")]).upstreams[0].api_key.clone()
    };
    assert_eq!((key(""), key("upstream = [{ url = 'http://b' }]")), (Some(Secret::new("k")), None));
}

#[test]
fn keys_kept_in_the_environment_are_read() {
    let file = "[[upstream]]\nurl = 'http://a'\napi_key_env = 'K'\n[tools.gateway]\nurl = 'http://g'\ntoken_env = 'T'";
    let settings = settings(file, &[("K", "sk-1\n"), ("T", "t-1")], [None; 2]);
    assert_eq!(settings.upstreams[0].api_key, Some(Secret::new("sk-1")));
    assert_eq!(settings.tools.gateway.token, Some(Secret::new("t-1")));
}

#[test]
fn client_keys_are_known_to_upstreams() {
    let keys = |file: &str, value: &str| {
        let settings = settings(file, &[("K", value)], [None; 2]);
        let ends: Vec<bool> =
            settings.upstreams.iter().map(|upstream| upstream.client_keys_end_here).collect();
        let keys: Vec<_> =
            settings.server.client_keys.iter().map(|key| key.expose_secret().to_owned()).collect();
        (keys, ends)
    };
    let upstreams = "[[upstream]]\nurl = 'http://a'\n[[upstream]]\nurl = 'http://b'\napi_key = 'k'\n";
    let two = || vec!["one".to_owned(), "two".to_owned()];
    assert_eq!(keys(&format!("client_keys = ['one', 'two']\n{upstreams}"), ""), (two(), vec![true; 2]));
    assert_eq!(keys(&format!("client_keys_env = 'K'\n{upstreams}"), "one, two\n"), (two(), vec![true; 2]));
    assert_eq!(keys("client_keys_env = 'K'", "one\ttwo"), (two(), vec![true]));
    assert_eq!(keys(upstreams, "one"), (vec![], vec![false; 2]));
}

#[test]
fn agents_and_tools_have_their_types() {
    let file = r#"
        [agents.scout]
        model = "m"
        parsers = ["native", "harmony", "fuzzy"]
        system_prompt_file = "~/prompt.md"
        [tools.mcp.files]
        command = "npx"
        args = [""]
        env = { A = "" }
        [tools.local]
        workspace = "~/work"
    "#;
    let settings = from_file(file);
    let scout = &settings.agents["scout"];
    assert_eq!(scout.parsers, [Parser::Native, Parser::Dialect("harmony".into()), Parser::Fuzzy]);
    assert_eq!(scout.system_prompt_file.as_deref(), Some(Path::new("/home/u/prompt.md")));
    assert_eq!(settings.tools.local.workspace.as_deref(), Some(Path::new("/home/u/work")));
    assert_eq!(settings.tools.mcp["files"].args, [""]);
}

#[test]
fn names_with_dots_and_slashes_are_names() {
    let settings = from_file("[models.\"org/m-1.5\"]\nreasoning = \"drop\"\n");
    assert_eq!(settings.relay.modes_for("org/m-1.5").reasoning, ReasoningField::Drop);
}

const SHOWN: &str = r#"
listen = "0.0.0.0:80"
client_keys = ["c-1"]
[[upstream]]
url = "https://box.example/v1"
api_key = "sk-1"
[models."a.b"]
target = "c"
[tools.gateway]
url = "http://g"
token = "t-1"
[tools.mcp.files]
url = "http://m"
headers = { Authorization = "Bearer b-1", "X-Key" = "x-1" }
[tools.mcp.more]
command = "run"
env = { SECRET = "e-1" }
"#;

#[test]
fn config_show_is_equivalent_toml_without_secrets() {
    let environment = [("RESPOOL__LIMITS__DRAIN", "1m 5s")];
    let loaded = load(SHOWN, &environment, [None, Some("http://127.0.0.1:9")]).unwrap();
    let shown = loaded.show();
    for line in [
        "# file: respool.toml",
        "listen = \"0.0.0.0:80\"  # respool.toml:2",
        "url = \"http://127.0.0.1:9\"  # --upstream",
        "client_keys = [\"***\"]  # respool.toml:3",
        "api_key = \"***\"  # respool.toml:6",
        "name = \"box.example\"  # default",
        "weight = 1  # default",
        "# timeout is not set: no limit",
        "[models.\"a.b\"]",
        "drain = \"1m 5s\"  # environment RESPOOL__LIMITS__DRAIN",
        "headers = { Authorization = \"***\", X-Key = \"***\" }  # respool.toml:14",
        "state_dir = \"/home/u/.local/state/respool\"  # default",
        "[recovery]",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line} in:\n{shown}");
    }
    for secret in ["c-1", "sk-1", "t-1", "b-1", "x-1", "e-1"] {
        assert!(!shown.contains(secret), "{secret} in:\n{shown}");
    }
    let json: serde_json::Value = serde_json::from_str(&loaded.show_json()).unwrap();
    assert_eq!((&json["file"], &json["settings"]["listen"]), (&"respool.toml".into(), &"0.0.0.0:80".into()));
    assert_eq!(json["settings"]["upstream"][1]["api_key"], "***");
    let mut again = from_file(&shown);
    let mut once = loaded.settings;
    for settings in [&mut again, &mut once] {
        settings.upstreams.iter_mut().for_each(|upstream| upstream.api_key = None);
        settings.tools = ToolsConfig::default();
        settings.server.client_keys = vec![];
    }
    assert_eq!(again, once);
    assert!(matches!(again.upstreams[0].url, Address::Http { .. }));
}

#[test]
fn odd_texts_are_shown_as_toml() {
    let loaded = load("keep_fields = [\"a\\\"\\\\\\n\\u007f\\u00e9\"]", &[], [None; 2]).unwrap();
    assert_eq!(from_file(&loaded.show()).relay.keep_fields, ["a\"\\\n\u{7f}é"]);
}
