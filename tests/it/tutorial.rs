//! The tutorial of docs/experts.md, played as it is written: its files, its configuration and its commands.
//! Only the port differs, and the script waits where a person would read.

use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::path::Path;

use serde_json::{Value, json};

use crate::experts_run::{calls, results};
use crate::support::fake_vllm::FakeVllm;
use crate::support::script::Script;

const PAGE: &str = include_str!("../../docs/experts.md");

/// The script waits with these until there is something to see.
const HELPERS: &str = r#"
set -eu
first_id() { case "$1" in outbox) set -- outbox --kind result ;; esac
    respool expert "$1" list "${@:2}" --json | sed -n 's/^ *"id": "\(.*\)",\{0,1\}$/\1/p' | head -n 1; }
await_id() { for _ in $(seq 600); do [ -z "$(first_id "$1")" ] || return 0; sleep 0.1; done; echo "no $1 appeared"; exit 1; }
"#;

fn tutorial() -> &'static str {
    let (_, section) = PAGE.split_once("## From an empty folder to a delivery\n").unwrap();
    section.split("\n## ").next().unwrap()
}

/// The code blocks, each with its language and the first line of the paragraph before it.
fn code_blocks(section: &str) -> Vec<(&str, &str, String)> {
    let (mut blocks, mut paragraph, mut lines) = (Vec::new(), "", section.lines());
    let mut last = "";
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            blocks.push((language, paragraph, text.join("\n") + "\n"));
        } else if !line.is_empty() && last.is_empty() {
            paragraph = line;
        }
        last = line;
    }
    blocks
}

/// The name of the file that a paragraph introduces.
fn file_name(paragraph: &str) -> Option<&str> {
    paragraph.strip_prefix('`')?.split('`').next()
}

/// The commands as a script.
fn script(section: &str, port: u16) -> String {
    let mut script = HELPERS.to_owned();
    let prose = section.split("```").step_by(2).flat_map(str::lines);
    for line in prose.filter_map(|line| line.strip_prefix("    ")) {
        let line = line.replace("8003", &port.to_string());
        let kind = if line.contains("outbox") { "outbox" } else { "approvals" };
        if line.contains(&format!("expert {kind} list")) {
            writeln!(script, "await_id {kind}").unwrap();
        }
        script += &line.replace(" ID", &format!(" \"$(first_id {kind})\""));
        script.push('\n');
        if line == "respool serve &" {
            let ready = format!("curl -fs -o /dev/null http://127.0.0.1:{port}/health");
            script.push_str("trap \"kill $!\" EXIT\n");
            writeln!(script, "for _ in $(seq 300); do {ready} && break; sleep 0.1; done").unwrap();
        }
    }
    script
}

fn librarian(request: &Value) -> Script {
    match results(request).len() {
        0 => calls(&[("shelf__read", json!({"path": "shelf.md"}))]),
        1 => calls(&[("shelf__write", json!({"path": "orders.md", "content": "Momo, shelf 4, Kim\n"}))]),
        _ => calls(&[("finish_process", json!({"summary": "Momo is ordered.", "outputs": {"shelf": "4"}}))]),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tutorial_works_as_written() {
    let fake = FakeVllm::thinking(librarian).await;
    fake.serve_models(&["gpt-oss-120b"]);
    let home = tempfile::tempdir().unwrap();
    let write = |path: &Path, text: &str| {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut config = format!("listen = \"127.0.0.1:{port}\"\n");
    for (language, paragraph, text) in code_blocks(tutorial()) {
        match (language, file_name(paragraph)) {
            ("toml", _) => config += &text,
            (_, Some(name)) => write(&home.path().join("lending-desk").join(name), &text),
            _ => panic!("a block without a name: {paragraph}"),
        }
    }
    write!(config, "[[upstream]]\nname = \"box\"\nurl = \"{}\"\n", fake.url()).unwrap();
    write(&home.path().join(".config/respool/respool.toml"), &config);
    write(&home.path().join("library/shelf.md"), "Momo: shelf 4\n");
    let program = Path::new(env!("CARGO_BIN_EXE_respool"));
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut command = tokio::process::Command::new("bash");
    command.args(["-c", &script(tutorial(), port)]).current_dir(home.path());
    command.env_clear().env("HOME", home.path()).env("PATH", path);
    let done = command.output().await.unwrap();
    let text = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{text}");
    assert!(text.contains("Momo is ordered."), "{text}");
    assert_eq!(fs::read_to_string(home.path().join("library/orders.md")).unwrap(), "Momo, shelf 4, Kim\n");
}
