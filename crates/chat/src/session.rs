//! One conversation in the terminal: its turns, its `/commands`, and what the person interrupts.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::future::join_all;
use nix::libc::SIGCONT;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::approval::{Allowed, Asking, Person};
use super::approvals::Approvals;
use super::command::{self, Command};
use super::editor::{Input, Lines};
use super::journal::Journal;
use super::models::{self, ModelDirectory};
use super::screen::{Answer, Screen, Shown, seconds};
use super::terminal::{Quiet, SavedTerminal};
use super::transcript;
use agent::{Conversation, Outcome, Spent};
use tools::{Approver, Tools as _, remove_temporary_directories};
use wire::visible::one_line;

/// How often the line at the bottom moves.
const TICK: Duration = Duration::from_millis(100);
/// How many questions and answers of a resumed conversation are shown.
const SHOWN_EXCHANGES: usize = 2;
/// How long a turn may take to stop when the process is to end.
const END_WITHIN: Duration = Duration::from_millis(500);

/// A conversation and everything around it.
pub(super) struct Session {
    conversation: Conversation,
    models: Arc<dyn ModelDirectory>,
    approvals: Approvals,
    journal: Arc<Journal>,
    screen: Screen,
    root: PathBuf,
    allowed: Arc<Mutex<Allowed>>,
    /// Nobody needs to be asked.
    pub(super) yes: bool,
    /// What is shown at the start.
    pub(super) greeting: Vec<String>,
    /// Somebody can be asked.
    pub(super) is_attended: bool,
    /// Cancelled when the process is to end.
    pub(super) ending: CancellationToken,
}

impl Session {
    pub(super) fn new(
        conversation: Conversation,
        models: Arc<dyn ModelDirectory>,
        approvals: Approvals,
        journal: Arc<Journal>,
        screen: Screen,
        root: PathBuf,
    ) -> Self {
        Self {
            conversation,
            models,
            approvals,
            journal,
            screen,
            root,
            allowed: Arc::default(),
            yes: false,
            greeting: Vec::new(),
            is_attended: false,
            ending: CancellationToken::new(),
        }
    }

    /// Deletes what is older than the configuration keeps.
    pub(super) fn clear_old(&self) {
        self.conversation.clear_old();
    }

    /// Takes up the last conversation of this directory.
    pub(super) async fn take_up(&mut self) -> Result<(), String> {
        let taken = self.conversation.resume_last().await;
        let taken = taken.map_err(|why| format!("the last conversation of this directory: {why}"))?;
        let turns = transcript::turns(self.conversation.entries());
        let is_interrupted = self.conversation.is_interrupted();
        let interrupted = if is_interrupted { "; its last turn was interrupted" } else { "" };
        let text = if taken {
            format!("going on with the last conversation ({}){interrupted}", counted(turns, "turn"))
        } else {
            "there is no earlier conversation in this directory; this is a new one".to_owned()
        };
        self.note(&text);
        for (question, answer) in transcript::last_exchanges(
            self.conversation.entries(),
            self.conversation.open_outcome(),
            SHOWN_EXCHANGES,
        ) {
            self.screen.show_exchange(&question, &answer);
        }
        Ok(())
    }

    fn note(&mut self, text: &str) {
        let paint = self.screen.paint();
        self.screen.note(text, |line| paint.dim(line));
    }

    fn complain(&mut self, text: &str) {
        let paint = self.screen.paint();
        self.screen.note(text, |line| paint.red(line));
    }

    /// Talks until the person leaves.
    pub(super) fn talk(&mut self, runtime: &Runtime, state_dir: &Path) -> Result<(), String> {
        let mut lines = Lines::open(state_dir, self.screen.paint())?;
        self.greet();
        let mut leaving = false;
        loop {
            self.screen.write("\n");
            match lines.read() {
                Input::End => return Ok(()),
                Input::Interrupt if leaving => return Ok(()),
                Input::Interrupt => {
                    leaving = true;
                    self.note("Ctrl-C again, or Ctrl-D, to leave");
                    continue;
                }
                Input::Text(text) if text.trim().is_empty() => {}
                Input::Text(text) => match command::read(&text) {
                    None => runtime.block_on(self.take_turn(&text)),
                    Some(Err(why)) => self.complain(&why),
                    Some(Ok(Command::Quit)) => return Ok(()),
                    Some(Ok(command)) => runtime.block_on(self.obey(command)),
                },
            }
            if self.ending.is_cancelled() {
                return Ok(());
            }
            leaving = false;
        }
    }

