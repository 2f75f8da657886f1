//! A coding assistant in the terminal: the agents' loop with four tools and a person who watches and
//! answers.
//!
//! `session` is one conversation and its turns; `screen` shows them, `editor` reads what the person writes,
//! `approval` asks. Everything that reaches the model or a tool goes through `agent` and `tools`. Called by
//! `cli`.

mod answers;
mod approval;
mod approvals;
mod attachments;
mod changes;
mod command;
mod editor;
mod emphasis;
mod external_editor;
mod figures;
mod greeting;
mod harmless;
mod journal;
mod kept;
mod lookups;
mod markdown;
mod models;
mod outputs;
mod own_command;
mod pager;
mod paint;
mod past;
mod pastes;
mod pictures;
mod preview;
mod project_rules;
mod reasoning;
mod repetition;
mod screen;
mod session;
mod tables;
mod terminal;
mod transcript;
mod turn_end;
mod typed;
mod watched;
mod wrapping;

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use agent::{Agent, AgentConfig, ChatModel, Conversation, Spent, Supervision};
use answers::{Answers, EventLines, PlainText};
use approvals::Approvals;
pub use approvals::EventOfRun;
pub use greeting::Sources;
use journal::Journal;
use models::FoundModel;
pub use models::{ListedModel, ModelDirectory, NoModels, PriceOf};
use paint::Paint;
use screen::{Screen, Shown};
use session::{NotResumed, Session};
use store::Store;
use telemetry::ErrorReport;
use terminal::SavedTerminal;
use tools::programs::holds_home;
use tools::{PolicyConfig, Rule, ToolSet, ToolsConfig, Verdict, sandbox_level};
use typed::TypedText;
use watched::Watched;
use wire::units::Size;

/// The system prompt for users without their own.
pub const SYSTEM_PROMPT: &str = include_str!("systematic_exploration_prompt.md");

/// The name of the chat in the store; no agent may have it.
pub const NAME: &str = "respool chat";
/// The exit code of a program that Ctrl-C ended.
pub const INTERRUPTED: u8 = 130;
/// The assumed window of a model in tokens, if neither the server nor the configuration names one.
const WINDOW: u64 = 128 * 1024;
/// The most tokens of one reply; never more than a quarter of the window.
const REPLY: u64 = 16 * 1024;

/// Which earlier conversation of the directory goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resume {
    /// None: a new one begins.
    #[default]
    Nothing,
    /// The last one.
    Last,
    /// A conversation that the person chooses from a list.
    Chosen,
}

/// Everything that a chat needs.
pub struct Setting {
    /// The ports to the product.
    pub ports: Ports,
    /// `[tools]`: policy, timeouts, limits.
    pub tools: ToolsConfig,
    /// The store of conversations; `None` when they are not stored.
    pub store: Option<Arc<Store>>,
    /// The daily error report.
    pub report: ErrorReport,
    /// Whether message text may be logged.
    pub log_content: bool,
    /// The directory for the history of inputs.
    pub state_dir: PathBuf,
    /// The directory to work in.
    pub workspace: PathBuf,
    /// The system prompt.
    pub system: String,
    /// The sources of these settings, to be shown.
    pub sources: Sources,
    /// The options of the command line and the environment.
    pub options: ChatOptions,
}

/// The ports of a chat to the product.
pub struct Ports {
    /// The way to the models.
    pub chat_model: Arc<dyn ChatModel>,
    /// The available models.
    pub models: Arc<dyn ModelDirectory>,
    /// Prices tokens.
    pub price_of: PriceOf,
    /// Finds the events that calls of experts are about.
    pub event_of_run: EventOfRun,
}

/// The options of the command line and the environment.
#[derive(Default)]
pub struct ChatOptions {
    /// The model; `None` for the first that the endpoint names.
    pub model: Option<String>,
    /// Whether to run calls without asking.
    pub yes: bool,
    /// Whether only calls that look may run, until the person ends that.
    pub read_only: bool,
    /// The earlier conversation to resume.
    pub resume: Resume,
    /// The operator's key with which the person decides requests of agents and experts.
    pub operator_key: Option<String>,
    /// A prompt to answer before the process ends.
    pub prompt: Option<String>,
    /// The words of the prompt that may mention files.
    pub prompt_line: Option<String>,
    /// The first message, which the person need not type again.
    pub message: Option<String>,
    /// Whether standard output gets events as lines of JSON, with a prompt.
    pub json: bool,
}

