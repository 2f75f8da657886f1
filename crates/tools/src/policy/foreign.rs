//! The subject of a call of a foreign tool, whose arguments are known by their names and their form alone.
//!
//! Everything that looks like a path or a URL counts, in any argument: it finds too much rather than too
//! little, so an `allow` fails towards asking. Other text is *unclear* unless its name shows that it is mere
//! text: a rule with patterns does not let it pass.

use std::collections::HashSet;
use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

use super::super::programs::resolve_symlinks;
use super::Subject;
use super::pattern::host_of;

const COMMANDS: [&str; 3] = ["command", "cmd", "script"];
/// Names of the arguments of a command.
const ARGUMENTS: [&str; 4] = ["args", "arguments", "argv", "parameters"];
const HOSTS: [&str; 7] = ["url", "urls", "uri", "targeturl", "host", "hostname", "domain"];
/// Endings of names of paths.
const PATHS: [&str; 16] = [
    "path",
    "paths",
    "file",
    "files",
    "filename",
    "filenames",
    "dir",
    "dirs",
    "directory",
    "directories",
    "folder",
    "folders",
    "cwd",
    "workdir",
    "root",
    "roots",
];
const PLACES: [&str; 4] = ["source", "src", "destination", "dest"];
/// Names of text that a tool stores or compares, and does not use as a place or a program.
const TEXTS: [&str; 11] = [
    "content",
    "contents",
    "text",
    "message",
    "oldtext",
    "newtext",
    "oldstring",
    "newstring",
    "description",
    "title",
    "encoding",
];

/// Returns the subject of a call with these arguments, as the tool's `schema` declares them; paths below
/// `workspace` become relative to it.
pub(crate) fn build_subject(
    names: Vec<String>,
    arguments: &Map<String, Value>,
    schema: &Value,
    workspace: Option<&Path>,
) -> Subject {
    let subject = Subject { names, is_known: true, ..Subject::default() };
    let mut reading = Reading { subject, workspace, declared: HashSet::new(), top: "" };
    collect_names(schema, &mut reading.declared);
    let command = arguments.iter().find(|(key, value)| is_one_of(&COMMANDS, key) && value.is_string());
    let words = arguments.iter().find(|(key, _)| is_one_of(&ARGUMENTS, key));
    let command = command.filter(|_| words.is_some());
    if let (Some((_, Value::String(command))), Some((key, words))) = (command, words) {
        reading.top = key;
        reading.read_command(key, Some(command), words);
    }
    let is_read =
        |key: &String| command.is_some() && [command, words].iter().flatten().any(|(known, _)| *known == key);
    for (key, value) in arguments.iter().filter(|(key, _)| !is_read(key)) {
        if !is_word(key) && !reading.declared.contains(key.as_str()) {
            reading.top = key;
            reading.read_text("", key);
        }
        let one_of = schema["properties"][key.as_str()]["enum"].as_array();
        if !one_of.is_some_and(|values| values.contains(value)) {
            reading.top = key;
            reading.read_value(key, value);
        }
    }
    reading.subject
}

struct Reading<'a> {
    subject: Subject,
    workspace: Option<&'a Path>,
    /// The names of properties that the tool's schema declares, at any depth.
    declared: HashSet<&'a str>,
    /// The argument that is being read.
    top: &'a str,
}

