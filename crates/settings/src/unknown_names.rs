//! Finds names in the settings of experts that no installed package has: `serve` logs them, `check` prints
//! them.

use crate::Settings;
use crate::advice::Advice;
use experts::{ExpertConfig, Installed, Library};
use openexperts::{MODEL_PREFIX, Package, TriggerKind, suggest_nearest, visible};

/// Lists sections of experts that are not installed, secrets of hooks that their packages do not have, and
/// budgets of unknown agents.
pub fn find_unknown_names(settings: &Settings) -> Vec<Advice> {
    let experts = &settings.experts;
    let mut found = Vec::new();
    if experts.by_name.is_empty() && settings.budgets.agents.is_empty() {
        return found;
    }
    // A directory that cannot be read is reported elsewhere.
    let Ok(installed) = Library::new(&experts.dir).list() else { return found };
    found.extend(unknown_budgets(settings, &installed));
    for (name, expert) in &experts.by_name {
        if let Some(one) = installed.iter().find(|one| one.owner() == *name) {
            let packages = one.loaded.package.iter();
            found.extend(packages.flat_map(|package| unknown_hooks(name, expert, package)));
            continue;
        }
        let names: Vec<String> = installed.iter().map(Installed::owner).collect();
        let near = suggest_nearest(name, names.iter().map(String::as_str));
        found.push(Advice {
            text: format!("[experts.{name:?}] is about an expert that is not installed"),
            todo: format!(
                "{near}`respool expert list` shows the installed experts; remove the section if you do not need it"
            ),
        });
    }
    found
}

/// Lists budgets of agents that do not exist. An expert is an agent, and so is each of its functions.
fn unknown_budgets(settings: &Settings, installed: &[Installed]) -> Vec<Advice> {
    let experts: Vec<String> = installed.iter().map(|one| format!("{MODEL_PREFIX}{}", one.owner())).collect();
    let names = || settings.agents.keys().chain(&experts).map(String::as_str);
    let is_known = |agent: &str| {
        names()
            .any(|name| agent.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    };
    let unknown = settings.budgets.agents.keys().filter(|agent| !is_known(agent));
    let advice = |agent: &String| {
        let expert = format!("{MODEL_PREFIX}{agent}");
        let near = if experts.contains(&expert) {
            format!("did you mean \"{expert}\"? ")
        } else {
            suggest_nearest(agent, names())
        };
        Advice {
            text: format!(
                "budgets.agents names {agent:?}, which is not an agent, so this budget limits nothing"
            ),
            todo: format!("{near}write the name of an agent, or expert/NAME"),
        }
    };
    unknown.map(advice).collect()
}

fn unknown_hooks(name: &str, expert: &ExpertConfig, package: &Package) -> Vec<Advice> {
    let has_hook = |kind| matches!(kind, Some(TriggerKind::Webhook | TriggerKind::Channel));
    let triggers = package.manifest.triggers.items.iter().filter(|trigger| has_hook(trigger.kind));
    let hooks: Vec<&str> = triggers.map(|trigger| trigger.name.value.as_str()).collect();
    let unknown = expert.hook_secret_env.keys().filter(|trigger| !hooks.contains(&trigger.as_str()));
    let advice = |trigger: &String| {
        let near = suggest_nearest(trigger, hooks.iter().copied());
        let hooks = if hooks.is_empty() {
            "it has no hooks".to_owned()
        } else {
            format!("its hooks: {}", hooks.join(", "))
        };
        Advice {
            text: format!(
                "[experts.{name:?}] hook_secret_env names {trigger:?}, which is not a webhook or channel trigger of the package"
            ),
            todo: visible(&format!("{near}{hooks}")),
        }
    };
    unknown.map(advice).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{Environment, FileText, Flags, resolve};

    #[test]
    fn unknown_experts_and_hooks_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let package = dir.path().join("desk");
        fs::create_dir(&package).unwrap();
        let manifest = "spec: '1.0'\nname: desk\nversion: 1.0.0\ndescription: d\n\
            triggers: [{name: order, type: webhook, process: p}]\n\
            components: {orchestrator: o.md, persona: [o.md], functions: [f.md], processes: [p.md]}\n";
        fs::write(package.join("expert.yaml"), manifest).unwrap();
        fs::write(package.join("o.md"), "Text.\n").unwrap();
        for name in ["f", "p"] {
            let text = format!("---\nname: {name}\ndescription: d\n---\n- [ ] Text.\n");
            fs::write(package.join(format!("{name}.md")), text).unwrap();
        }
        let check = |sections: &str| {
            let text = format!("[experts]\ndir = {:?}\n{sections}", dir.path());
            let file = FileText { path: "f".as_ref(), text: &text };
            let environment = Environment::from([("V".to_owned(), "0123456789abcdef".to_owned())]);
            let loaded = resolve(Some(file), &environment, &Flags::default()).unwrap();
            find_unknown_names(&loaded.settings)
                .into_iter()
                .map(|one| (one.text, one.todo))
                .collect::<Vec<_>>()
        };
        assert_eq!(check("[budgets.agents]\n'expert/desk' = 1.0\n'expert/desk/f' = 1.0\n"), []);
        let [(budget, near)] = &check("[budgets.agents]\ndesk = 1.0\n")[..] else { panic!("one finding") };
        assert!(budget.contains("\"desk\"") && near.starts_with("did you mean \"expert/desk\"?"), "{near}");
        assert_eq!(check("[experts.desk.hook_secret_env]\norder = 'V'\n"), []);
        let found = check("[experts.dsk]\nmodel = 'm'\n[experts.desk.hook_secret_env]\nordre = 'V'\n");
        let [(hook, its_hooks), (expert, near)] = &found[..] else { panic!("{found:?}") };
        assert!(
            hook.contains("\"ordre\"") && its_hooks == "did you mean \"order\"? its hooks: order",
            "{found:?}"
        );
        assert!(
            expert.contains("[experts.\"dsk\"]") && near.starts_with("did you mean \"desk\"?"),
            "{found:?}"
        );
    }
}
