//! One conversation in the terminal: its turns, its `/commands`, and interruptions by the person.

mod permissions;

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::answers::Answers;
use super::approval::{Allowed, Person};
use super::approvals::Approvals;
use super::attachments::{Attached, Mention, attach_files};
use super::changes::Repository;
use super::command::{self, Command};
use super::editor::{self, Input, Lines, PROMPT};
use super::external_editor;
use super::figures::{format_count, format_seconds, format_thousands, terminal_columns};
use super::journal::Journal;
use super::lookups::{Costs, Lookups};
use super::models::{self, ModelDirectory, PriceOf};
use super::own_command::{describe_own_command, futile_command, own_command, run_own_command};
use super::past::{chosen_index, format_age};
use super::repetition::{self, stopping_repetition};
use super::screen::{Screen, Shown};
use super::terminal::{self, PassedKeys, SavedTerminal};
use super::transcript;
use super::turn_end::{cost_summary, next_step, why_not};
use super::typed::{END, TypedText};
use super::watched::{Watched, observer_of, stopping_after_calls, wait_for_signal};
use agent::{Conversation, Outcome, ResumeError};
use permissions::{awaited_servers, begin_servers, start_servers, with_mode};
use tools::{Approver, end_commands, remove_temporary_directories};
use wire::visible::{char_width, make_visible, one_line};

/// How many questions and answers of a resumed conversation are shown.
const SHOWN_EXCHANGES: usize = 2;
/// How soon a second Ctrl-C on an empty line leaves.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);
/// How many earlier conversations are listed.
const SHOWN_PAST: usize = 20;
/// How long a turn may take to stop when the process is to end.
const END_WITHIN: Duration = Duration::from_millis(500);

/// A conversation with its screen, tools and settings.
pub(super) struct Session {
    pub(super) conversation: Conversation,
    models: Arc<dyn ModelDirectory>,
    approvals: Arc<Approvals>,
    journal: Arc<Journal>,
    screen: Screen,
    root: PathBuf,
    allowed: Arc<Mutex<Allowed>>,
    /// Where the calls that need no question are kept, and conversations are saved.
    pub(super) state_dir: PathBuf,
    /// Whether calls run without a question.
    pub(super) yes: bool,
    /// The lines shown at the start.
    pub(super) greeting: Vec<String>,
    /// Whether calls are allowed for good: what was agreed to in the sandbox is no consent without it.
    pub(super) keeps_calls: bool,
    /// The confinement of commands, in a line.
    pub(super) sandbox: String,
    /// A problem of the model's name.
    pub(super) doubt: Option<String>,
    /// Whether a person can be asked.
    pub(super) is_attended: bool,
    /// Prices tokens.
    pub(super) price_of: PriceOf,
    /// The text typed during a turn, for the next prompt; `None` where no prompt follows.
    typed: Option<TypedText>,
    /// The person's own commands since the last turn, for the model.
    own_outputs: Vec<String>,
    /// Whether the first turn has waited for the MCP servers.
    has_awaited_servers: bool,
    /// Cancelled when the process should end.
    pub(super) ending: CancellationToken,
}