impl Reading<'_> {
    fn read_value(&mut self, key: &str, value: &Value) {
        match value {
            Value::String(text) => self.read_text(key, text),
            Value::Array(_) if is_one_of(&COMMANDS, key) => self.read_command(key, None, value),
            Value::Array(values) => values.iter().for_each(|value| self.read_value(key, value)),
            Value::Object(values) => values.iter().for_each(|(name, value)| {
                self.read_key(key, name, value);
                self.read_value(name, value);
            }),
            // A switch that runs the command in a shell.
            Value::Bool(true) if key.to_ascii_lowercase().contains("shell") => self.note_unclear("true"),
            _ => {}
        }
    }

    /// Reads a program and its arguments as separate words. Only plain words mean the same to every reader.
    fn read_command(&mut self, key: &str, program: Option<&str>, words: &Value) {
        let is_plain = |word: &str| {
            !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c))
        };
        let words: Option<Vec<&str>> =
            words.as_array().and_then(|words| words.iter().map(Value::as_str).collect());
        let is_clear = words.as_ref().is_some_and(|words| words.iter().all(|word| is_plain(word)));
        let all: Vec<&str> = program.into_iter().chain(words.into_iter().flatten()).collect();
        self.subject.commands.push(all.join(" "));
        if !is_clear {
            self.note_unclear(key);
        }
    }

    /// Reads a key of an inner table: a text like its value, unless the schema declares it or it only names
    /// such a text.
    fn read_key(&mut self, key: &str, name: &str, value: &Value) {
        let only_names = is_word(name) && (self.declared.contains(name) || holds_text(value));
        if !only_names || is_path(key) {
            self.read_text(key, name);
        }
    }

    fn read_text(&mut self, key: &str, text: &str) {
        if is_one_of(&COMMANDS, key) {
            self.subject.commands.push(text.to_owned());
        } else if let Some(path) = file_url(text) {
            self.read_path(&path);
        } else if is_url(text) {
            self.subject.hosts.push(host_of(text));
        } else if is_one_of(&HOSTS, key) {
            self.subject.hosts.push(host_of(&format!("http://{text}")));
        } else if is_path(key) || looks_like_a_path(text) {
            self.read_path(text);
        } else if !is_one_of(&TEXTS, key) {
            self.note_unclear(text);
        }
    }

    /// Reads a path, also in decoded form: some readers decode it again.
    fn read_path(&mut self, path: &str) {
        let decoded = percent_encoding::percent_decode_str(path).decode_utf8_lossy();
        self.add_path(path);
        if decoded != path {
            self.add_path(&decoded);
        }
    }

    /// Adds a path, and where it leads if links are on its way.
    fn add_path(&mut self, path: &str) {
        let real = self.workspace.and_then(|workspace| resolve_symlinks(&workspace.join(path)));
        let real = real.filter(|real| !real.links.is_empty());
        self.subject.paths.push(normalize_path(path, self.workspace));
        self.subject
            .paths
            .extend(real.map(|real| normalize_path(&real.real.to_string_lossy(), self.workspace)));
    }

    fn note_unclear(&mut self, text: &str) {
        self.subject.unclear.push((self.top.to_owned(), text.to_owned()));
    }
}

/// Collects the names of the properties that a schema declares.
fn collect_names<'a>(schema: &'a Value, names: &mut HashSet<&'a str>) {
    match schema {
        Value::Object(object) => object.iter().for_each(|(key, value)| {
            if let Some(declared) = value.as_object().filter(|_| key == "properties") {
                names.extend(declared.keys().map(String::as_str));
            }
            collect_names(value, names);
        }),
        Value::Array(values) => values.iter().for_each(|value| collect_names(value, names)),
        _ => {}
    }
}

/// Returns true for a key that can only be a name.
fn is_word(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-')
}

/// Returns true if the value contains text that is judged itself.
fn holds_text(value: &Value) -> bool {
    match value {
        Value::String(_) => true,
        Value::Array(values) => values.iter().any(holds_text),
        Value::Object(values) => !values.is_empty(),
        _ => false,
    }
}