/// Why the chat could not begin, or the prompt was not answered.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    /// For this reason.
    #[error("{0}")]
    Failed(String),
    /// The person stopped it.
    #[error("stopped")]
    Stopped,
}

/// Talks until the person leaves, or answers one prompt.
///
/// # Errors
/// The reason why it could not begin, or why the prompt was not answered.
pub fn run_chat(setting: Setting, runtime: &Runtime) -> Result<(), NoAnswer> {
    let terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
    let (prompt, json) = (setting.options.prompt.clone(), setting.options.json);
    let line = setting.options.prompt_line.clone().unwrap_or_default();
    let state_dir = setting.state_dir.clone();
    let screen = new_screen(prompt.is_some(), json);
    let ending = CancellationToken::new();
    // The settings as they are now: the line editor changes them.
    let found = SavedTerminal::read();
    let end = runtime.spawn(session::end_on_signal(ending.clone(), found));
    let mut session = match runtime.block_on(begin_session(setting, screen, terminal, &ending)) {
        Ok(session) => session,
        Err(why) => {
            if ending.is_cancelled() {
                let _ = runtime.block_on(end);
            }
            if json {
                EventLines::new(Box::new(io::stdout())).write(&result_event(
                    "",
                    Some((&why, 1)),
                    &Spent::default(),
                    Duration::ZERO,
                ));
            }
            return Err(NoAnswer::Failed(why));
        }
    };
    let done = match prompt {
        Some(prompt) => runtime.block_on(answer_once(&mut session, &prompt, &line)),
        None => {
            session.talk(runtime, &state_dir).inspect(|()| session.show_way_back()).map_err(NoAnswer::Failed)
        }
    };
    runtime.block_on(session.conversation.close());
    session::say_notes(&runtime.block_on(tools::end_commands()));
    if ending.is_cancelled() {
        // It ends the process.
        let _ = runtime.block_on(end);
    }
    done
}

/// With a prompt, only the model's words belong on standard output, unless a person sees both outputs.
fn new_screen(has_prompt: bool, json: bool) -> Screen {
    let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    let (out, err) = (io::stdout().is_terminal(), io::stderr().is_terminal());
    match has_prompt {
        true if json => {
            let events = Answers::Events(EventLines::new(Box::new(io::stdout())));
            Screen::new(Box::new(io::sink()), Paint(false), false, events)
        }
        true if !(out && err) => {
            let moves = err && !dumb;
            let words = Answers::Plain(PlainText::new(Box::new(io::stdout())));
            Screen::new(Box::new(io::stderr()), Paint(colours && moves), moves, words)
        }
        _ => Screen::new(Box::new(io::stdout()), Paint(colours && !dumb), !dumb, Answers::Screen),
    }
}

/// Finds the model while the person sees what is waited for. Returns what they typed meanwhile, too.
async fn find_first_model(
    setting: &Setting,
    screen: &mut Screen,
    stop: CancellationToken,
) -> (Result<FoundModel, NoModels>, TypedText) {
    let ((sender, inbox), allowed) = (mpsc::unbounded_channel(), Mutex::default());
    screen.begin_wait("starting: asking the model server for its models");
    let stopped = stop.clone();
    let (models, wanted) = (&setting.ports.models, setting.options.model.as_deref());
    let waits = |why: String| drop(sender.send(Shown::ServerAwaited(Some(format!("{why}; trying again")))));
    let work = async {
        tokio::select! {
            found = models::await_model(models, wanted, waits) => found,
            () = stopped.cancelled() => Err(NoModels::Stopped),
        }
    };
    let is_attended = setting.options.prompt.is_none();
    let watched = Watched { view: screen, inbox, allowed: &allowed, stop, is_attended, lookups: None };
    let found = watched.watch(work).await;
    screen.end_turn();
    found
}

