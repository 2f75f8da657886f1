//! The table of keys against the structs, the page and the example file.

use super::*;
use crate::page::page;
use crate::tree::Table;
use tools::never_allowed;

/// Other keys that a key's section needs.
fn companions(key: &Key) -> &'static str {
    match (key.section_path(), key.name()) {
        ("upstream[]", name) if name != "url" => "url = 'http://a'\n",
        ("agents.<NAME>", name) if name != "model" => "model = 'm'\n",
        ("tools.policy.rule[]", name) if name != "then" => "then = 'deny'\n",
        ("alerts.sink[]", "url") => "type = 'webhook'\n",
        ("alerts.sink[]", name) if name != "type" => "type = 'webhook'\nurl = 'http://a'\n",
        ("tools.gateway", name) if name != "url" => "url = 'http://a'\n",
        ("tools.mcp.<NAME>", "args" | "env") => "command = 'c'\n",
        ("tools.mcp.<NAME>", "headers") | ("alerts.sink[]", "type") => "url = 'http://a'\n",
        _ => "",
    }
}

/// A file that sets one key to its example.
fn with_example(key: &Key) -> String {
    let table = match key.section_path() {
        "" => String::new(),
        section => match section.strip_suffix("[]") {
            Some(list) => format!("[[{list}]]\n"),
            None => format!("[{}]\n", section.replace("<ID>", "x").replace("<NAME>", "x")),
        },
    };
    let elsewhere = match key.section_path() {
        "agents.<NAME>" | "experts" | "experts.<NAME>" => {
            "[[upstream]]\nname = 'box'\nurl = 'http://a'\n[tools.mcp.files]\ncommand = 'c'\n"
        }
        _ => "",
    };
    format!("{elsewhere}{table}{}{} = {}\n", companions(key), key.name(), key.example)
}

const VARIABLES: [(&str, &str); 7] = [
    ("NTFY_TOKEN", "n"),
    ("OTLP_HEADERS", "x-team=one"),
    ("OPENCLAW_GATEWAY_TOKEN", "t"),
    ("VLLM_API_KEY", "k"),
    ("RESPOOL_CLIENT_KEYS", "a b"),
    ("RESPOOL_OPERATOR_KEYS", "c"),
    ("MAIL_HOOK_SECRET", "a secret of the hook"),
];

#[test]
fn every_keys_example_is_accepted() {
    for key in KEYS.iter() {
        let file = with_example(key);
        let loaded =
            load(&file, &VARIABLES, [None; 2]).unwrap_or_else(|problems| panic!("{file}\n{problems}"));
        assert!(holds(&loaded.tree, &key.path), "{}", key.path);
    }
}

/// True when the tree has a value at a path of the table of keys, under any name and in any entry of a list.
fn holds(table: &Table, path: &str) -> bool {
    let Some((head, rest)) = path.split_once('.') else { return table.contains_key(path) };
    let below = |value: &::config::Value, rest: &str| match &value.kind {
        ::config::ValueKind::Table(table) => holds(table, rest),
        _ => false,
    };
    match (head.strip_suffix("[]"), head.starts_with('<')) {
        (Some(list), _) => match table.get(list).map(|list| &list.kind) {
            Some(::config::ValueKind::Array(list)) => list.iter().any(|entry| below(entry, rest)),
            _ => false,
        },
        (None, true) => table.values().any(|entry| below(entry, rest)),
        (None, false) => table.get(head).is_some_and(|entry| below(entry, rest)),
    }
}

#[test]
fn defaults_of_table_and_structs_are_equal() {
    let required = "[[upstream]]\nurl = 'http://a'\n[agents.x]\nmodel = 'm'\n[tools.mcp.x]\ncommand = 'c'\n[experts.x]\n";
    let shown = load(required, &[], [None; 2]).unwrap().show();
    assert!(
        shown.contains("weight = 1  # default") && shown.contains("max_tokens = 1000  # default"),
        "{shown}"
    );
    assert_eq!(from_file(&shown), from_file(required));
}

/// Compares a generated file with what is generated now.
fn check_generated(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(written, text, "generate {file} again: UPDATE_DOCS=1 cargo test -p settings");
}

#[test]
fn the_page_is_current() {
    check_generated("docs/configuration.md", &page());
}

#[test]
fn the_example_is_current() {
    check_generated("respool.example.toml", &example());
}

/// The example with the lines in force that are commented out as `#key = …`; prose begins with `# `.
fn uncommented() -> String {
    let line = |line: &str| match line.strip_prefix('#') {
        Some(rest) if !rest.starts_with(' ') => rest.to_owned(),
        _ => line.to_owned(),
    };
    example().lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_example_is_valid_and_says_the_defaults() {
    assert_eq!(from_file(&example()), from_file(""));
}

#[test]
fn the_example_is_valid_and_complete() {
    let loaded = load(&uncommented(), &VARIABLES, [None; 2]).unwrap_or_else(|problems| panic!("{problems}"));
    let missing: Vec<_> =
        KEYS.iter().map(|key| key.path.as_str()).filter(|path| !holds(&loaded.tree, path)).collect();
    let excluded = ["client_keys", "upstream[].api_key", "alerts.sink[].token", "tools.gateway.token"];
    assert_eq!(
        missing, excluded,
        "the example lacks these keys; only those may be missing that exclude others which it shows"
    );
    let Settings { agents, tools, .. } = loaded.settings;
    for (name, agent) in agents {
        assert!(agent.tools.len() > 3, "{name} has tools of each kind");
        assert_eq!(
            never_allowed(&tools.policy, &agent.tools),
            [""; 0],
            "the rules of the example cover {name}"
        );
    }
}
