//! `respool expert fire`: queues an event of a trigger by hand. Works on the store directly; a server
//! executes the event.

use std::fs;

use serde_json::Value;

use crate::cli::failure::Failure;
use crate::cli::runtime::new_runtime;
use crate::cli::say::{say, say_on_stderr};
use experts::{Catalog, fire_trigger as queue_event};
use openexperts::{suggest_nearest, visible};
use settings::Loaded;
use store::Store;

/// Fires a trigger. `payload`: JSON, or `@FILE`; `None`: the payload of a clock.
pub(super) fn fire_by_hand(
    loaded: &Loaded,
    name: &str,
    trigger: &str,
    payload: Option<&str>,
) -> Result<(), Failure> {
    let experts = &loaded.settings.experts;
    let catalog = Catalog::open(&experts.dir);
    let snapshot = catalog.get(name).ok_or_else(|| {
        let current = catalog.current();
        let near = suggest_nearest(name, current.experts.keys().map(String::as_str));
        let dir = experts.dir.display();
        format!(
            "no expert {name:?} that loads is installed in {dir}: {near}`respool expert list` shows the installed experts"
        )
    })?;
    let payload = payload.map(read_payload).transpose()?;
    let store = Store::open_in_place(&loaded.settings.store)?;
    let queued = new_runtime()?.block_on(queue_event(&store, &snapshot, trigger, payload))?;
    for invocation in &queued {
        for warning in &invocation.warnings {
            say_on_stderr(&format!("warning: {}", visible(warning)));
        }
        say(&format!("{}  queued: {name} runs {}", invocation.id, visible(&invocation.process)));
    }
    say_on_stderr("A running `respool serve` executes what is queued.");
    Ok(())
}

fn read_payload(payload: &str) -> Result<Value, Failure> {
    let text = match payload.strip_prefix('@') {
        Some(path) => fs::read_to_string(path).map_err(|error| format!("{path} cannot be read: {error}"))?,
        None => payload.to_owned(),
    };
    serde_json::from_str(&text).map_err(|error| {
        format!("the payload is not JSON ({error}): write it as '{{\"name\": \"value\"}}', or @FILE").into()
    })
}
