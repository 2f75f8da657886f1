//! Work on a conversation while a person watches it: what it does is shown, questions are asked, commands
//! that only look are answered, and Esc, Ctrl-C and Ctrl-Z are obeyed. Used by `session`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use nix::libc::SIGCONT;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::approval::{Allowed, Asking};
use super::command::{self, Command};
use super::editor::PROMPT;
use super::lookups::{Costs, Found, Lookups};
use super::screen::{Answer, Screen, Shown};
use super::terminal::Quiet;
use super::typed::TypedText;
use agent::{Activity, Observer};
use tools::Consent;
use wire::visible::make_visible;

/// The interval at which the status line moves.
const TICK: Duration = Duration::from_millis(100);

/// How long the answer to a command is waited for when the work is over.
const LAST_ANSWER: Duration = Duration::from_secs(2);
/// The hint at the first "always" of a session.
const UNTIL_YOU_LEAVE: &str = "always lasts until you leave; /keep makes it last in this directory";
const NO_ANSWER: &str = "the command has no answer yet: type it again";

/// Why a call is not asked about after the person said what to do instead of an earlier one of its reply.
const REDIRECTED: &str = "the person said at an earlier call of this reply what to do instead";

/// The result of a call at whose question the person stopped the turn.
const STOPPED: &str = "the person stopped the turn when they were asked about it";

/// Work on a conversation that a person watches.
pub(super) struct Watched<'a> {
    pub(super) view: &'a mut Screen,
    pub(super) inbox: mpsc::UnboundedReceiver<Shown>,
    pub(super) allowed: &'a Mutex<Allowed>,
    pub(super) stop: CancellationToken,
    /// Whether a person can be asked.
    pub(super) is_attended: bool,
    /// Answers commands meanwhile; `None` where they wait.
    pub(super) lookups: Option<Lookups>,
}

/// The commands that are answered while the work goes on.
struct Commands {
    lookups: Option<Lookups>,
    pending: FuturesUnordered<BoxFuture<'static, Found>>,
}

impl Commands {
    /// Takes the commands out of what was typed, and begins to answer them.
    fn begin(&self, quiet: &Quiet, view: &mut Screen) {
        let Some(lookups) = &self.lookups else { return };
        while let Some(line) = quiet.take_line(view.awaits_fresh_line(), command::is_answered_at_once) {
            view.write_line(&format!("\n{}{}", view.paint().cyan(PROMPT), make_visible(&line)));
            match command::read_command(&line) {
                Some(Ok(Command::Output(number))) => view.answer_output(number.as_deref()),
                Some(Ok(Command::Thinking)) => view.answer_thinking(true),
                Some(Ok(command)) => self.pending.push(lookups.clone().look_up(command).boxed()),
                Some(Err(why)) => view.show_found(&Found::problem(why.to_string())),
                None => {}
            }
        }
    }

    /// Shows the answers that are still to come when the work is over.
    async fn finish(mut self, view: &mut Screen) {
        while !self.pending.is_empty() {
            match timeout(LAST_ANSWER, self.pending.next()).await {
                Ok(found) => view.show_found(&found.unwrap_or_default()),
                Err(_) => return view.show_found(&Found::problem(NO_ANSWER.to_owned())),
            }
        }
    }
}

