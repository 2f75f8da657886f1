//! What a call of somebody else's tool touches: its arguments are known by their names and their looks alone.
//!
//! Whatever looks like a path or a URL counts, wherever it stands: too much is found rather than too little, so an `allow`
//! fails towards asking.

use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

use super::Subject;
use super::pattern::host_of;

const COMMANDS: [&str; 3] = ["command", "cmd", "script"];
const HOSTS: [&str; 7] = ["url", "urls", "uri", "targeturl", "host", "hostname", "domain"];
const PATHS: [&str; 16] = [
    "path",
    "paths",
    "file",
    "files",
    "filepath",
    "filename",
    "dir",
    "directory",
    "folder",
    "source",
    "src",
    "destination",
    "dest",
    "cwd",
    "workdir",
    "root",
];

/// The subject of a call with these arguments; paths below `workspace` become relative to it.
pub(in crate::tools) fn subject(
    names: Vec<String>,
    arguments: &Map<String, Value>,
    workspace: Option<&Path>,
) -> Subject {
    let mut subject = Subject { names, is_known: true, ..Subject::default() };
    for (key, value) in arguments {
        add(&mut subject, key, value, workspace);
    }
    subject
}

fn add(subject: &mut Subject, key: &str, value: &Value, workspace: Option<&Path>) {
    match value {
        Value::String(text) => add_text(subject, key, text, workspace),
        Value::Array(words) if is_one_of(&COMMANDS, key) => {
            let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
            subject.commands.push(words.join(" "));
        }
        Value::Array(values) => values.iter().for_each(|value| add(subject, key, value, workspace)),
        Value::Object(values) => {
            values.iter().for_each(|(key, value)| add(subject, key, value, workspace));
        }
        _ => {}
    }
}

fn add_text(subject: &mut Subject, key: &str, text: &str, workspace: Option<&Path>) {
    if is_one_of(&COMMANDS, key) {
        subject.commands.push(text.to_owned());
    } else if is_url(text) {
        subject.hosts.push(host_of(text));
    } else if is_one_of(&HOSTS, key) {
        subject.hosts.push(host_of(&format!("http://{text}")));
    } else if is_one_of(&PATHS, key) || looks_like_a_path(text) {
        subject.paths.push(normal(text, workspace));
    }
}

fn is_one_of(known: &[&str], key: &str) -> bool {
    let key: String = key.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect();
    known.contains(&key.as_str())
}

fn is_url(text: &str) -> bool {
    let scheme = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    text.trim_start().split_once("://").is_some_and(|(before, _)| !before.is_empty() && scheme(before))
}

fn looks_like_a_path(text: &str) -> bool {
    let is_line = !text.contains('\n');
    let rooted = ["/", "~", "./", "../"].iter().any(|start| text.starts_with(start)) || text == "..";
    is_line && (rooted || (text.contains('/') && !text.contains(char::is_whitespace)))
}

/// Without `.`, `..` and doubled slashes, as far as words go; relative when below `workspace`.
fn normal(text: &str, workspace: Option<&Path>) -> String {
    let mut out = PathBuf::new();
    for part in Path::new(text).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => match out.components().next_back() {
                Some(Component::Normal(_)) => drop(out.pop()),
                Some(Component::RootDir) => {}
                _ => out.push(".."),
            },
            other => out.push(other),
        }
    }
    let below = workspace.and_then(|root| out.strip_prefix(root).ok()).unwrap_or(&out);
    if below.as_os_str().is_empty() { ".".to_owned() } else { below.display().to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(arguments: Value, commands: &[&str], paths: &[&str], hosts: &[Option<&str>]) {
        let Value::Object(arguments) = arguments else { panic!("an object") };
        let found = subject(vec!["x".into()], &arguments, Some(Path::new("/home/me/project")));
        assert_eq!(found.commands, commands, "{arguments:?}");
        assert_eq!(found.paths, paths, "{arguments:?}");
        assert_eq!(found.hosts.iter().map(Option::as_deref).collect::<Vec<_>>(), hosts, "{arguments:?}");
    }

    #[test]
    fn arguments_are_known_by_name_and_looks() {
        use serde_json::json;
        check(json!({"path": "a/./b/../c"}), &[], &["a/c"], &[]);
        check(json!({"file_path": "/home/me/project/src/a.rs"}), &[], &["src/a.rs"], &[]);
        check(json!({"path": "/home/me/project"}), &[], &["."], &[]);
        check(json!({"path": "src/../../x"}), &[], &["../x"], &[]);
        check(json!({"path": "/../etc//passwd"}), &[], &["/etc/passwd"], &[]);
        check(
            json!({"opts": {"deep": ["see", "/etc/shadow", "~/.ssh/id"]}}),
            &[],
            &["/etc/shadow", "~/.ssh/id"],
            &[],
        );
        check(json!({"content": "one / two\nthree"}), &[], &[], &[]);
        check(json!({"cmd": ["ls", "-l"], "n": 3}), &["ls -l"], &[], &[]);
        check(json!({"url": "https://Docs.Example.ORG./x"}), &[], &[], &[Some("docs.example.org")]);
        check(json!({"url": "docs.example.org/x"}), &[], &[], &[Some("docs.example.org")]);
        check(json!({"anything": "http://bücher.example/"}), &[], &[], &[Some("xn--bcher-kva.example")]);
        check(json!({"url": "https://docs.example.org@evil.example/"}), &[], &[], &[None]);
        check(json!({"url": "https://docs.example.org\\@evil.example/"}), &[], &[], &[None]);
        check(json!({"url": "file:///etc/passwd"}), &[], &[], &[None]);
        check(json!({"url": " https://docs.example.org/"}), &[], &[], &[None]);
        check(json!({"url": "http://0x7f.1/"}), &[], &[], &[Some("127.0.0.1")]);
    }
}