async fn begin_session(
    setting: Setting,
    mut screen: Screen,
    terminal: bool,
    ending: &CancellationToken,
) -> Result<Session, String> {
    let (found, typed) = find_first_model(&setting, &mut screen, ending.child_token()).await;
    let (model, doubt) = found.map_err(|why| match (&why, setting.options.resume) {
        (NoModels::Stopped, _) | (_, Resume::Nothing) => why.to_string(),
        (_, Resume::Last | Resume::Chosen) => {
            format!("{why}; with --model ID the conversation opens without asking a server")
        }
    })?;
    let root = setting.workspace.canonicalize();
    let root = root.map_err(|error| format!("{} cannot be used: {error}", setting.workspace.display()))?;
    let policy = chat_policy(&setting.tools.policy, holds_home(&root));
    let tools = ToolSet::open_for_chat(&setting.tools, &policy, &root)?;
    let journal = Arc::new(Journal::new(Arc::new(tools), root.clone()));
    let unlisted = doubt.map(|others| {
        format!("{}: {}", wire::visible::one_line(&model.id, 200), models::doubt_text(&others))
    });
    let (prompt, rules) = project_rules::add_rules(&setting.system, &root);
    let agent = build_agent(&setting, prompt, model, Arc::clone(&journal));
    // `--continue` resumes no single question, except with `-p`.
    let (talks, questions) = (format!("{NAME} {}", root.display()), format!("{NAME} -p {}", root.display()));
    let (place, others) =
        if setting.options.prompt.is_some() { (questions, vec![talks]) } else { (talks, Vec::new()) };
    let models = Arc::clone(&setting.ports.models);
    let approvals = Approvals {
        store: setting.store.clone(),
        operator_key: setting.options.operator_key.clone(),
        event_of_run: setting.ports.event_of_run,
    };
    let conversation = Conversation::new(agent, setting.store, setting.report, setting.log_content, place);
    let session_root = root.clone();
    screen.set_read_only(setting.options.read_only);
    let mut session = Session::new(conversation, models, approvals, journal, screen, root);
    session.greeting =
        greeting::greeting_lines(&setting.sources, rules.as_deref(), &setting.tools, &setting.options);
    session.greeting.extend(greeting::partial_line(&session_root));
    session.state_dir = setting.state_dir;
    let level = sandbox_level(&setting.tools.local);
    session.keeps_calls = level.has_namespaces();
    if setting.options.prompt.is_none() {
        session.use_kept();
    }
    session.sandbox = greeting::sandbox_line(&setting.tools.local, &level);
    let doubts: Vec<String> = unlisted.into_iter().chain(greeting::home_warning(&session_root)).collect();
    session.doubt = (!doubts.is_empty()).then(|| doubts.join("\n"));
    session.yes = setting.options.yes;
    session.is_attended = terminal;
    session.ending = ending.clone();
    match setting.options.message {
        Some(text) => session.keep_typed_before(TypedText::message(text)),
        None if setting.options.prompt.is_some() => {}
        // Which conversation it is for, the person has yet to choose.
        None if setting.options.resume == Resume::Chosen => {
            session.keep_typed_before(TypedText::draft(typed.text));
        }
        None => session.keep_typed_before(typed),
    }
    session.price_of = setting.ports.price_of;
    let greets = setting.options.prompt.is_none();
    let resumed = resume_and_greet(&mut session, setting.options.resume, &others, greets).await;
    resumed.map_err(|why| why.to_string())?;
    if setting.options.model.is_none() {
        session.return_to_last_model().await;
    }
    // Not earlier: the resumed conversation may be old.
    session.conversation.clear_old();
    Ok(session)
}

/// Resumes the wanted conversation and greets the person, unless the last one cannot be resumed.
async fn resume_and_greet(
    session: &mut Session,
    resume: Resume,
    others: &[String],
    greets: bool,
) -> Result<(), NotResumed> {
    let last = if resume == Resume::Last { Some(session.resume_last(others).await?) } else { None };
    if greets {
        session.greet();
    }
    if let Some(is_resumed) = last {
        session.show_resumed(is_resumed);
    }
    if resume == Resume::Chosen { session.resume_chosen().await } else { Ok(()) }
}