fn plain_key(key: &str) -> String {
    key.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

fn is_one_of(known: &[&str], key: &str) -> bool {
    known.contains(&plain_key(key).as_str())
}

fn is_path(key: &str) -> bool {
    let key = plain_key(key);
    PLACES.contains(&key.as_str()) || PATHS.iter().any(|ending| key.ends_with(ending))
}

/// Returns the path of a `file:` URL of this machine.
fn file_url(text: &str) -> Option<String> {
    let url = url::Url::parse(text).ok().filter(|url| url.scheme() == "file")?;
    Some(url.to_file_path().ok()?.display().to_string())
}

fn is_url(text: &str) -> bool {
    let scheme = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    text.trim_start().split_once("://").is_some_and(|(before, _)| !before.is_empty() && scheme(before))
}

fn looks_like_a_path(text: &str) -> bool {
    let is_line = !text.contains('\n');
    let rooted = ["/", "~", "./", "../"].iter().any(|start| text.starts_with(start)) || text == "..";
    let has_drive = text.starts_with("\\\\")
        || matches!(text.as_bytes(), [drive, b':', b'\\', ..] if drive.is_ascii_alphabetic());
    is_line && (rooted || has_drive || (text.contains('/') && !text.contains(char::is_whitespace)))
}

/// Removes `.`, `..` and doubled slashes from the text of a path; relative if below `workspace`.
fn normalize_path(text: &str, workspace: Option<&Path>) -> String {
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
        let schema = serde_json::json!({"properties": {"mode": {"enum": ["fast", "slow"]}}});
        let found = build_subject(vec!["x".into()], &arguments, &schema, Some(Path::new("/home/me/project")));
        assert_eq!(found.commands, commands, "{arguments:?}");
        let sorted = |mut paths: Vec<String>| {
            paths.sort();
            paths
        };
        let expected = paths.iter().copied().map(str::to_owned).collect();
        assert_eq!(sorted(found.paths), sorted(expected), "{arguments:?}");
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
        check(json!({"url": "file:///etc/passwd"}), &[], &["/etc/passwd"], &[]);
        check(json!({"uri": "file:///home/me/project/src/../x"}), &[], &["x"], &[]);
        check(json!({"uri": "file://other/etc/passwd"}), &[], &[], &[None]);
        check(json!({"url": " https://docs.example.org/"}), &[], &[], &[None]);
        check(json!({"url": "http://0x7f.1/"}), &[], &[], &[Some("127.0.0.1")]);
        check(json!({"path": "src/%2e%2e/%2e%2e/x"}), &[], &["src/%2e%2e/%2e%2e/x", "../x"], &[]);
        check(json!({"content": "C:\\x"}), &[], &["C:\\x"], &[]);
        let key = json!({"path": "src/a", "/home/eve/.ssh/authorized_keys": {"text": "ssh-ed25519 AAAA"}});
        check(key, &[], &["/home/eve/.ssh/authorized_keys", "src/a"], &[]);
        check(json!({"file:///etc/passwd": "src/a"}), &[], &["/etc/passwd", "src/a"], &[]);
    }

    /// Regression: a command's link led a tool that may write `src/**` to `.git`.
    #[test]
    fn paths_have_both_names() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("src")).unwrap();
        std::os::unix::fs::symlink("../.git", root.join("src/g")).unwrap();
        let find = |path: &str| {
            let arguments = Map::from_iter([("path".to_owned(), path.into())]);
            build_subject(vec![], &arguments, &Value::Null, Some(&root)).paths
        };
        assert_eq!(find("src/g/config"), ["src/g/config", ".git/config"]);
        assert_eq!(find(root.join("src/g").to_str().unwrap()), ["src/g", ".git"]);
        assert_eq!(find("src/new"), ["src/new"]);
    }

    #[test]
    fn every_text_is_accounted_for() {
        use serde_json::json;
        let unclear = |arguments: Value| {
            let Value::Object(arguments) = arguments else { panic!("an object") };
            let schema = json!({"properties": {"mode": {"enum": ["fast", "slow"]}}});
            let found = build_subject(vec![], &arguments, &schema, None);
            found.unclear.into_iter().map(|(name, text)| format!("{name}={text}")).collect::<Vec<_>>()
        };
        let none: [&str; 0] = [];
        assert_eq!(unclear(json!({"path": "a", "content": "x y", "n": 1, "on": true, "none": null})), none);
        assert_eq!(unclear(json!({"mode": "fast", "output_path": "secret", "newText": "x"})), none);
        assert_eq!(unclear(json!({"mode": "other"})), ["mode=other"]);
        assert_eq!(unclear(json!({"to": "secret", "opts": {"also": ["x"]}})), ["to=secret", "opts=x"]);
        assert_eq!(unclear(json!({"command": "git", "args": ["status"]})), none);
        assert_eq!(unclear(json!({"command": "git", "args": ["a; rm b"]})), ["args=args"]);
        assert_eq!(unclear(json!({"command": "git", "args": "status"})), ["args=args"]);
        assert_eq!(
            unclear(json!({"command": "git status", "env": {"GIT_SSH_COMMAND=touch x": 1}})),
            ["env=GIT_SSH_COMMAND=touch x"]
        );
        assert_eq!(unclear(json!({"env": {"GIT_TRACE": 1, "mode": 2}})), ["env=GIT_TRACE"]);
        assert_eq!(unclear(json!({"rm -rf x": null})), ["rm -rf x=rm -rf x"]);
        assert_eq!(unclear(json!({"command": ["git", 1]})), ["command=command"]);
        assert_eq!(unclear(json!({"command": "git", "shell": true})), ["shell=true"]);
        assert_eq!(unclear(json!({"command": "git", "stdin": "x", "env": {"A": "b"}})), ["stdin=x", "env=b"]);
    }

    #[test]
    fn a_command_and_its_arguments_are_one() {
        use serde_json::json;
        check(json!({"command": "git", "args": ["push", "-f"]}), &["git push -f"], &[], &[]);
        check(json!({"files": {"a/../b": "x"}}), &[], &["b"], &[]);
    }
}
