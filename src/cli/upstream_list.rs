//! `respool upstreams`: lists the configured upstreams, whether each answers, and its models.

use std::time::Duration;

use clap::Args;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::failure::Failure;
use super::reachability::{ListedModel, Reachability, ask_all};
use super::runtime::new_runtime;
use super::say::{flat_text, say};
use super::upstreams::ServedUpstreams;
use crate::config::Loaded;

/// How long a server has to list its models, which needs no computation.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

#[derive(Args, Debug)]
pub(super) struct UpstreamsArgs {
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

pub(super) fn list_upstreams(loaded: &Loaded, arguments: &UpstreamsArgs) -> Result<(), Failure> {
    let abort = CancellationToken::new();
    let found = new_runtime()?.block_on(async {
        let upstreams = ServedUpstreams::open(&loaded.settings, &abort).await;
        let upstreams = upstreams.map_err(|found| loaded.problems(found))?;
        Ok::<_, Failure>(ask_all(&upstreams.fleet, ANSWER_WITHIN).await)
    })?;
    if arguments.json {
        let all: Vec<Value> = found.iter().map(Reachability::json).collect();
        say(&format!("{:#}", Value::from(all)));
    } else {
        table_lines(&found).iter().for_each(|line| say(&flat_text(line)));
    }
    Ok(())
}

/// Writes a line for each upstream, and one for each further model.
fn table_lines(found: &[Reachability]) -> Vec<String> {
    let name_width = found.iter().map(|upstream| upstream.name.chars().count()).max().unwrap_or_default();
    let mut lines = Vec::new();
    for upstream in found {
        let name = &upstream.name;
        if upstream.problem.is_some() || upstream.models.is_empty() {
            let state = if upstream.problem.is_some() { "FAIL" } else { "ok" };
            lines.push(format!("{name:<name_width$}  {state:<4}  {}", upstream.describe_models()));
        }
        for (index, model) in upstream.models.iter().enumerate() {
            let (name, state) = if index == 0 { (name.as_str(), "ok") } else { ("", "") };
            let took = upstream.took.as_millis();
            let took = if index == 0 { format!("  ({took} ms)") } else { String::new() };
            lines.push(format!("{name:<name_width$}  {state:<4}  {}{took}", describe_model(model)));
        }
    }
    lines
}

fn describe_model(model: &ListedModel) -> String {
    match model.window {
        Some(window) => format!("{}, context of {window} tokens", model.id),
        None => model.id.clone(),
    }
}
