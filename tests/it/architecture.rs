//! The invariants of ARCHITECTURE.md that a reader of the sources can check: purity, file sizes, circles.
//! Cargo keeps the direction of the arrows between crates, and each manifest names the foreign crates that
//! its crate may use.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Crates without async, I/O crates, clocks or randomness.
const PURE: [&str; 3] = ["tool_call_parser", "wire", "translate"];

/// So do these files, and folders, of modules that are not pure as a whole.
const PURE_FILES: [&str; 80] = [
    "upstream/balance.rs",
    "upstream/circuit.rs",
    "upstream/priority.rs",
    "upstream/queue.rs",
    "relay/adaptation.rs",
    "relay/decide.rs",
    "server/final_error.rs",
    "upstream/conversation.rs",
    "agent/activity.rs",
    "agent/approval.rs",
    "agent/budget.rs",
    "agent/call.rs",
    "agent/context.rs",
    "agent/correction.rs",
    "agent/event.rs",
    "agent/failure.rs",
    "agent/neutralize.rs",
    "agent/new_setup.rs",
    "agent/outcome.rs",
    "agent/progress.rs",
    "agent/prompt.rs",
    "agent/reading.rs",
    "agent/request.rs",
    "agent/setup.rs",
    "agent/step.rs",
    "agent/transcript.rs",
    "agent/weights.rs",
    "agent/run.rs",
    "agent/run_snapshot.rs",
    "agent/run/",
    "openexperts/bindings.rs",
    "openexperts/check.rs",
    "openexperts/cron.rs",
    "openexperts/component.rs",
    "experts/config.rs",
    "openexperts/diagnostic.rs",
    "openexperts/duration.rs",
    "experts/execution/task.rs",
    "experts/execution/verdict.rs",
    "openexperts/fields.rs",
    "openexperts/grants.rs",
    "openexperts/label.rs",
    "openexperts/manifest.rs",
    "openexperts/markdown.rs",
    "openexperts/name.rs",
    "openexperts/outputs.rs",
    "openexperts/path.rs",
    "openexperts/policy.rs",
    "openexperts/prompt.rs",
    "openexperts/resolve.rs",
    "experts/invocation.rs",
    "openexperts/settings.rs",
    "experts/trigger/",
    "openexperts/yaml.rs",
    "store/queue/plan.rs",
    "chat/command.rs",
    "chat/greeting.rs",
    "chat/paint.rs",
    "chat/transcript.rs",
    "server/admin_routes.rs",
    "server/key_file.rs",
    "server/key_limits.rs",
    "alerts/board.rs",
    "alerts/config.rs",
    "alerts/message.rs",
    "alerts/rule.rs",
    "server/page/chart.rs",
    "server/paths.rs",
    "server/page/format.rs",
    "server/page/remedy.rs",
    "usage/budget.rs",
    "usage/config.rs",
    "usage/money.rs",
    "usage/prices.rs",
    "usage/report.rs",
    "tools/environment.rs",
    "tools/gateway/",
    "tools/plain.rs",
    "tools/policy",
    "tools/wanted.rs",
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            files.push(path);
        }
    }
    files
}

/// The crates of the workspace below the product: their names and their sources.
fn crates() -> Vec<(String, PathBuf)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates");
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().replace('-', "_");
    entries.map(|path| (name(&path), path.join("src"))).collect()
}