fn build_agent(setting: &Setting, prompt: String, model: ListedModel, tools: Arc<Journal>) -> Agent {
    let config = AgentConfig {
        max_iterations: 200,
        run_timeout: Duration::from_hours(24),
        model_timeout: Duration::from_mins(30),
        tool_timeout: Duration::from_mins(10),
        result_limit: Size::kib(32),
        ..AgentConfig::default()
    };
    let mut agent = Agent {
        name: NAME.into(),
        config,
        prompt: Some(prompt),
        model: Arc::clone(&setting.ports.chat_model),
        tools,
        target: String::new(),
        window: None,
        reasoning: None,
        supervision: Supervision { grows_cut_replies: true, ..Supervision::default() },
    };
    talk_to(&mut agent, setting.ports.models.as_ref(), model);
    agent
}

/// Makes this the model of the agent.
fn talk_to(agent: &mut Agent, models: &dyn ModelDirectory, model: ListedModel) {
    let window = model.window.unwrap_or(WINDOW);
    agent.config.max_tokens = u32::try_from(REPLY.min(window / 4)).unwrap_or(u32::MAX);
    agent.target = models.target(&model.id);
    agent.window = model.window;
    agent.config.model = model.id;
}

/// Returns the configured policy; where it says `ask` to everything, reading has no effect and needs no
/// question, unless there are keys.
fn chat_policy(configured: &PolicyConfig, has_keys: bool) -> PolicyConfig {
    let mut policy = configured.clone();
    if policy.default == Verdict::Ask && !has_keys {
        policy.rule.push(Rule { tool: Some("read_file".into()), then: Verdict::Allow, ..Rule::default() });
    }
    policy
}

/// Answers one prompt. The model's words are written as they come; the last event says how it ended.
async fn answer_once(session: &mut Session, prompt: &str, line: &str) -> Result<(), NoAnswer> {
    let began = Instant::now();
    let attached = session.attach_mentioned(line);
    let outcome = session.run_turn(&format!("{prompt}{}", attached.text), attached.pictures).await;
    let why = match turn_end::why_not(&outcome) {
        None if session.lacks_consent() => Some(
            "a call was not run, because it needs consent: add --yes, or allow it in [tools.policy]"
                .to_owned(),
        ),
        why => why,
    };
    let spent = session.conversation.total_cost();
    if why.is_none() {
        session.conversation.finish().await;
    }
    let exit_code = if outcome.cancelled { INTERRUPTED } else { 1 };
    let failed = why.as_deref().map(|why| (why, exit_code));
    let result = result_event(&outcome.content, failed, &spent, began.elapsed());
    let has_reader = !session.has_lost_reader();
    let written = session.end_answer(&outcome, &result);
    written.map_err(|error| NoAnswer::Failed(format!("standard output cannot be written: {error}")))?;
    match why {
        // It has enough, and the turn was stopped for it.
        _ if outcome.cancelled && !has_reader => Ok(()),
        _ if outcome.cancelled => Err(NoAnswer::Stopped),
        Some(why) => Err(NoAnswer::Failed(why)),
        None => Ok(()),
    }
}

/// Returns the last event of a prompt. `failed`: why, and the exit code.
fn result_event(answer: &str, failed: Option<(&str, u8)>, spent: &Spent, took: Duration) -> Value {
    json!({
        "type": "result",
        "answer": answer.trim_end(),
        "error": failed.map(|(why, _)| why),
        "exit_code": failed.map_or(0, |(_, code)| code),
        "usage": {
            "prompt_tokens": spent.tokens.prompt,
            "completion_tokens": spent.tokens.completion,
            "cached_tokens": spent.tokens.cached,
            "reasoning_tokens": spent.tokens.reasoning,
        },
        "model_calls": spent.calls,
        "duration_ms": clock::to_millis(took),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_needs_consent_only_by_rule() {
        let check = |default: Verdict, has_keys: bool, rules: usize| {
            let policy = chat_policy(&PolicyConfig { default, ..PolicyConfig::default() }, has_keys);
            assert_eq!(policy.rule.len(), rules, "{default:?}");
        };
        check(Verdict::Ask, false, 1);
        // Regression: in a home directory, ~/.ssh was read without a question.
        check(Verdict::Ask, true, 0);
        check(Verdict::Allow, false, 0);
        check(Verdict::Deny, false, 0);
    }
}