/// Why no earlier conversation is resumed.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotResumed {
    #[error("this conversation: {0}")]
    Chosen(ResumeError),
    #[error("the conversations of this directory: {0}")]
    Listed(ResumeError),
    #[error("the last conversation of this directory: {0}; --resume lists the others")]
    LastIsOpen(ResumeError),
    #[error("the last conversation of this directory: {0}")]
    Last(ResumeError),
    #[error("no conversation was chosen")]
    NoneChosen,
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
            approvals: Arc::new(approvals),
            journal,
            screen,
            root,
            allowed: Arc::default(),
            state_dir: PathBuf::new(),
            yes: false,
            greeting: Vec::new(),
            keeps_calls: false,
            sandbox: String::new(),
            doubt: None,
            is_attended: false,
            price_of: Arc::new(|_, _| None),
            typed: None,
            own_outputs: Vec::new(),
            has_awaited_servers: false,
            ending: CancellationToken::new(),
        }
    }

    /// Lists the conversations of this directory and resumes the chosen one. Begins a new one if the person
    /// chooses none.
    pub(super) async fn resume_chosen(&mut self) -> Result<(), NotResumed> {
        match self.choose_past("Enter begins a new conversation").await? {
            Some(id) => self.resume(&id).await,
            None => Ok(()),
        }
    }

    /// Lets the person choose a conversation. This one is closed and that one resumed; if they choose none,
    /// this one goes on.
    async fn change_conversation(&mut self) -> Result<(), NotResumed> {
        let Some(id) = self.choose_past("Enter keeps this conversation").await? else { return Ok(()) };
        self.conversation.close().await;
        self.own_outputs.clear();
        self.screen.forget_conversation();
        self.resume(&id).await?;
        self.return_to_last_model().await;
        Ok(())
    }

    async fn resume(&mut self, id: &str) -> Result<(), NotResumed> {
        self.conversation.resume(id).await.map_err(NotResumed::Chosen)?;
        self.show_last_exchanges();
        Ok(())
    }

    /// Lists the conversations of this directory and returns the id of the chosen one. `none`: the effect of
    /// an empty line.
    async fn choose_past(&mut self, none: &str) -> Result<Option<String>, NotResumed> {
        let past = self.conversation.list_past(SHOWN_PAST).await.map_err(NotResumed::Listed)?;
        if past.is_empty() {
            self.show_note("there is no earlier conversation in this directory; this is a new one");
            return Ok(None);
        }
        let now = clock::now();
        for (index, conversation) in past.iter().enumerate() {
            let age = format_age(now.saturating_sub(conversation.updated));
            let title = one_line(&conversation.title, 60);
            self.screen.write_line(&format!("{:>3}  {age:>10}  {title}", index + 1));
        }
        loop {
            let Input::Text { text, .. } = editor::read_line(&format!("Number ({none}): "), "") else {
                return Err(NotResumed::NoneChosen);
            };
            match chosen_index(&text, past.len()) {
                Ok(chosen) => return Ok(chosen.map(|chosen| past[chosen].id.clone())),
                Err(why) => self.show_problem(&why),
            }
        }
    }

    /// Resumes the last conversation of this directory; false without one.
    pub(super) async fn resume_last(&mut self, others: &[String]) -> Result<bool, NotResumed> {
        self.conversation.resume_last(others).await.map_err(|why| match why {
            ResumeError::OpenElsewhere => NotResumed::LastIsOpen(why),
            why => NotResumed::Last(why),
        })
    }

    /// Shows where the conversation is that was resumed. `is_resumed`: there was one.
    pub(super) fn show_resumed(&mut self, is_resumed: bool) {
        let turns = transcript::turns_text(self.conversation.entries());
        let is_interrupted = self.conversation.is_interrupted();
        let during = self.conversation.interrupted_call().map(|call| {
            let arguments = serde_json::from_str(&call.arguments).unwrap_or_default();
            let subject = tools::named_subject(&arguments).unwrap_or_default();
            format!(" during {} {}", call.name, one_line(subject, 60))
        });
        let interrupted = if is_interrupted {
            format!("; its last turn was interrupted{}", during.unwrap_or_default())
        } else {
            String::new()
        };
        let text = if is_resumed {
            format!("continuing the last conversation ({turns}){interrupted}")
        } else {
            "there is no earlier conversation in this directory; this is a new one".to_owned()
        };
        self.show_note(&text);
        self.show_last_exchanges();
    }

    fn show_last_exchanges(&mut self) {
        self.screen.outputs_mut().add_earlier(self.conversation.entries());
        self.screen.reasoning_mut().set_earlier(&transcript::last_reasoning(
            self.conversation.entries(),
            self.conversation.open_outcome(),
        ));
        let (entries, outcome) = (self.conversation.entries(), self.conversation.open_outcome());
        let exchanges = transcript::last_exchanges(entries, outcome, SHOWN_EXCHANGES);
        for (index, (question, answer)) in exchanges.iter().enumerate() {
            self.screen.show_exchange(question, answer, index + 1 == exchanges.len());
        }
    }

    fn show_note(&mut self, text: &str) {
        let paint = self.screen.paint();
        self.screen.write_note(text, |line| paint.dim(line));
    }

    fn show_problem(&mut self, text: &str) {
        let paint = self.screen.paint();
        self.screen.write_note(text, |line| paint.red(line));
    }

    /// Talks until the person leaves.
    pub(super) fn talk(&mut self, runtime: &Runtime, state_dir: &Path) -> Result<(), String> {
        let names = editor::Names::default();
        runtime.spawn(learn_names(Arc::clone(&self.models), Arc::clone(&names)));
        let journal = Arc::clone(&self.journal);
        runtime.spawn(async move { begin_servers(&journal).await });
        let lines = Lines::open(state_dir, &self.root, self.screen.paint(), names);
        let mut lines = lines.map_err(|error| format!("the line editor cannot be started: {error}"))?;
        // Ctrl-C in a pager is not for the chat.
        let _interrupts = runtime.block_on(async { signal(SignalKind::interrupt()) });
        let mut leaving: Option<Instant> = None;
        loop {
            self.screen.write_text("\n");
            let mut typed = self.typed.replace(TypedText::default()).unwrap_or_default();
            let input = match typed.take_input() {
                _ if typed.text == END => Input::End,
                Some(sent) => {
                    self.typed = Some(typed);
                    let shown = make_visible(sent.trim_end());
                    self.screen.write_line(&format!("{}{shown}", self.screen.paint().cyan(PROMPT)));
                    lines.take_typed(&sent)
                }
                None => lines.read_input(&typed.text),
            };
            match input {
                Input::End => return Ok(()),
                Input::Interrupt if leaving.is_some_and(|at| at.elapsed() < LEAVE_WITHIN) => return Ok(()),
                Input::Interrupt => {
                    leaving = Some(Instant::now());
                    self.show_note("Ctrl-C again, or Ctrl-D, to leave");
                    continue;
                }
                Input::Output(text) => {
                    self.screen.answer_output(None);
                    self.typed = Some(TypedText::draft(text));
                }
                Input::Editor(text) => self.typed = Some(TypedText::draft(self.edit_text(text))),
                Input::Text { text, .. } if text.trim().is_empty() => {}
                Input::Text { line, text } => match command::read_command(&text) {
                    None => runtime.block_on(self.take_input(&line, &text)),
                    Some(Err(error)) => self.show_problem(&error.to_string()),
                    Some(Ok(Command::Quit)) => return Ok(()),
                    Some(Ok(command)) => runtime.block_on(self.run_command(command)),
                },
            }
            if self.ending.is_cancelled() {
                return Ok(());
            }
            leaving = None;
        }
    }

    /// Lets the person go on with a text in their editor.
    fn edit_text(&mut self, text: String) -> String {
        external_editor::edit_text(&text).unwrap_or_else(|error| {
            self.show_problem(&format!("the text could not be edited: {error}"));
            text
        })
    }

    /// Shows what the chat works with.
    pub(super) fn greet(&mut self) {
        let paint = self.screen.paint();
        let model = one_line(&self.conversation.agent_mut().config.model, 1_000);
        let root = one_line(&self.root.display().to_string(), 1_000);
        let columns = |text: &str| text.chars().map(char_width).sum::<usize>();
        let fits = columns(&format!("respool chat {model} · {root}")) <= terminal_columns();
        let gap = if fits { " · " } else { "\n" };
        self.screen.write_line(&format!("{} {}{gap}{root}", paint.bold("respool chat"), paint.cyan(&model)));
        for line in std::mem::take(&mut self.greeting) {
            self.show_note(&line);
        }
        if let Some(doubt) = self.doubt.take() {
            self.show_problem(&doubt);
        }
    }

    /// Runs the person's own command, or sends their words to the model. `line`: without pasted texts, which
    /// mention no files.
    async fn take_input(&mut self, line: &str, text: &str) {
        if let Some(command) = own_command(text) {
            return match futile_command(command) {
                Some(why) => self.show_problem(why),
                None => self.run_own(command).await,
            };
        }
        let attached = attach_files(line, &self.root, false);
        for Mention { note, is_problem } in attached.mentions {
            if is_problem { self.show_problem(&note) } else { self.show_note(&note) }
        }
        let learned: String =
            self.own_outputs.drain(..).flat_map(|output| ["\n\n".to_owned(), output]).collect();
        self.take_turn(&format!("{text}{}{learned}", attached.text), attached.pictures).await;
    }

    async fn run_own(&mut self, command: &str) {
        let (root, ending, began) = (self.root.clone(), self.ending.clone(), Instant::now());
        let screen = &mut self.screen;
        let (sender, mut keys) = mpsc::unbounded_channel();
        let passed = PassedKeys::begin(sender);
        let show = |bytes: &[u8]| screen.write_bytes(bytes);
        let ended = run_own_command(command, &root, &ending, &mut keys, show).await;
        drop(passed);
        let mut ended = match ended {
            Ok(ended) => ended,
            Err(error) => return self.show_problem(&format!("the shell cannot be started: {error}")),
        };
        while let Ok(more) = keys.try_recv() {
            ended.unread.extend(more);
        }
        self.keep_typed(&terminal::unread_text(&ended.unread), ended.code == Some(0));
        let text = ended.output.text();
        // The terminal has shown the key that interrupted it.
        if ended.code.is_none() || !(text.is_empty() || text.ends_with('\n')) {
            self.screen.write_text("\n");
        }
        let end = match ended.code {
            Some(0) => String::new(),
            Some(code) => format!("exit code {code} · "),
            None => "ended by a signal · ".to_owned(),
        };
        self.show_note(&format!(
            "{end}{} · the model learns it with your next message",
            format_seconds(began.elapsed())
        ));
        self.own_outputs.push(describe_own_command(command, &ended));
    }

    /// Runs a turn and shows how it ended.
    async fn take_turn(&mut self, text: &str, pictures: Vec<Value>) {
        let began = Instant::now();
        let before = self.conversation.total_cost();
        let outcome = self.run_turn(text, pictures).await;
        let spent = self.conversation.total_cost().less(&before);
        if let Some(why) = why_not(&outcome) {
            let advice = outcome.failure.as_ref().map(|failure| next_step(&failure.code, spent.calls > 0));
            self.show_problem(&format!("{}{}", why.trim_end_matches('.'), advice.unwrap_or_default()));
        }
        let took = began.elapsed().saturating_sub(self.screen.asked_in_turn());
        let hint =
            if self.screen.reasoning_mut().take_news() { " · /thinking shows its reasoning" } else { "" };
        self.show_note(&format!("\n{}{}{hint}", format_seconds(took), cost_summary(&spent)));
    }

    /// Runs one turn, and says if the model cannot see its pictures; the relay then sends words instead.
    pub(super) async fn run_turn(&mut self, text: &str, pictures: Vec<Value>) -> Outcome {
        let model = self.conversation.agent_mut().config.model.clone();
        let (models, has_pictures) = (Arc::clone(&self.models), !pictures.is_empty());
        let is_blind = || has_pictures && models.takes_only_text(&model);
        let told = format!(
            "{} cannot see pictures: it learns only that there was one; /model lists others",
            one_line(&model, 200)
        );
        let was_known = is_blind();
        if was_known {
            self.screen.show(Shown::Warning(told.clone()));
        }
        let outcome = self.watch_turn(text, pictures).await;
        if !was_known && is_blind() {
            self.screen.show(Shown::Warning(told));
        }
        outcome
    }

    async fn watch_turn(&mut self, text: &str, pictures: Vec<Value>) -> Outcome {
        let (screen, inbox) = mpsc::unbounded_channel();
        let lookups = self.lookups();
        let stop = self.ending.child_token();
        let observer = observer_of(&screen, &lookups.costs);
        let (observer, repeats_itself) = stopping_repetition(observer, stop.clone());
        let stop_after_call = CancellationToken::new();
        let observer = stopping_after_calls(observer, stop_after_call.clone(), stop.clone());
        let (yes, allowed, root) = (self.yes, Arc::clone(&self.allowed), self.root.clone());
        let (only_looks, shown) = (self.screen.is_read_only(), screen.clone());
        let approver: Arc<dyn Approver> =
            Arc::new(Person { yes, only_looks, allowed, root, stop: stop_after_call, screen });
        self.journal.begin_turn();
        let has_awaited = std::mem::replace(&mut self.has_awaited_servers, true);
        let awaited = awaited_servers(&self.journal).filter(|_| !has_awaited);
        match &awaited {
            Some(servers) => self.screen.begin_wait(servers),
            None => self.screen.begin_turn(),
        }
        self.screen.set_draft(self.typed.clone().unwrap_or_default());
        let text = if only_looks { with_mode(text) } else { text.to_owned() };
        let journal = Arc::clone(&self.journal);
        let (conversation, ends) = (&mut self.conversation, stop.clone());
        let work = async move {
            if awaited.is_some() {
                tokio::select! {
                    () = start_servers(&journal, &shown) => {}
                    // A conversation would keep the tools that it began with.
                    () = ends.cancelled() => return Outcome { cancelled: true, ..Outcome::default() },
                }
            }
            conversation.run_turn(&text, pictures, observer, Some(approver), ends).await
        };
        let (view, lookups) = (&mut self.screen, Some(lookups));
        let (mut outcome, typed) =
            Watched { view, inbox, allowed: &self.allowed, stop, is_attended: self.is_attended, lookups }
                .watch(work)
                .await;
        let mut unfinished = view.unfinished_text().filter(|_| outcome.cancelled);
        if outcome.cancelled && repeats_itself.load(Ordering::Relaxed) {
            unfinished = Some(repetition::NOTE.to_owned());
            outcome = Outcome { failure: Some(repetition::failure()), cancelled: false, ..outcome };
        }
        view.end_turn();
        self.keep_typed(&typed, why_not(&outcome).is_none());
        if let Some(text) = unfinished {
            self.conversation.add_note(text).await;
        }
        outcome
    }

    /// Has the model summarise the conversation.
    async fn compact(&mut self) {
        let (screen, inbox) = mpsc::unbounded_channel();
        let stop = self.ending.child_token();
        self.screen.begin_turn();
        let lookups = self.lookups();
        let work = self.conversation.compact(observer_of(&screen, &lookups.costs), stop.clone());
        let (view, lookups) = (&mut self.screen, Some(lookups));
        let (done, typed) =
            Watched { view, inbox, allowed: &self.allowed, stop, is_attended: self.is_attended, lookups }
                .watch(work)
                .await;
        view.end_turn();
        self.keep_typed(&typed, done.is_ok());
        match done {
            Ok((before, after)) => self.show_note(&format!(
                "summarised{}: the conversation had about {} tokens, now {}",
                if after < before { "" } else { ", but the summary is not shorter" },
                format_thousands(before),
                format_thousands(after)
            )),
            Err(why) => self.show_problem(&format!("not summarised: {why}")),
        }
    }

    /// Returns what the commands that only look need.
    fn lookups(&mut self) -> Lookups {
        Lookups {
            models: Arc::clone(&self.models),
            approvals: Arc::clone(&self.approvals),
            journal: Arc::clone(&self.journal),
            root: self.root.clone(),
            allowed: Arc::clone(&self.allowed),
            yes: self.yes,
            is_read_only: self.screen.is_read_only(),
            sandbox: self.sandbox.clone(),
            repository: Repository::find(&self.root),
            price_of: Arc::clone(&self.price_of),
            model: self.conversation.agent_mut().config.model.clone(),
            costs: Arc::new(Mutex::new(Costs::from_conversation(&self.conversation))),
        }
    }

    /// Keeps what was typed before the first prompt.
    pub(super) fn keep_typed_before(&mut self, typed: TypedText) {
        self.typed = Some(typed);
    }

    /// Keeps what was typed for the next prompt, if one follows. After Enter it is sent, unless the person
    /// first has to see how the turn ended.
    fn keep_typed(&mut self, typed: &TypedText, has_ended_well: bool) {
        if let Some(kept) = &mut self.typed {
            if kept.text.is_empty() || typed.text != END {
                kept.append(typed);
            }
            if !has_ended_well {
                kept.ends.clear();
            }
        }
    }

    /// Returns what goes along with a prompt for the files of this directory that its `line` mentions.
    pub(super) fn attach_mentioned(&mut self, line: &str) -> Attached {
        let mut attached = attach_files(line, &self.root, true);
        for Mention { note, .. } in attached.mentions.drain(..) {
            self.screen.show(Shown::Note(note));
        }
        attached
    }

    /// Returns true if the reader of standard output has gone.
    pub(super) fn has_lost_reader(&mut self) -> bool {
        self.screen.answers_mut().has_failed()
    }

    /// Ends the answer of a prompt: writes it if it was not streamed, and the `result` as the last event.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub(super) fn end_answer(&mut self, outcome: &Outcome, result: &Value) -> std::io::Result<()> {
        let error = match self.screen.answers_mut() {
            Answers::Screen => None,
            Answers::Plain(plain) => {
                if outcome.has_answer() && !plain.has_replies() {
                    plain.push(&outcome.content);
                    plain.end_reply();
                }
                plain.take_error()
            }
            Answers::Events(events) => {
                events.write(result);
                events.take_error()
            }
        };
        error.map_or(Ok(()), Err)
    }

    /// Returns true if a call was denied where no person can be asked.
    pub(super) fn lacks_consent(&self) -> bool {
        !self.yes && !self.is_attended && self.screen.has_denied()
    }

    /// Runs a command. Ctrl-C ends one that only asks endpoints or git, which may not answer.
    async fn run_command(&mut self, command: Command) {
        if !matches!(command, Command::Model(_) | Command::Diff) {
            return self.apply_command(command).await;
        }
        let mut interrupts = signal(SignalKind::interrupt()).ok();
        let ending = self.ending.clone();
        let is_stopped = tokio::select! {
            () = self.apply_command(command) => false,
            () = wait_for_signal(&mut interrupts) => true,
            () = ending.cancelled() => true,
        };
        if is_stopped {
            self.show_problem("stopped");
        }
    }

    async fn apply_command(&mut self, command: Command) {
        match command {
            Command::Model(Some(id)) => self.choose_model(&id).await,
            Command::ReadOnly(wanted) => self.set_read_only(wanted),
            Command::Ask => self.ask_again(),
            Command::Keep => self.keep_allowed(),
            Command::Output(number) => self.screen.answer_output(number.as_deref()),
            Command::Thinking => self.screen.answer_thinking(!self.conversation.entries().is_empty()),
            Command::Clear => {
                self.conversation.close().await;
                self.own_outputs.clear();
                self.screen.forget_conversation();
                self.show_note("a new conversation begins; --continue can still resume the last one");
            }
            Command::Compact => self.compact().await,
            Command::Resume => {
                if let Err(why) = self.change_conversation().await {
                    self.show_problem(&why.to_string());
                }
            }
            Command::Save(path) => self.save_transcript(path.as_deref()).await,
            Command::Undo => self.undo_turn().await,
            Command::Quit => {}
            looking => {
                let found = self.lookups().look_up(looking).await;
                self.screen.show_found(&found);
            }
        }
    }

    /// Goes on with the model that a resumed conversation asked last, if an upstream still has it.
    pub(super) async fn return_to_last_model(&mut self) {
        let current = self.conversation.agent_mut().config.model.clone();
        let last = self.conversation.last_model().filter(|last| *last != current).map(str::to_owned);
        let Some(last) = last else { return };
        match models::find_model(&self.models, Some(&last)).await {
            Ok((model, None)) => {
                self.show_note(&format!("the next turn goes to {last}, as the last one did"));
                super::talk_to(self.conversation.agent_mut(), self.models.as_ref(), model);
            }
            Ok((_, Some(others))) => self.show_problem(&format!(
                "the last turn went to {last}, the next one goes to {current}: {}",
                models::doubt_text(&others)
            )),
            Err(why) => self.show_problem(&why.to_string()),
        }
    }

    async fn choose_model(&mut self, id: &str) {
        match models::find_model(&self.models, Some(id)).await {
            Ok((_, Some(others))) if !others.is_empty() => {
                self.show_problem(&format!("the model stays: {}", models::doubt_text(&others)));
            }
            Ok((model, doubt)) => {
                let doubt = doubt.map(|others| format!("; {}", models::doubt_text(&others)));
                self.show_note(&format!("the next turn goes to {id}{}", doubt.unwrap_or_default()));
                super::talk_to(self.conversation.agent_mut(), self.models.as_ref(), model);
            }
            Err(why) => self.show_problem(&why.to_string()),
        }
    }

    async fn save_transcript(&mut self, path: Option<&str>) {
        let stamp = clock::format_time(clock::now());
        let default = format!("chat-{}.md", stamp.replace([':', '-'], "").trim_end_matches('Z'));
        // In the directory of a project, `git add -A` would find it.
        let path =
            path.map_or_else(|| self.state_dir.join("saved").join(default), |path| self.root.join(path));
        let entries = self.conversation.whole_transcript().await;
        let text = transcript::conversation_markdown(&entries, self.conversation.open_outcome());
        let written = write_new(&path, &text);
        match written {
            Ok(()) => self.show_note(&format!("saved as {}", path.display())),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                self.show_problem(&format!(
                    "{} exists, and is not overwritten: name another file",
                    path.display()
                ));
            }
            Err(error) => self.show_problem(&format!("{} was not written: {error}", path.display())),
        }
    }

    async fn undo_turn(&mut self) {
        let undone = match self.journal.undo_turn() {
            Ok(undone) => undone,
            Err(why) => return self.show_problem(&why.to_string()),
        };
        let names = |paths: &[PathBuf]| {
            paths
                .iter()
                .map(|path| one_line(&path.display().to_string(), 1_000))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let restored = (!undone.files.is_empty()).then(|| format!("restored: {}", names(&undone.files)));
        let removed = (!undone.removed.is_empty()).then(|| format!("removed: {}", names(&undone.removed)));
        let files = restored.into_iter().chain(removed).collect::<Vec<_>>().join("; ");
        self.show_note(&files);
        if undone.commands > 0 {
            self.show_note(&format!(
                "the effects of {} of that turn remain",
                format_count(undone.commands, "command")
            ));
        }
        if !undone.lost.is_empty() {
            self.show_problem(&format!("not restored, because too large: {}", names(&undone.lost)));
        }
        let note = format!("The person undid your last changes of files; {files}");
        self.conversation.add_note(note).await;
    }

    /// Says how the conversation can go on.
    pub(super) fn show_way_back(&mut self) {
        if !self.ending.is_cancelled() && !self.conversation.entries().is_empty() {
            self.show_note("respool chat --continue goes on with this conversation");
        }
    }
}