impl Watched<'_> {
    /// Shows the work until it ends, and stops it when the person wants that. Returns its result, and the
    /// text typed meanwhile.
    pub(super) async fn watch<T>(self, work: impl Future<Output = T>) -> (T, TypedText) {
        let Self { view, mut inbox, allowed, stop, is_attended, lookups } = self;
        let mut commands = Commands { lookups, pending: FuturesUnordered::new() };
        let quiet = if is_attended { Quiet::begin().map(Arc::new) } else { None };
        let mut interrupts = signal(SignalKind::interrupt()).ok();
        let mut continues = signal(SignalKind::from_raw(SIGCONT)).ok();
        let mut tick = tokio::time::interval(TICK);
        let mut work = Box::pin(work);
        // The person has said what the model should do instead of the calls of this reply.
        let mut is_redirected = false;
        let result = loop {
            tokio::select! {
                biased;
                () = wait_for_signal(&mut interrupts) => stop.cancel(),
                () = wait_for_signal(&mut continues) => {
                    let _ = quiet.as_ref().map(|quiet| quiet.set_again());
                    view.forget_drawn();
                }
                Some(shown) = inbox.recv() => {
                    is_redirected &= !matches!(shown, Shown::Asks { .. });
                    match shown {
                        Shown::Asking(asking) if is_redirected => {
                            let _ = asking.answer.send(Consent::Refused(REDIRECTED.into()));
                        }
                        Shown::Asking(asking) => {
                            let answer = ask(view, asking, quiet.as_ref(), allowed).await;
                            is_redirected = matches!(answer, Some(Answer::Instead(_)));
                        }
                        shown => view.show(shown),
                    }
                    if view.answers_mut().has_failed() {
                        stop.cancel();
                    }
                }
                Some(found) = commands.pending.next() => view.show_found(&found),
                result = &mut work => break result,
                _ = tick.tick() => {
                    if let Some(quiet) = &quiet {
                        quiet.keep_typed();
                        commands.begin(quiet, view);
                        view.set_typed(quiet.keep_typed());
                    }
                    if quiet.as_ref().is_some_and(|quiet| quiet.take_escape()) {
                        stop.cancel();
                    }
                    view.tick();
                }
            }
        };
        while let Ok(shown) = inbox.try_recv() {
            view.show(shown);
        }
        commands.finish(view).await;
        (result, quiet.map(|quiet| quiet.take_typed()).unwrap_or_default())
    }
}

/// Returns what sends the activities of a run to the screen, and counts their cost.
pub(super) fn observer_of(screen: &mpsc::UnboundedSender<Shown>, costs: &Arc<Mutex<Costs>>) -> Arc<Observer> {
    let (shown, costs) = (screen.clone(), Arc::clone(costs));
    Arc::new(move |activity: Activity<'_>| {
        costs.lock().unwrap_or_else(PoisonError::into_inner).count(&activity);
        drop(shown.send(Shown::from_activity(activity)));
    })
}

/// Returns an observer that also stops the turn when a call has its result, if `is_wanted` is cancelled then:
/// a call that the person did not allow has one that says so.
pub(super) fn stopping_after_calls(
    observer: Arc<Observer>,
    is_wanted: CancellationToken,
    stop: CancellationToken,
) -> Arc<Observer> {
    Arc::new(move |activity: Activity<'_>| {
        if matches!(activity, Activity::ToolFinished { .. }) && is_wanted.is_cancelled() {
            stop.cancel();
        }
        observer(activity);
    })
}

/// Asks the person and passes their answer on. Returns it, too; `None` where no person can be asked.
async fn ask(
    screen: &mut Screen,
    asking: Asking,
    quiet: Option<&Arc<Quiet>>,
    allowed: &Mutex<Allowed>,
) -> Option<Answer> {
    let Some(quiet) = quiet else {
        let _ = asking.answer.send(Consent::Refused("it needs consent, and no person can be asked".into()));
        return None;
    };
    let answer = screen.ask_person(&asking, quiet).await;
    let Asking { always, stop, answer: reply, .. } = asking;
    let consent = match &answer {
        Answer::Yes => Consent::Given,
        Answer::Always => {
            if allowed.lock().unwrap_or_else(PoisonError::into_inner).add(always) {
                screen.show(Shown::Note(UNTIL_YOU_LEAVE.to_owned()));
            }
            Consent::Given
        }
        Answer::No => Consent::DECLINED,
        Answer::Instead(words) => {
            Consent::Refused(format!("the person who was asked says instead: {words}").into())
        }
        Answer::Stop => {
            stop.cancel();
            Consent::Refused(STOPPED.into())
        }
    };
    // A turn that was stopped in the meantime does not wait for it.
    let _ = reply.send(consent);
    Some(answer)
}

/// Waits for a signal; for ever if signals cannot be handled.
pub(super) async fn wait_for_signal(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}
