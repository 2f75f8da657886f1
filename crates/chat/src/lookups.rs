//! The commands that only look, at the prompt and during a turn, which goes on meanwhile. They change nothing
//! in the conversation.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::join_all;

use super::approval::Allowed;
use super::approvals::Approvals;
use super::changes::{FileChange, NoChanges, Repository, uncommitted_changes};
use super::command::{self, Command};
use super::figures::{format_count, format_thousands};
use super::journal::Journal;
use super::models::{ModelDirectory, PriceOf};
use agent::{Activity, Conversation, Spent, Tokens};
use tools::programs::holds_home;
use tools::{Availability, Tools as _};
use wire::visible::one_line;

/// The columns of a tool's name, unless it is longer, and of its description.
const LONGEST_NAME: usize = 30;
const DESCRIPTION: usize = 100;

/// A line of respool's own.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Note(String),
    Problem(String),
}

/// The result of a command that only looks.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) lines: Vec<Line>,
    /// How files changed.
    pub(super) changes: Vec<FileChange>,
}

/// The cost of a conversation, its replies of the current turn included.
#[derive(Clone, Debug, Default)]
pub(super) struct Costs {
    spent: Spent,
    by_model: Vec<(String, Tokens)>,
    /// The tokens of the next prompt, and those of the model's window.
    context: Option<(u64, u64)>,
}

/// The things that these commands look at.
#[derive(Clone)]
pub(super) struct Lookups {
    pub(super) models: Arc<dyn ModelDirectory>,
    pub(super) approvals: Arc<Approvals>,
    pub(super) journal: Arc<Journal>,
    pub(super) root: PathBuf,
    pub(super) allowed: Arc<Mutex<Allowed>>,
    pub(super) yes: bool,
    pub(super) is_read_only: bool,
    pub(super) sandbox: String,
    /// The repository around the workspace when this turn began.
    pub(super) repository: Option<Repository>,
    pub(super) price_of: PriceOf,
    /// The model of the next turn.
    pub(super) model: String,
    pub(super) costs: Arc<Mutex<Costs>>,
}

impl Found {
    pub(super) fn problem(text: String) -> Self {
        Self { lines: vec![Line::Problem(text)], changes: Vec::new() }
    }
}

impl Costs {
    pub(super) fn from_conversation(conversation: &Conversation) -> Self {
        Self {
            spent: conversation.total_cost(),
            by_model: conversation.tokens_by_model(),
            context: conversation.context_size(),
        }
    }

    /// Counts a reply of the current turn.
    pub(super) fn count(&mut self, activity: &Activity<'_>) {
        let Activity::ModelReplied(reply) = activity else { return };
        let mut tokens = reply.tokens;
        if let Some((used, _)) = self.context.as_mut().filter(|_| tokens.total() > 0) {
            *used = tokens.total();
        }
        tokens.prompt = tokens.prompt.saturating_add(reply.earlier_prompts);
        self.spent.tokens += tokens;
        self.spent.calls += 1;
        self.spent.uncounted += usize::from(tokens.total() == 0);
        match self.by_model.iter_mut().find(|(model, _)| *model == reply.model) {
            Some((_, sum)) => *sum += tokens,
            None => self.by_model.push((reply.model.clone(), tokens)),
        }
    }
}

impl Lookups {
    /// Answers a command, unless it is about what the screen keeps.
    pub(super) async fn look_up(self, command: Command) -> Found {
        let lines = match command {
            Command::Help => vec![Line::Note(command::help_text().trim_end().to_owned())],
            Command::Model(None) => self.model_lines().await,
            Command::Tools => self.tool_lines(),
            Command::Cost => self.cost_lines(),
            Command::Diff => return self.changes().await,
            Command::Approvals(wanted) => vec![match self.approvals.run_command(wanted).await {
                Ok(text) => Line::Note(text),
                Err(why) => Line::Problem(why.to_string()),
            }],
            _ => Vec::new(),
        };
        Found { lines, changes: Vec::new() }
    }

    async fn model_lines(&self) -> Vec<Line> {
        let mark = |id: &str| if id == self.model { "●" } else { " " };
        let alias = |(alias, target): (String, String)| {
            Line::Note(format!("{} {alias}  stands for {target}", mark(&alias)))
        };
        let mut lines: Vec<Line> = self.models.aliases().into_iter().map(alias).collect();
        for listed in join_all(self.models.list_models()).await {
            let listed = match listed {
                Ok(listed) => listed,
                Err(why) => {
                    lines.push(Line::Problem(why.to_string()));
                    continue;
                }
            };
            lines.extend(listed.into_iter().map(|model| {
                let window = self.models.configured_window(&model.id).or(model.window);
                let window = window.map(|window| format!("  {} tokens", format_thousands(window)));
                let id = one_line(&model.id, 1_000);
                Line::Note(format!("{} {id}{}", mark(&model.id), window.unwrap_or_default()))
            }));
        }
        lines
    }

