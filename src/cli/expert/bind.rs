//! `respool expert bind`: writes which of the user's tools implements an abstract tool of an expert.

use std::collections::BTreeMap;

use crate::cli::failure::Failure;
use crate::cli::say::{say, say_on_stderr};
use experts::Library;
use openexperts::{Binding, BindingType, Bindings, Package, suggest_nearest, visible};
use settings::Loaded;

/// The binding that the command line asks for.
pub(super) struct BindingRequest {
    pub(super) tool: String,
    pub(super) server: Option<String>,
    pub(super) kind: String,
    pub(super) operations: Vec<String>,
    pub(super) unbind: bool,
}

pub(super) fn bind_tool(config: &Loaded, name: &str, wanted: &BindingRequest) -> Result<(), Failure> {
    let library = Library::new(&config.settings.experts.dir);
    let lock = library.lock()?;
    let installed = library.get(name)?;
    let folder = installed.folder();
    let package = installed.loaded.package.as_ref();
    let package = package.ok_or_else(|| {
        format!("the package of {name} does not load; `respool expert validate {name}` says why")
    })?;
    is_required(package, name, &wanted.tool)?;
    have_operations(package, wanted)?;
    let (text, path) =
        library.bindings_of(&folder).map_err(|error| format!("the bindings cannot be read: {error}"))?;
    let (mut bindings, findings) = Bindings::from_text(&text);
    if let Some(error) = findings.iter().find(|finding| finding.severity == openexperts::Severity::Error) {
        let what = format!("{} has errors; correct it first:\n{}", path.display(), error.render(Some(&text)));
        return Err(Failure::Failed(what));
    }
    if wanted.unbind {
        bindings.tools.remove(&wanted.tool);
    } else {
        let binding = new_binding(wanted, bindings.tools.get(&wanted.tool))?;
        if binding.kind == BindingType::Mcp && !config.settings.tools.mcp.contains_key(&binding.server) {
            let servers = config.settings.tools.mcp.keys().map(String::as_str);
            let server = visible(&binding.server);
            let hint = match server.as_str() {
                "local" => "for respool's own tools, write `--type local`; ".to_owned(),
                "gateway" => "for OpenClaw's gateway, write `--type gateway`; ".to_owned(),
                _ => suggest_nearest(&binding.server, servers),
            };
            say_on_stderr(&format!(
                "warning: there is no [tools.mcp.{server}] in the configuration yet; {hint}the expert is not ready until there is one"
            ));
        }
        bindings.tools.insert(wanted.tool.clone(), binding);
    }
    let written = library.write_bindings(&folder, &bindings.to_yaml(), &lock);
    let path = written.map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
    say(&format!(
        "{}: {} {}. `respool expert validate {name}` shows whether the expert is ready.",
        path.display(),
        visible(&wanted.tool),
        if wanted.unbind { "is not bound any more" } else { "is bound" }
    ));
    say_operations(&bindings, &wanted.tool);
    super::registry::refresh_page(&config.settings.experts);
    Ok(())
}

/// Lists the operations of a tool that have another name on the server.
fn say_operations(bindings: &Bindings, tool: &str) {
    let operations = bindings.tools.get(tool).map(|binding| &binding.operations);
    let Some(operations) = operations.filter(|operations| !operations.is_empty()) else { return };
    for (operation, own) in operations {
        say(&format!("  {} = {}", visible(operation), visible(own)));
    }
    say("To remove one of these names: --operation OPERATION=");
}

fn is_required(package: &Package, name: &str, tool: &str) -> Result<(), Failure> {
    let known: Vec<&str> = package.manifest.tools.items.iter().map(|tool| tool.value.as_str()).collect();
    if known.contains(&tool) {
        return Ok(());
    }
    let near = suggest_nearest(tool, known.iter().copied());
    let known = if known.is_empty() {
        "it requires none".to_owned()
    } else {
        format!("it requires {}", known.join(", "))
    };
    Err(Failure::Failed(format!("{name} requires no tool {tool:?}: {near}{known}")))
}

/// Refuses names for operations that the package's tool does not have. A tool without a file may have any.
fn have_operations(package: &Package, wanted: &BindingRequest) -> Result<(), Failure> {
    let Some(tool) = package.offered_tools().find(|tool| tool.name.value == wanted.tool) else {
        return Ok(());
    };
    let known: Vec<&str> = tool.operations.items.iter().map(|one| one.name.as_str()).collect();
    let set = wanted.operations.iter().filter_map(|text| text.split_once('='));
    let Some((unknown, _)) = set.filter(|(_, own)| !own.is_empty()).find(|(name, _)| !known.contains(name))
    else {
        return Ok(());
    };
    let near = suggest_nearest(unknown, known.iter().copied());
    Err(Failure::Failed(format!(
        "the package's tool {:?} has no operation {unknown:?}: {near}it has {}",
        wanted.tool,
        known.join(", ")
    )))
}

/// Returns the binding that was asked for. Earlier names of operations stay while the tool is bound to the
/// same server.
fn new_binding(wanted: &BindingRequest, before: Option<&Binding>) -> Result<Binding, Failure> {
    let kind = match wanted.kind.as_str() {
        "gateway" => BindingType::Gateway,
        "local" => BindingType::Local,
        _ => BindingType::Mcp,
    };
    if kind == BindingType::Mcp && wanted.server.is_none() {
        return Err(Failure::Failed(
            "name the MCP server that stands for the tool: NAME of [tools.mcp.NAME]".to_owned(),
        ));
    }
    if let Some(server) = wanted.server.as_ref().filter(|_| kind != BindingType::Mcp) {
        return Err(Failure::Failed(format!("`--type {}` has no server: leave {server:?} out", wanted.kind)));
    }
    let server = wanted.server.clone().unwrap_or_default();
    let mut operations = match before {
        Some(before) if before.kind == kind && before.server == server => before.operations.clone(),
        _ => BTreeMap::new(),
    };
    for text in &wanted.operations {
        match text.split_once('=') {
            Some((operation, "")) if !operation.is_empty() => drop(operations.remove(operation)),
            Some((operation, own)) if !operation.is_empty() => {
                drop(operations.insert(operation.to_owned(), own.to_owned()));
            }
            _ => return Err(Failure::Failed(format!("{text:?} is not OPERATION=NAME"))),
        }
    }
    Ok(Binding { kind, server, operations })
}
