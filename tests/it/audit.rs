//! The audit log: what the gate before the tools writes, and what `respool audit` shows.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tools::{AuditConfig, Caller, Sources, ToolSet, Tools as _};

use crate::support::tools::{Person, config, invocation, launcher};
use crate::support::wait_until;

async fn tools(content: bool) -> (TempDir, ToolSet) {
    let folder = tempfile::tempdir().unwrap();
    let rules = "[[policy.rule]]\ntool = \"exec\"\ncommand = \"echo *\"\nthen = \"allow\"\n[[policy.rule]]\ntool = \"read\"\npath = \"nothing\"\nthen = \"allow\"\n\
                 [[policy.rule]]\ntool = \"read\"\nthen = \"ask\"";
    fs::create_dir(folder.path().join("work")).unwrap();
    let work = folder.path().join("work").display().to_string();
    let mut config = config(&format!("local.workspace = {work:?}\n{rules}"));
    config.local.launcher = Some(launcher());
    config.audit = Some(AuditConfig { file: folder.path().join("state/audit.jsonl"), content });
    let set = Sources::open(&config)
        .unwrap()
        .select_tools(&["exec", "read", "write"].map(str::to_owned))
        .await
        .unwrap();
    (folder, set)
}

async fn call(set: &ToolSet, name: &str, arguments: &Value, person: Option<&Person>) {
    let mut call = invocation(name, arguments);
    call.caller = Caller {
        run: "run-1".into(),
        agent: "coder".into(),
        key: Some("team-a".into()),
        ..Caller::default()
    };
    let _ = set.call(&call, person.map(|person| person as _)).await;
}

fn lines(folder: &TempDir) -> Vec<Value> {
    let text = fs::read_to_string(folder.path().join("state/audit.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn respool(file: &Path, command: &str) -> (i32, String) {
    let done = Command::new(launcher()).args(["audit", command, "--file"]).arg(file).output().unwrap();
    let said = [done.stdout, done.stderr].concat();
    (done.status.code().unwrap(), String::from_utf8(said).unwrap())
}

#[tokio::test]
async fn records_name_rule_and_caller() {
    let (folder, set) = tools(false).await;
    call(&set, "exec", &json!({"command": "echo hidden-words"}), None).await;
    call(&set, "read", &json!({"path": "nothing"}), None).await;
    call(&set, "read", &json!({"path": "secret"}), Some(&Person::who_says(true))).await;
    call(&set, "write", &json!({"path": "a", "content": "x"}), None).await;
    call(&set, "write", &json!({"path": "a", "content": "x"}), Some(&Person::who_says(false))).await;
    call(&set, "write", &json!({"path": "a", "content": "x"}), Some(&Person::who_says(true))).await;
    let lines = lines(&folder);
    let told: Vec<String> = lines
        .iter()
        .map(|line| {
            let text = |key: &str| line[key].as_str().unwrap_or("-").to_owned();
            [text("step"), text("tool"), text("rule"), text("approved_by"), text("outcome")].join(" | ")
        })
        .collect();
    assert_eq!(
        told,
        [
            "begun | exec | rule 1 of tools.policy | - | -",
            "ended | exec | - | - | ok",
            "begun | read | rule 3 of tools.policy | person | -",
            "ended | read | - | - | failed",
            "refused | write | tools.policy.default | - | -",
            "refused | write | tools.policy.default | - | refused by the person",
            "begun | write | tools.policy.default | person | -",
            "ended | write | - | - | ok",
        ]
    );
    for line in &lines {
        assert_eq!(
            (&line["run"], &line["agent"], &line["key"]),
            (&json!("run-1"), &json!("coder"), &json!("team-a"))
        );
        assert!(line["arguments"].is_null());
    }
    assert_eq!(lines[0]["arguments_sha256"].as_str().unwrap().len(), 64);
    assert!(!fs::read_to_string(folder.path().join("state/audit.jsonl")).unwrap().contains("hidden-words"));
}

#[tokio::test]
async fn early_refusals_are_recorded() {
    let (folder, set) = tools(false).await;
    let mut refused = invocation("exec", &json!({"command": "echo x"}));
    refused.caller = Caller { run: "run-1".into(), ..Caller::default() };
    set.note_refusal(&refused, "anna").await;
    let line = lines(&folder).remove(0);
    assert_eq!(
        (&line["step"], &line["outcome"], &line["run"]),
        (&json!("refused"), &json!("refused by anna"), &json!("run-1"))
    );
}

#[tokio::test]
async fn calls_of_lost_processes_end() {
    let (folder, set) = tools(false).await;
    let mut interrupted = invocation("exec", &json!({"command": "echo x"}));
    interrupted.caller = Caller { run: "run-1".into(), ..Caller::default() };
    set.note_unknown(&interrupted).await;
    let line = lines(&folder).remove(0);
    assert_eq!(
        (&line["step"], &line["outcome"], &line["run"]),
        (&json!("ended"), &json!("unknown"), &json!("run-1"))
    );
}

#[tokio::test]
async fn with_content_the_arguments_are_there() {
    let (folder, set) = tools(true).await;
    call(&set, "exec", &json!({"command": "echo words"}), None).await;
    assert_eq!(lines(&folder)[0]["arguments"], json!({"command": "echo words"}));
}

#[tokio::test]
async fn a_cancelled_call_is_told_of() {
    let (folder, set) = tools(false).await;
    let mut long = invocation("exec", &json!({"command": "sleep 100"}));
    long.timeout = Duration::from_mins(1);
    let person = Person::who_says(true);
    let file = folder.path().join("state/audit.jsonl");
    tokio::select! {
        ended = set.call(&long, Some(&person)) => panic!("it ended: {ended:?}"),
        () = wait_until("the call has begun", async || file.exists()) => {}
    }
    let lines = lines(&folder);
    assert_eq!((&lines[0]["step"], &lines[1]["outcome"]), (&json!("begun"), &json!("cancelled")));
}

#[tokio::test]
async fn the_command_lists_calls() {
    let (folder, set) = tools(false).await;
    for _ in 0..3 {
        call(&set, "exec", &json!({"command": "echo words"}), None).await;
    }
    let file = folder.path().join("state/audit.jsonl");
    let (code, said) = respool(&file, "list");
    assert!(
        code == 0 && said.lines().count() == 6 && said.contains("agent coder, run run-1, key team-a"),
        "{said}"
    );
    let (code, said) = respool(&file, "verify");
    assert!(code == 1 && said.contains("was removed"), "{said}");
    let (code, said) = respool(&folder.path().join("none"), "list");
    assert!(code == 0 && said.contains("There is no audit log"), "{said}");
}
