//! The cost of experts without their models. Measurements, so not part of every run:
//!
//! `cargo test --release --test it expert_speed -- --ignored --nocapture --test-threads 1`

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use experts::Catalog;
use openexperts::load;
use serde_json::{Value, json};

use crate::experts_run::{Desk, calls, enqueue, invocation, is_over, until};
use crate::queue_speed::one_synchronised_commit;
use crate::support::fake_vllm::FakeVllm;

/// A package of 200 files: 120 functions, 40 processes, 30 of knowledge, 6 tools, and four of its own.
fn write_package(root: &Path) {
    let folders = [("functions", 120), ("processes", 40), ("knowledge", 30)];
    let mut manifest = String::from(
        "spec: \"1.0\"\nname: large\nversion: \"1.0.0\"\ndescription: A large one\nrequires: {tools: [t0, t1, t2, t3, t4, t5]}\n\
         components:\n  orchestrator: orchestrator.md\n  persona: [persona/identity.md]\n",
    );
    let text = "A line of what is to be done here, of a usual length for such a file.\n".repeat(40);
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    for (folder, count) in folders {
        let _ = writeln!(manifest, "  {folder}:");
        for number in 0..count {
            let path = format!("{folder}/{folder}-{number}.md");
            let _ = writeln!(manifest, "    - {path}");
            let more = if folder == "knowledge" { "" } else { "tools: [t0, t1]\n" };
            let head = format!(
                "---\nname: {folder}-{number}\ndescription: What number {number} is for\n{more}---\n"
            );
            write(&path, &format!("{head}{text}"));
        }
    }
    manifest.push_str("  tools:\n");
    for number in 0..6 {
        let path = format!("tools/t{number}.yaml");
        let _ = writeln!(manifest, "    - {path}");
        let mut tool = format!("name: t{number}\ndescription: A tool\noperations:\n");
        for operation in 0..10 {
            let _ = writeln!(
                tool,
                "  - {{name: op{operation}, description: d, input: {{type: object, properties: {{a: {{type: string}}}}}}}}"
            );
        }
        write(&path, &tool);
    }
    for (path, text) in [
        ("expert.yaml", manifest.as_str()),
        ("README.md", "r\n"),
        ("orchestrator.md", "o\n"),
        ("persona/identity.md", "i\n"),
    ] {
        write(path, text);
    }
}

#[test]
#[ignore = "a measurement: see the head of the file"]
fn large_packages_validate_in_50_ms() {
    let dir = tempfile::tempdir().unwrap();
    write_package(&dir.path().join("large"));
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..11 {
        let began = Instant::now();
        let loaded = load(&dir.path().join("large")).unwrap();
        times.push(began.elapsed());
        assert!(loaded.package.is_some() && loaded.files.len() == 200, "{:?}", loaded.diagnostics);
    }
    times.sort();
    let began = Instant::now();
    let catalog = Catalog::open(dir.path());
    let opened = began.elapsed();
    let began = Instant::now();
    assert!(!catalog.reload());
    println!(
        "200 files: median {:?}, longest {:?}; in service after {opened:?}; looked at again in {:?}",
        times[5],
        times[10],
        began.elapsed()
    );
    assert!(times[5] <= Duration::from_millis(50));
}

/// From the moment at which an event comes to the moment at which the model is asked, beside a bare commit
/// that waits for the same disk, turn by turn in one run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: see the head of the file"]
async fn events_reach_the_model_fast() {
    let model = |_: &Value| calls(&[("finish_process", json!({"summary": "s"}))]);
    let fake = FakeVllm::thinking(model).await;
    let desk = Desk::new(&fake.url());
    let respool = desk.started(&fake).await;
    let store = respool.agents.store().unwrap();
    let waits = one_synchronised_commit(&desk.path("."));
    let (mut took, mut bare) = (Vec::new(), Vec::new());
    for number in 0..120 {
        let began = Instant::now();
        waits();
        bare.push(began.elapsed().as_secs_f64());
        let id = format!("i{number}");
        let (_, synchronised) = store.commits();
        let began = Instant::now();
        enqueue(store, invocation(&id, "move-deal", json!({"deal_id": "d-1", "stage": "4"}))).await;
        until(store, &id, is_over).await;
        let asked = fake.requests().last().unwrap().at;
        took.push(asked.duration_since(began.into()).as_secs_f64());
        assert_eq!(store.commits().1 - synchronised, 1, "the event alone waits for the disk");
    }
    for times in [&mut took, &mut bare] {
        times.drain(..20);
        times.sort_by(f64::total_cmp);
    }
    let ratio = took[50] / bare[50];
    println!(
        "from event to model request: median {:.2} ms, 90 % {:.2} ms; {ratio:.2} × one wait for the disk of {:.2} ms",
        took[50] * 1e3,
        took[90] * 1e3,
        bare[50] * 1e3
    );
    assert!(ratio <= 4.0);
    respool.killed().await;
}