    fn tool_lines(&self) -> Vec<Line> {
        let specs = self.journal.specs();
        let longest = specs.iter().map(|spec| spec.name.len()).max().unwrap_or(0).min(LONGEST_NAME);
        let tool = |spec: tools::ToolSpec| {
            Line::Note(format!("{:<longest$} {}", spec.name, one_line(&spec.description, DESCRIPTION)))
        };
        let mut lines: Vec<Line> = specs.into_iter().map(tool).collect();
        lines.extend(self.journal.tools().servers().into_iter().map(|(name, found)| match found {
            Ok(count) => Line::Note(format!("MCP server {name}: {}", format_count(count, "tool"))),
            Err(problem) if problem.prospect == Availability::Starting => {
                Line::Note(format!("MCP server {name}: it is starting"))
            }
            Err(problem) => Line::Problem(format!("MCP server {name}: {}", problem.text)),
        }));
        lines.push(Line::Note(self.consent_line()));
        lines.push(Line::Note(self.sandbox.clone()));
        lines
    }

    /// Says what needs consent.
    fn consent_line(&self) -> String {
        let allowed = self.allowed.lock().unwrap_or_else(PoisonError::into_inner);
        let lasts = if allowed.is_kept() {
            "in this directory (/ask takes it back)"
        } else {
            "until you leave (/keep makes it last here, /ask takes it back)"
        };
        let allowed = allowed.list();
        match (self.yes, allowed.is_empty()) {
            _ if self.is_read_only => {
                "read-only: only reading, and commands that only look, run; /readonly off ends it".to_owned()
            }
            (true, _) => "--yes: nothing is asked; what the policy denies stays denied".to_owned(),
            (false, true) if holds_home(&self.root) => {
                "everything needs consent in a home directory, unless [tools.policy] decides".to_owned()
            }
            (false, true) => {
                "reading, and commands that only look, need no consent; everything else does, unless \
                 [tools.policy] decides"
                    .to_owned()
            }
            (false, false) => format!("allowed without a question {lasts}:\n  {}", allowed.join("\n  ")),
        }
    }

    fn cost_lines(&self) -> Vec<Line> {
        let Costs { spent, mut by_model, context } =
            self.costs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Spent { tokens, calls, uncounted } = spent;
        let more = match uncounted {
            0 => String::new(),
            some => format!("; the server reported no tokens for {}", format_count(some, "call")),
        };
        if by_model.is_empty() {
            by_model.push((self.model.clone(), tokens));
        }
        let costs = by_model.iter().map(|(model, tokens)| (model.as_str(), (self.price_of)(model, *tokens)));
        let (known, unknown): (Vec<_>, Vec<_>) = costs.partition(|(_, cost)| cost.is_some());
        let known =
            known.into_iter().filter_map(|(model, cost)| Some(format!("{} at the prices of {model}", cost?)));
        let unknown: Vec<&str> = unknown.into_iter().map(|(model, _)| model).collect();
        let unknown = (!unknown.is_empty()).then(|| {
            format!("no price of {} is known: add it to [prices] in respool.toml", unknown.join(", "))
        });
        let cost = known.chain(unknown).collect::<Vec<_>>().join("; ");
        // Not every server counts these.
        let part = |count: u64, what: &str| match count {
            0 => String::new(),
            count => format!(" ({} {what})", format_thousands(count)),
        };
        let context = context.map(|(used, window)| {
            Line::Note(format!(
                "context: about {} of {} tokens ({} %); /compact makes room",
                format_thousands(used),
                format_thousands(window),
                used * 100 / window.max(1)
            ))
        });
        let total = format!(
            "{} · {} tokens in{}, {} out{}{more}; {cost}",
            format_count(calls, "model call"),
            format_thousands(tokens.prompt),
            part(tokens.cached, "from the cache"),
            format_thousands(tokens.completion),
            part(tokens.reasoning, "reasoning")
        );
        context.into_iter().chain([Line::Note(total)]).collect()
    }

    async fn changes(&self) -> Found {
        let (mut lines, changes) = match uncommitted_changes(&self.root, self.repository.as_ref()).await {
            Ok(changes) => (Vec::new(), changes),
            Err(why @ NoChanges::NoRepository) => {
                let note = format!("{why}: these are the changes of edit_file and write_file");
                (vec![Line::Note(note)], self.journal.changes())
            }
            Err(why) => return Found::problem(why.to_string()),
        };
        if changes.is_empty() {
            lines.push(Line::Note("no file differs".to_owned()));
        }
        Found { lines, changes }
    }
}
