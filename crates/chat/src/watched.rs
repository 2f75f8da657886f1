//! Work on a conversation while a person watches it: what it does is shown, questions are asked, and Esc,
//! Ctrl-C and Ctrl-Z are obeyed. Used by `session`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::libc::SIGCONT;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::approval::{Allowed, Asking};
use super::screen::{Answer, Screen, Shown};
use super::terminal::{Quiet, TypedText};
use agent::{Activity, Observer};
use tools::Consent;

/// The interval at which the status line moves.
const TICK: Duration = Duration::from_millis(100);

/// Why a call is not asked about after the person said what to do instead of an earlier one of its reply.
const REDIRECTED: &str = "the person said at an earlier call of this reply what to do instead";

/// Work on a conversation that a person watches.
pub(super) struct Watched<'a> {
    pub(super) view: &'a mut Screen,
    pub(super) inbox: mpsc::UnboundedReceiver<Shown>,
    pub(super) allowed: &'a Mutex<Allowed>,
    pub(super) stop: CancellationToken,
    /// Whether a person can be asked.
    pub(super) is_attended: bool,
}

impl Watched<'_> {
    /// Shows the work until it ends, and stops it when the person wants that. Returns its result, and the
    /// text typed meanwhile.
    pub(super) async fn watch<T>(self, work: impl Future<Output = T>) -> (T, TypedText) {
        let Self { view, mut inbox, allowed, stop, is_attended } = self;
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
                            let answer = ask(view, asking, quiet.as_ref(), allowed, &stop).await;
                            is_redirected = matches!(answer, Some(Answer::Instead(_)));
                        }
                        shown => view.show(shown),
                    }
                }
                result = &mut work => break result,
                _ = tick.tick() => {
                    let typed = quiet.as_ref().map(|quiet| quiet.keep_typed());
                    view.set_typed(typed.unwrap_or_default());
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
        (result, quiet.map(|quiet| quiet.take_typed()).unwrap_or_default())
    }
}

/// Returns what sends the activities of a run to the screen.
pub(super) fn observer_of(screen: &mpsc::UnboundedSender<Shown>) -> Arc<Observer> {
    let shown = screen.clone();
    Arc::new(move |activity: Activity<'_>| drop(shown.send(Shown::from_activity(activity))))
}

/// Asks the person and passes their answer on. Returns it, too; `None` where no person can be asked.
async fn ask(
    screen: &mut Screen,
    asking: Asking,
    quiet: Option<&Arc<Quiet>>,
    allowed: &Mutex<Allowed>,
    stop: &CancellationToken,
) -> Option<Answer> {
    let Some(quiet) = quiet else {
        let _ = asking.answer.send(Consent::Refused("it needs consent, and no person can be asked".into()));
        return None;
    };
    let answer = screen.ask_person(&asking, quiet).await;
    let Asking { always, answer: reply, .. } = asking;
    let consent = match &answer {
        Answer::Yes => Consent::Given,
        Answer::Always => {
            allowed.lock().unwrap_or_else(PoisonError::into_inner).add(always);
            Consent::Given
        }
        Answer::No => Consent::DECLINED,
        Answer::Instead(words) => {
            Consent::Refused(format!("the person who was asked says instead: {words}").into())
        }
        Answer::Stop => {
            stop.cancel();
            Consent::DECLINED
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