/// Every file of the product and of its crates: its module or crate, its path below that, and its text
/// without tests.
fn modules() -> Vec<(String, String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let crates = crates();
    let module = |path: &Path| {
        let of_crate = crates.iter().find_map(|(name, sources)| {
            path.strip_prefix(sources).ok().map(|file| Path::new(name).join(file))
        });
        let name = of_crate.unwrap_or_else(|| path.strip_prefix(&root).unwrap().to_path_buf());
        let name = name.display().to_string();
        let module = name.split(['/', '.']).next().unwrap().to_owned();
        let text = fs::read_to_string(path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default().to_owned();
        (module, name, code)
    };
    // These hold only tests.
    let is_test = |path: &PathBuf| {
        path.components().any(|part| part.as_os_str() == "properties")
            || path.ends_with("run/properties.rs")
            || path.ends_with("run/tests.rs")
            || path.ends_with("driver/tests.rs")
            || path.ends_with("store/tests.rs")
            || path.ends_with("cases.rs")
            || path.ends_with("policy/tests.rs")
            || path.ends_with("screen/tests.rs")
    };
    let folders = crates.iter().map(|(_, sources)| sources).chain([&root]);
    let files = folders.flat_map(|folder| sources(folder));
    files.filter(|path| !is_test(path)).map(|path| module(&path)).collect()
}

/// Others can use the parser without the proxy, so it stands on next to nothing.
#[test]
fn the_parser_stands_alone() {
    let manifest = include_str!("../../crates/tool-call-parser/Cargo.toml");
    let dependencies = manifest.split("[dependencies]\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names: Vec<&str> = dependencies.lines().filter_map(|line| line.split(" = ").next()).collect();
    assert_eq!(names, ["memchr", "regex", "serde", "serde_json"]);
}

/// The files of a crate that a text names, by the first part of their paths.
fn siblings(name: &str, code: &str) -> BTreeSet<String> {
    let first = |name: &str| name.split(['/', '.']).next().unwrap_or_default().to_owned();
    let own = first(name);
    let depth = name.matches('/').count();
    let relative = "super::".repeat(depth + 1);
    let code: Vec<&str> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let mut found = BTreeSet::new();
    for start in [relative.as_str(), "crate::"] {
        for rest in code.join("\n").split(start).skip(1) {
            let group = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map(|(group, _)| group);
            let names = group.unwrap_or(rest).split(',').take(if group.is_some() { usize::MAX } else { 1 });
            found.extend(names.map(|path| {
                path.trim().chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect::<String>()
            }));
        }
    }
    found.remove(&own);
    found
}

#[test]
fn files_import_in_one_direction() {
    for folder in ["agent", "openexperts", "store"] {
        let prefix = format!("{folder}/");
        let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (_, name, code) in modules() {
            let Some(name) = name.strip_prefix(&prefix).filter(|name| *name != "lib.rs") else { continue };
            let file = name.split(['/', '.']).next().unwrap().to_owned();
            imports.entry(file).or_default().extend(siblings(name, &code));
        }
        let files: BTreeSet<String> = imports.keys().cloned().collect();
        imports.values_mut().for_each(|named| named.retain(|name| files.contains(name)));
        while let Some(lowest) =
            imports.iter().find(|(_, named)| named.is_empty()).map(|(file, _)| file.clone())
        {
            imports.remove(&lowest);
            imports.values_mut().for_each(|named| {
                let _ = named.remove(&lowest);
            });
        }
        assert!(imports.is_empty(), "these files of {folder} are in a circle or import one: {imports:#?}");
    }
}

#[test]
fn the_pure_modules_are_pure() {
    let impure = [
        "async fn",
        "tokio",
        "std::fs",
        "std::net",
        "std::env",
        "Instant::now",
        "SystemTime",
        "rand::",
        "reqwest",
        "hyper::",
    ];
    let is_pure = |module: &str, name: &str| {
        PURE.contains(&module) || PURE_FILES.iter().any(|pure| name.starts_with(pure))
    };
    for (_, name, code) in modules().iter().filter(|(module, name, _)| is_pure(module, name)) {
        let code: Vec<&str> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        for word in impure {
            assert!(!code.iter().any(|line| line.contains(word)), "{name} uses {word}");
        }
    }
}

#[test]
fn the_pure_files_are_there() {
    let names: Vec<String> = modules().into_iter().map(|(_, name, _)| name).collect();
    PURE_FILES
        .iter()
        .for_each(|file| assert!(names.iter().any(|name| name.starts_with(file)), "{file} has moved"));
}

/// No decision about a request reads its log line. `observe` alone knows the line, and a record of a request
/// gives back only what was known at its start, what goes on in headers, where the bytes of its reply are
/// put, which nothing is read from, and the mark whose drop ends a wait.
#[test]
fn the_log_line_is_never_read() {
    for (module, name, code) in modules() {
        assert!(module == "telemetry" || !code.contains("RequestLine"), "{name} uses the log line");
        if name == "telemetry/record.rs" {
            let (_, record) = code.split_once("impl RequestRecord {").unwrap();
            let signatures = record.split("pub fn ").skip(1).filter_map(|rest| rest.split_once('{'));
            let returns = |signature: &str| {
                signature.contains("&self")
                    && signature.rsplit(')').next().is_some_and(|end| end.contains("->"))
            };
            let reading = signatures.map(|(signature, _)| signature).filter(|signature| returns(signature));
            let names: Vec<&str> = reading.filter_map(|it| it.split('(').next()).collect();
            assert_eq!(
                names,
                ["start", "trace_context", "content", "traceparent", "begin_wait"],
                "these read a record"
            );
        }
    }
}

#[test]
fn files_have_headers_and_stay_short() {
    for (_, name, code) in modules() {
        assert!(code.starts_with("//!"), "{name} has no header");
        assert!(code.lines().count() <= 800, "{name} has {} lines", code.lines().count());
    }
}

#[test]
fn nothing_is_left_open() {
    for (_, name, code) in modules() {
        for mark in ["todo!(", "unimplemented!(", "FIXME", "XXX"] {
            assert!(!code.contains(mark), "{name} has {mark}");
        }
    }
}
