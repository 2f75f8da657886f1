//! A changed configuration while the server runs, in the real program.

use std::time::Duration;

use serde_json::Value;

use crate::lifecycle::Served;

/// The next line of the configuration's watch.
fn told(served: &Served) -> Value {
    served.line(|line| line["target"] == "respool::config", Duration::from_secs(20))
}

#[test]
fn a_changed_file_holds_is_refused_or_needs_a_restart() {
    let upstream = "[[upstream]]\nname = \"box\"\nurl = \"http://127.0.0.1:9\"\n";
    let served = Served::with_file(upstream, &[]);
    let write = |text: &str| {
        std::fs::write(served.directory.path().join("respool.toml"), format!("{text}\n{upstream}")).unwrap();
    };
    write("[budgets]\nday = 1.0\n");
    let line = told(&served);
    assert_eq!((&line["level"], &line["live"]), (&"INFO".into(), &"budgets.day".into()), "{line}");
    write("[budgets]\nday = \"much\"\n");
    let line = told(&served);
    assert!(line["level"] == "ERROR" && line["why"].as_str().unwrap().contains("budgets.day"), "{line}");
    write("[budgets]\nday = 2.0\n[tools.local]\nsandbox = \"off\"\n");
    served.signal("HUP");
    let line = told(&served);
    assert_eq!((&line["level"], &line["live"]), (&"WARN".into(), &"budgets.day".into()), "{line}");
    assert_eq!(line["needs_restart"], "tools.local.sandbox", "{line}");
}
