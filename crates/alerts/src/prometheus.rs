//! Writes the rules for Prometheus in `deploy/prometheus`: one for each of respool's own alerts, with the
//! same words, and those that only Prometheus can see.

use std::path::Path;

use super::rule::Rule;

const FILE: &str = "deploy/prometheus/respool.rules.yml";

const HEAD: &str = r#"# respool's alerts for Prometheus: what `respool serve` itself finds and can send (`[alerts]`), and two more.
# Generated from `crates/alerts/src/rule.rs`: UPDATE_DOCS=1 cargo test -p alerts
groups:
  - name: respool
    rules:
      - alert: RespoolDown
        expr: up{job="respool"} == 0
        for: 1m
        labels: {severity: critical}
        annotations:
          summary: respool does not answer on {{ $labels.instance }}.
          description: Look at its log (`journalctl --user -u respool`), then start it again.
      - alert: RespoolAlertsLost
        expr: increase(respool_alerts_lost_total[1h]) > 0
        labels: {severity: warning}
        annotations:
          summary: Alerts could not be delivered to {{ $labels.sink }}.
          description: Try it with `respool alerts test`.
"#;

fn write_rules() -> String {
    let rules = Rule::ALL.iter().map(|rule| {
        let whose = if rule.is_about_upstream() { "{{ $labels.upstream }}: " } else { "" };
        let text = |text: String| serde_json::to_string(&text).unwrap();
        format!(
            "      - alert: Respool{rule:?}\n        expr: respool_alerts_open{{rule=\"{}\"}} > 0\n        labels: {{severity: {}}}\n\
             \x20       annotations:\n          summary: {}\n          description: {}\n",
            rule.as_str(),
            rule.severity().as_str(),
            text(format!("{whose}{}", rule.meaning())),
            text(rule.todo().to_owned())
        )
    });
    HEAD.to_owned() + &rules.collect::<String>()
}

#[test]
fn the_rules_are_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(FILE);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, write_rules()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(written, write_rules(), "generate {FILE} again: UPDATE_DOCS=1 cargo test -p alerts");
}