/// Writes a file that is not there yet, for its owner alone.
fn write_new(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

/// Learns the names of the models, for completion.
async fn learn_names(models: Arc<dyn ModelDirectory>, names: editor::Names) {
    let listed = join_all(models.list_models()).await;
    let aliases = models.aliases().into_iter().map(|(alias, _)| alias);
    let all = aliases.chain(listed.into_iter().flatten().flatten().map(|model| model.id));
    // A name with signs that act on a terminal is not written into the prompt.
    let all = all.filter(|name| one_line(name, 200) == *name).collect();
    *names.lock().unwrap_or_else(PoisonError::into_inner) = all;
}

/// Says what commands made whose turns were stopped.
pub(super) fn say_notes(notes: &[String]) {
    for note in notes {
        let _ = writeln!(std::io::stderr(), "respool: {}", one_line(note, 1_000));
    }
}

/// Waits until the terminal hangs up or the process receives a signal to end. Then it stops the turn, which
/// ends its commands, and restores the terminal. The conversation can be resumed.
pub(super) async fn end_on_signal(ending: CancellationToken, found: Option<SavedTerminal>) {
    let ends = [SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()].map(signal);
    let [Ok(mut terminate), Ok(mut hangup), Ok(mut quit)] = ends else { return };
    tokio::select! { _ = terminate.recv() => {}, _ = hangup.recv() => {}, _ = quit.recv() => {} }
    ending.cancel();
    tokio::time::sleep(END_WITHIN).await;
    let notes = end_commands().await;
    if let Some(found) = found {
        found.restore();
    }
    say_notes(&notes);
    remove_temporary_directories();
    std::process::exit(143);
}
