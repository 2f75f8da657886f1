//! `respool expert learn`: shows what an expert has learnt, and adds entries by hand.

use clap::Args;
use serde_json::{Value, json};

use crate::cli::failure::Failure;
use crate::cli::listing::Noun;
use crate::cli::say::{say, say_on_stderr, say_piece};
use experts::{ExpertsConfig, LearningEntry, LearningFiles, Library, PACKAGE_SCOPE};
use openexperts::visible;

#[derive(Debug, Args)]
pub(in crate::cli) struct LearnArgs {
    /// The expert
    name: String,
    /// A function of the expert, or `package`; without it all are shown, and an entry is about the package
    #[arg(long)]
    scope: Option<String>,
    /// Add an entry with this title
    #[arg(long, requires = "correction")]
    title: Option<String>,
    /// The observation
    #[arg(long, requires = "title")]
    observation: Option<String>,
    /// The instruction that follows from it
    #[arg(long, requires = "title")]
    correction: Option<String>,
    /// How certain the observation is
    #[arg(long, default_value = "high", value_parser = ["high", "medium", "low"])]
    confidence: String,
    /// Print JSON, for programs
    #[arg(long, conflicts_with = "title")]
    json: bool,
}

pub(super) fn add_learning(experts: &ExpertsConfig, arguments: LearnArgs) -> Result<(), Failure> {
    let LearnArgs { name, scope, title, observation, correction, confidence, json } = arguments;
    let installed = Library::new(&experts.dir).get(&name)?;
    let Some(package) = installed.loaded.package else {
        return Err(Failure::Failed(format!(
            "{name} does not load; `respool expert validate {name}` says why"
        )));
    };
    let files = LearningFiles::new(&experts.state_of(&name));
    let unread = |error| format!("what {name} has learnt cannot be read: {error}");
    let Some(title) = title else {
        let counts = files.entry_counts(&package).map_err(unread)?;
        if json {
            let scope = scope.as_deref().unwrap_or(PACKAGE_SCOPE);
            let text = files.text(scope).map_err(unread)?;
            let count = |(scope, current, archived): &(String, usize, usize)| json!({"scope": scope, "entries": current, "archived": archived});
            let scopes: Vec<Value> = counts.iter().map(count).collect();
            say(&format!("{:#}", json!({"expert": name, "scopes": scopes, "scope": scope, "text": text})));
            return Ok(());
        }
        if counts.is_empty() {
            say_on_stderr(&format!("{name} has learnt nothing yet"));
        }
        for (of, current, archived) in counts {
            let entries = Noun("entry", "entries").count_things(current);
            say(&format!("{}: {entries}, {archived} archived", visible(&of)));
            if scope.as_ref().is_none_or(|scope| *scope == of) {
                say_piece(&visible_lines(&files.text(&of).map_err(unread)?));
            }
        }
        return Ok(());
    };
    let scope = scope.unwrap_or_else(|| PACKAGE_SCOPE.to_owned());
    let entry = LearningEntry {
        title,
        date: clock::today_utc(),
        source: "a person, by the command line".to_owned(),
        observation: observation.unwrap_or_default(),
        correction: correction.unwrap_or_default(),
        confidence,
    };
    let archived = files.add(&package, &scope, &entry).map_err(|error| error.to_string())?;
    say(&format!("Added to what {name} has learnt ({}).", visible(&scope)));
    if !package.manifest.learning.enabled {
        say_on_stderr("note: its package has no `learning`, so it adds nothing by itself");
    }
    if archived > 0 {
        say_on_stderr(&format!(
            "Moved {} to learnings/archive.",
            Noun("older entry", "older entries").count_things(archived)
        ));
    }
    Ok(())
}

fn visible_lines(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", visible(line))).collect::<Vec<_>>().concat()
}