    fn greet(&mut self) {
        let paint = self.screen.paint();
        let model = one_line(&self.conversation.agent_mut().config.model, 1_000);
        let root = one_line(&self.root.display().to_string(), 1_000);
        self.screen.line(&format!("{} {} · {root}", paint.bold("respool chat"), paint.cyan(&model)));
        for line in std::mem::take(&mut self.greeting) {
            self.note(&line);
        }
    }

    /// A turn with its end shown.
    async fn take_turn(&mut self, text: &str) {
        let began = Instant::now();
        let before = self.conversation.total_cost();
        let outcome = self.turn(text).await;
        if let Some(why) = why_not(&outcome) {
            self.complain(&why);
        }
        let spent = self.conversation.total_cost().less(&before);
        self.note(&format!("\n{}{}", seconds(began.elapsed()), in_short(&spent)));
    }

    /// One turn, shown while it goes on.
    pub(super) async fn turn(&mut self, text: &str) -> Outcome {
        let (screen, mut inbox) = mpsc::unbounded_channel();
        let shown = screen.clone();
        let observer = Arc::new(move |activity: agent::Activity<'_>| drop(shown.send(Shown::of(activity))));
        let approver = (self.yes || self.is_attended).then(|| {
            let (yes, allowed, root) = (self.yes, Arc::clone(&self.allowed), self.root.clone());
            Arc::new(Person { yes, allowed, root, screen }) as Arc<dyn Approver>
        });
        let quiet = if self.is_attended { Quiet::begin().map(Arc::new) } else { None };
        let stop = self.ending.child_token();
        let mut interrupts = signal(SignalKind::interrupt()).ok();
        let mut continues = signal(SignalKind::from_raw(SIGCONT)).ok();
        let mut tick = tokio::time::interval(TICK);
        self.journal.begin_turn();
        self.screen.begin();
        let (conversation, view, allowed) = (&mut self.conversation, &mut self.screen, &self.allowed);
        let mut work = Box::pin(conversation.run_turn(text, observer, approver, stop.clone()));
        let outcome = loop {
            tokio::select! {
                biased;
                () = received(&mut interrupts) => stop.cancel(),
                () = received(&mut continues) => {
                    let _ = quiet.as_ref().map(|quiet| quiet.again());
                }
                Some(shown) = inbox.recv() => show(view, shown, quiet.as_ref(), allowed, &stop).await,
                outcome = &mut work => break outcome,
                _ = tick.tick() => view.tick(),
            }
        };
        while let Ok(shown) = inbox.try_recv() {
            view.show(shown);
        }
        view.end();
        outcome
    }

    /// Does what a command says. Ctrl-C ends one that only asks endpoints; they may not answer.
    async fn obey(&mut self, command: Command) {
        if !matches!(command, Command::Model(_)) {
            return self.command(command).await;
        }
        let mut interrupts = signal(SignalKind::interrupt()).ok();
        let ending = self.ending.clone();
        let is_stopped = tokio::select! {
            () = self.command(command) => false,
            () = received(&mut interrupts) => true,
            () = ending.cancelled() => true,
        };
        if is_stopped {
            self.complain("stopped");
        }
    }

    async fn command(&mut self, command: Command) {
        match command {
            Command::Help => self.note(command::help().trim_end()),
            Command::Model(None) => self.models().await,
            Command::Model(Some(id)) => self.choose(&id).await,
            Command::Tools => self.tools(),
            Command::Cost => self.cost(),
            Command::Clear => {
                self.conversation.close().await;
                self.note("a new conversation begins; --continue can still take up the last one");
            }
            Command::Save(path) => self.save(path.as_deref()),
            Command::Undo => self.undo().await,
            Command::Approvals(wanted) => match self.approvals.obey(wanted).await {
                Ok(text) => self.note(&text),
                Err(why) => self.complain(&why),
            },
            Command::Quit => {}
        }
    }

    async fn choose(&mut self, id: &str) {
        match models::find(&self.models, Some(id)).await {
            Ok((model, is_listed)) => {
                let doubt = if is_listed { "" } else { ", though no endpoint lists it" };
                self.note(&format!("the next turn goes to {id}{doubt}"));
                super::talk_to(self.conversation.agent_mut(), self.models.as_ref(), model);
            }
            Err(why) => self.complain(&why),
        }
    }

    async fn models(&mut self) {
        let current = self.conversation.agent_mut().config.model.clone();
        let models = Arc::clone(&self.models);
        for (alias, target) in models.aliases() {
            let mark = if alias == current { "●" } else { " " };
            self.note(&format!("{mark} {alias}  stands for {target}"));
        }
        for listed in join_all(models.list()).await {
            match listed {
                Err(why) => self.complain(&why),
                Ok(listed) => {
                    for model in listed {
                        let mark = if model.id == current { "●" } else { " " };
                        let window = models
                            .configured_window(&model.id)
                            .or(model.window)
                            .map(|window| format!("  {} tokens", thousands(window)));
                        let id = one_line(&model.id, 1_000);
                        self.note(&format!("{mark} {id}{}", window.unwrap_or_default()));
                    }
                }
            }
        }
    }

    fn tools(&mut self) {
        for spec in self.journal.specs() {
            self.note(&format!("{:<14} {}", spec.name, spec.description));
        }
        let allowed = self.allowed.lock().unwrap_or_else(PoisonError::into_inner).list();
        let asks = match (self.yes, allowed.is_empty()) {
            (true, _) => "--yes: nothing is asked; what the policy denies stays denied".to_owned(),
            (false, true) => {
                "reading is free; the rest is asked for, unless [tools.policy] decides".to_owned()
            }
            (false, false) => format!("not asked for any more: {}", allowed.join(", ")),
        };
        self.note(&asks);
    }

    fn cost(&mut self) {
        let Spent { tokens, calls, uncounted } = self.conversation.total_cost();
        let more = match uncounted {
            0 => String::new(),
            some => format!("; of {} the server reported no tokens", counted(some, "call")),
        };
        self.note(&format!(
            "{} · {} tokens in ({} from the cache), {} out ({} reasoning){more}; no prices known",
            counted(calls, "model call"),
            thousands(tokens.prompt),
            thousands(tokens.cached),
            thousands(tokens.completion),
            thousands(tokens.reasoning)
        ));
    }

    fn save(&mut self, path: Option<&str>) {
        let stamp = clock::format(clock::now());
        let default = format!("chat-{}.md", stamp.replace([':', '-'], "").trim_end_matches('Z'));
        let path = self.root.join(path.unwrap_or(&default));
        let text = transcript::markdown(self.conversation.entries(), self.conversation.open_outcome());
        let written = std::fs::File::create_new(&path).and_then(|mut file| {
            use std::io::Write as _;
            file.write_all(text.as_bytes())
        });
        match written {
            Ok(()) => self.note(&format!("saved as {}", path.display())),
            Err(error) => self.complain(&format!("{} was not written: {error}", path.display())),
        }
    }

    async fn undo(&mut self) {
        let undone = match self.journal.undo() {
            Ok(undone) => undone,
            Err(why) => return self.complain(&why),
        };
        let names = |paths: &[PathBuf]| {
            paths
                .iter()
                .map(|path| one_line(&path.display().to_string(), 1_000))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let files = names(&undone.files);
        self.note(&format!("as before the turn: {files}"));
        if undone.commands > 0 {
            self.note(&format!("what {} of that turn did stays", counted(undone.commands, "command")));
        }
        if !undone.lost.is_empty() {
            self.complain(&format!("changed and not put back, because too large: {}", names(&undone.lost)));
        }
        let note = format!("The person undid your last changes of files. As before them again: {files}");
        self.conversation.add_note(note).await;
    }

    /// Puts the conversation away.
    pub(super) async fn close(&mut self) {
        self.conversation.close().await;
    }
}

/// Shows something; a question also gets its answer.
async fn show(
    screen: &mut Screen,
    shown: Shown,
    quiet: Option<&Arc<Quiet>>,
    allowed: &Mutex<Allowed>,
    stop: &CancellationToken,
) {
    let Shown::Asking(asking) = shown else { return screen.show(shown) };
    let answer = screen.ask(&asking, quiet).await;
    let Asking { always, answer: reply, .. } = asking;
    match answer {
        Answer::Stop => stop.cancel(),
        Answer::Always => allowed.lock().unwrap_or_else(PoisonError::into_inner).add(always),
        Answer::Yes | Answer::No => {}
    }
    // A turn that was stopped meanwhile does not wait for it.
    let _ = reply.send(matches!(answer, Answer::Yes | Answer::Always));
}

/// Why a turn has no answer, or not a whole one; `None` when it has.
pub(super) fn why_not(outcome: &Outcome) -> Option<String> {
    match (&outcome.failure, &outcome.limit) {
        _ if outcome.cancelled => Some("stopped".to_owned()),
        (Some(failure), _) => Some(format!("the model could not go on: {}", failure.text)),
        (None, Some(limit)) => Some(format!("the turn met its limit {}", limit.as_words())),
        (None, None) if outcome.cut => Some("the answer was cut at the most tokens of one reply".to_owned()),
        (None, None) if !outcome.has_answer() => Some("the model gave no answer".to_owned()),
        (None, None) => None,
    }
}

/// When the terminal hangs up or the process is asked to end: stops the turn, which ends its commands, and
/// leaves the terminal as it was found. The conversation can be taken up again.
pub(super) async fn on_end(ending: CancellationToken, found: Option<SavedTerminal>) {
    let (Ok(mut terminate), Ok(mut hangup)) = (signal(SignalKind::terminate()), signal(SignalKind::hangup()))
    else {
        return;
    };
    tokio::select! { _ = terminate.recv() => {}, _ = hangup.recv() => {} }
    ending.cancel();
    tokio::time::sleep(END_WITHIN).await;
    if let Some(found) = found {
        found.restore();
    }
    remove_temporary_directories();
    std::process::exit(143);
}

/// What a turn cost, as far as that is known.
fn in_short(spent: &Spent) -> String {
    let Spent { tokens, calls, uncounted } = spent;
    let calls_made =
        if *calls > 0 { format!(" · {}", counted(*calls, "model call")) } else { String::new() };
    if calls == uncounted {
        return calls_made;
    }
    let least = if *uncounted > 0 { "at least " } else { "" };
    let (prompt, completion) = (thousands(tokens.prompt), thousands(tokens.completion));
    format!("{calls_made} · {least}{prompt} tokens in, {completion} out")
}

/// Waits for a signal; for ever where signals cannot be handled.
async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// So many of something.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// A number with its thousands apart.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_without_a_whole_answer_says_why() {
        let check = |outcome: &Outcome, expected: Option<&str>| {
            let why = why_not(outcome);
            assert_eq!(why.is_some(), expected.is_some(), "{why:?}");
            assert!(why.unwrap_or_default().contains(expected.unwrap_or_default()));
        };
        let answered = Outcome { content: "x".into(), ..Outcome::default() };
        check(&answered, None);
        check(&Outcome::default(), Some("no answer"));
        check(&Outcome { cut: true, ..answered.clone() }, Some("cut"));
        check(&Outcome { cancelled: true, ..answered.clone() }, Some("stopped"));
        check(&Outcome { limit: Some(agent::Limit::Iterations(5)), ..answered }, Some("max_iterations"));
    }

    #[test]
    fn what_the_server_does_not_tell_is_not_given_as_nothing() {
        let tokens = agent::Tokens { prompt: 1_200, completion: 80, ..Default::default() };
        for (calls, uncounted, expected) in [
            (0, 0, ""),
            (1, 0, " · 1 model call · 1,200 tokens in, 80 out"),
            (2, 2, " · 2 model calls"),
            (3, 1, " · 3 model calls · at least 1,200 tokens in, 80 out"),
        ] {
            assert_eq!(in_short(&Spent { tokens, calls, uncounted }), expected);
        }
    }

    #[test]
    fn numbers_are_grouped() {
        for (number, expected) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(thousands(number), expected);
        }
    }
}
