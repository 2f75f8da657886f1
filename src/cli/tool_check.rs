//! The part of `respool check` that tries tools: whether MCP servers and OpenClaw's gateway answer, and which
//! agents and experts are ready to work with them.

use std::time::Duration;

use super::expert::problem_in_service;
use super::findings::Findings;
use super::say::say;
use agent::AgentConfig;
use experts::{Library, check_binding, find_restricted};
use openexperts::{Bindings, Package};
use settings::{Loaded, Settings};
use tools::Sources;

/// How long MCP servers may take to start.
const START_WITHIN: Duration = Duration::from_secs(30);

/// Tries every server of tools, then says which agents and experts are ready.
pub(super) async fn check_tools(loaded: &Loaded, sources: &Sources, findings: &mut Findings) {
    let settings = &loaded.settings;
    let tools = &settings.tools;
    if !tools.mcp.is_empty() || tools.gateway.url.is_some() {
        say("\ntools");
        sources.await_servers(tools.mcp.keys().map(String::as_str), START_WITHIN).await;
    }
    for name in tools.mcp.keys() {
        match sources.mcp_problem(name) {
            None => findings.ok(&format!("the MCP server `{name}` answers")),
            Some(problem) => findings.fail(
                &format!("the MCP server `{name}` cannot be used: {}", problem.text),
                &format!("correct [tools.mcp.{name}], or start the server"),
            ),
        }
    }
    if let Some(url) = &tools.gateway.url {
        sources.look_at_gateway().await;
        let problem = sources.gateway_problem().map(|problem| problem.text);
        match problem.or(sources.gateway_refusal().await) {
            None => findings.ok(&format!("OpenClaw's gateway answers at {url}")),
            Some(problem) => findings.fail(
                &format!("OpenClaw's gateway at {url} cannot be used: {problem}"),
                "correct [tools.gateway], or start OpenClaw",
            ),
        }
    }
    check_agents(settings, sources, findings);
    check_experts(loaded, sources, findings).await;
}

fn check_agents(settings: &Settings, sources: &Sources, findings: &mut Findings) {
    if !settings.agents.is_empty() {
        say("\nagents");
    }
    for (name, config) in &settings.agents {
        match missing_tools(config, sources).as_slice() {
            [] => findings.ok(&format!("the agent `{name}` is ready")),
            missing => findings.warn(
                &format!("the agent `{name}` works without some of its tools: {}", missing.join("; ")),
                "see the findings about tools above",
            ),
        }
    }
}

/// Lists the servers of an agent's tools that cannot be used, with their problems.
fn missing_tools(config: &AgentConfig, sources: &Sources) -> Vec<String> {
    let mut servers: Vec<&str> = config.tools.iter().filter_map(|tool| server_of(tool)).collect();
    servers.sort_unstable();
    servers.dedup();
    let problem = |name: &str| {
        sources.mcp_problem(name).map(|problem| format!("MCP server `{name}`: {}", problem.text))
    };
    servers.into_iter().filter_map(problem).collect()
}

/// Returns the MCP server of a tool that an agent's settings name: `files` of `mcp:files/read`.
fn server_of(tool: &str) -> Option<&str> {
    Some(tool.strip_prefix("mcp:")?.split_once('/')?.0)
}

async fn check_experts(loaded: &Loaded, sources: &Sources, findings: &mut Findings) {
    let settings = &loaded.settings;
    let library = Library::new(&settings.experts.dir);
    let installed = match library.list() {
        Ok(installed) if installed.is_empty() => return,
        Ok(installed) => installed,
        Err(error) => {
            let text = format!("the experts in {} cannot be read: {error}", library.dir().display());
            return findings.fail(&text, "correct `experts.dir`, or make the directory readable");
        }
    };
    say("\nexperts");
    if settings.experts.model.is_none() {
        findings.warn(
            "experts are installed, but `experts.model` is not set, so they do not run",
            "set `model` in [experts] to a model that an upstream serves",
        );
    }
    for one in installed {
        let name = one.owner();
        let Some(package) = &one.loaded.package else {
            let todo = format!("`respool expert validate {name}` says why");
            findings.warn(&format!("the expert `{name}` does not load"), &todo);
            continue;
        };
        let bindings = library.bindings_of(&one.folder()).map(|(text, _)| text).unwrap_or_default();
        let problems = check_binding(package, &bindings, sources).await.problems;
        let mut problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        if problems.is_empty() {
            let in_service = problem_in_service(loaded, &name);
            problems
                .extend(in_service.map(|why| format!("the running `respool serve` cannot use it: {why}")));
        }
        if problems.is_empty() {
            check_restrictions(settings, package, &bindings, findings);
            continue;
        }
        findings.warn(
            &format!("the expert `{name}` is not ready, so its events wait: {}", problems.join("; ")),
            &format!("`respool expert validate {name}` says more"),
        );
    }
}

/// Reports an expert that is ready, with the operations that the policy restricts.
fn check_restrictions(settings: &Settings, package: &Package, bindings: &str, findings: &mut Findings) {
    let name = &package.manifest.name.value;
    let restricted = find_restricted(package, &Bindings::from_text(bindings).0, &settings.tools.policy);
    if restricted.is_empty() {
        return findings.ok(&format!("the expert `{name}` is ready"));
    }
    let restricted: Vec<String> = restricted.iter().map(ToString::to_string).collect();
    findings.warn(
        &format!("the expert `{name}` is ready, but the policy restricts it: {}", restricted.join("; ")),
        "if that is not meant, add a rule before these that allows the tool (docs/tools.md)",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_of_mcp_servers_name_their_server() {
        for (tool, expected) in [("mcp:files/*", Some("files")), ("exec", None), ("gateway:cron", None)] {
            assert_eq!(server_of(tool), expected, "{tool}");
        }
    }
}
