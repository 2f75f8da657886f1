//! Decides which alerts are sent now, and when they are over. Pure: findings and the time come in, messages
//! go out.
//!
//! An alert is sent once, together with others that begin at about the same time; again after a while if it
//! still holds; and when it is over, if it was sent at all. A finding that comes and goes within the settling
//! time is one alert.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::message::{Entry, Message, State};
use super::open_alert::OpenAlert;
use super::rule::{Finding, Rule, Severity};
use super::silence::Silences;
use telemetry::metrics;

/// An alert is over when its finding was absent for this long, in milliseconds.
const SETTLES: u64 = 30_000;

/// When alerts are sent, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) repeat: u64,
    pub(super) group: u64,
}

#[derive(Clone, Debug)]
struct Open {
    since: u64,
    seen: u64,
    sent: Option<u64>,
    what: String,
}

/// An alert that was sent, as it is kept until its end is sent, also after a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) rule: String,
    pub(super) subject: String,
    pub(super) what: String,
    pub(super) since: u64,
    pub(super) sent: u64,
}

/// The alerts of one server.
#[derive(Debug, Default)]
pub(super) struct Board {
    alerts: BTreeMap<(Rule, String), Open>,
    /// When findings were taken last.
    last_look: u64,
    /// How many alerts are open, by rule and upstream, also those that were.
    counts: BTreeMap<(Rule, String), usize>,
    /// The alerts that were sent and that worse ones have replaced.
    replaced: Vec<(Rule, String)>,
}

impl Board {
    /// Counts the open alerts for Prometheus, whose rules need a zero where an alert is over.
    pub(super) fn count_alerts(&mut self, open: &[OpenAlert]) {
        self.counts.extend(Rule::ALL.iter().map(|rule| ((*rule, String::new()), 0)));
        self.counts.values_mut().for_each(|count| *count = 0);
        for alert in open {
            let Some(rule) = Rule::from_name(&alert.rule) else { continue };
            let upstream = if rule.is_about_upstream() { alert.subject.clone() } else { String::new() };
            *self.counts.entry((rule, upstream)).or_default() += 1;
        }
        for ((rule, upstream), count) in &self.counts {
            metrics::set_open_alerts(rule.severity().as_str(), rule.as_str(), upstream, *count);
        }
    }

    /// Takes the findings of now; returns the message that is due now, if there is one.
    pub(super) fn take_findings(
        &mut self,
        now: u64,
        findings: Vec<Finding>,
        pace: Pace,
        silences: &Silences,
    ) -> Option<Message> {
        self.last_look = now;
        for Finding { rule, subject, what } in findings {
            for lesser in rule.lesser_rules() {
                let key = (*lesser, subject.clone());
                if self.alerts.remove(&key).is_some_and(|open| open.sent.is_some()) {
                    self.replaced.push(key);
                }
            }
            let open = self.alerts.entry((rule, subject)).or_insert(Open {
                since: now,
                seen: now,
                sent: None,
                what: String::new(),
            });
            (open.seen, open.what) = (now, what);
        }
        let resolved = self.take_resolved(now);
        let mut entries = self.due_entries(now, pace, silences);
        // The first one is the title.
        entries.sort_by_key(|entry| entry.rule.severity() != Severity::Critical);
        entries.extend(resolved);
        (!entries.is_empty()).then_some(Message { at: now, node: None, entries })
    }

    /// Returns the alerts that were sent and that worse ones have replaced since: their ends are not sent.
    pub(super) fn take_replaced(&mut self) -> Vec<(Rule, String)> {
        std::mem::take(&mut self.replaced)
    }

    /// Takes in alerts that an earlier process sent. They hold until their finding is absent for a while, and
    /// are not sent again as new ones.
    pub(super) fn take_kept(&mut self, now: u64, kept: Vec<Kept>) {
        for Kept { rule, subject, what, since, sent } in kept {
            // A rule of another version cannot be watched any more.
            let Some(rule) = Rule::from_name(&rule) else { continue };
            let new = Open { since, seen: now, sent: Some(sent), what };
            let open = self.alerts.entry((rule, subject)).or_insert(new);
            if open.sent.is_none() {
                (open.since, open.sent) = (since, Some(sent));
            }
        }
    }

    /// Takes the alerts that are over from the board. One that was never sent has no message.
    fn take_resolved(&mut self, now: u64) -> Vec<Entry> {
        let over: Vec<_> =
            self.alerts.iter().filter(|(_, open)| open.is_over(now)).map(|(key, _)| key.clone()).collect();
        let taken = over.into_iter().filter_map(|key| Some((self.alerts.remove(&key)?, key)));
        taken
            .filter(|(open, _)| open.sent.is_some())
            .map(|(open, (rule, subject))| Entry {
                rule,
                subject,
                what: open.what,
                since: open.since,
                state: State::Resolved,
            })
            .collect()
    }

    /// Returns the alerts that are sent now. When one is due, all new ones go with it.
    fn due_entries(&mut self, now: u64, pace: Pace, silences: &Silences) -> Vec<Entry> {
        let holds = |open: &Open| open.seen == now;
        let is_due = |open: &Open| match open.sent {
            None => open.since + pace.group <= now,
            Some(sent) => sent + pace.repeat <= now,
        };
        let is_audible = |(rule, subject): &(Rule, String)| !silences.covers(*rule, subject, now);
        if !self.alerts.iter().any(|(key, open)| holds(open) && is_due(open) && is_audible(key)) {
            return Vec::new();
        }
        let mut entries = Vec::new();
        for (key, open) in &mut self.alerts {
            if !holds(open) || !is_audible(key) || !(open.sent.is_none() || is_due(open)) {
                continue;
            }
            let state = if open.sent.is_none() { State::New } else { State::Still };
            open.sent = Some(now);
            let (rule, subject) = key.clone();
            let (what, since) = (open.what.clone(), open.since);
            entries.push(Entry { rule, subject, what, since, state });
        }
        entries
    }

    /// Returns the alerts that hold. Those that a person has dealt with are left out at once.
    pub(super) fn open(&self, now: u64, silences: &Silences) -> Vec<OpenAlert> {
        let one = |((rule, subject), open): (&(Rule, String), &Open)| {
            let mut alert = OpenAlert {
                rule: rule.as_str().to_owned(),
                subject: subject.clone(),
                what: open.what.clone(),
                since: open.since,
                is_silenced: false,
                silenced_until: None,
            };
            silences.mark_alert(&mut alert, now);
            alert
        };
        let holds = |((rule, _), open): &(&(Rule, String), &Open)| {
            !open.is_over(now) && (open.seen == self.last_look || !is_ended_by_person(*rule))
        };
        self.alerts.iter().filter(holds).map(one).collect()
    }
}

/// Returns true for a rule whose findings end by a person's decision, and do not come and go.
fn is_ended_by_person(rule: Rule) -> bool {
    matches!(rule, Rule::ApprovalWaiting | Rule::TaskEscalated | Rule::TaskFailed | Rule::DeadLetter)
}

impl Open {
    fn is_over(&self, now: u64) -> bool {
        self.seen < now && self.seen + SETTLES <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;

    fn pace() -> Pace {
        Pace { repeat: 240 * MINUTE, group: 5_000 }
    }

    fn found(rule: Rule, subject: &str) -> Finding {
        Finding { rule, subject: subject.into(), what: format!("{subject}!") }
    }

    /// Returns the entries that are sent at a time, as `STATE SUBJECT`.
    fn sent(board: &mut Board, now: u64, findings: &[Finding], pace: Pace) -> Vec<String> {
        let message = board.take_findings(now, findings.to_vec(), pace, &Silences::default());
        let line = |entry: &Entry| format!("{} {}", entry.state.as_str(), entry.subject);
        message.map(|message| message.entries.iter().map(line).collect()).unwrap_or_default()
    }

    #[test]
    fn an_alert_is_sent_repeated_and_resolved() {
        let (mut board, down) = (Board::default(), [found(Rule::UpstreamDown, "box")]);
        assert_eq!(sent(&mut board, 1_000, &down, pace()), [""; 0], "others may come");
        assert_eq!(sent(&mut board, 6_000, &down, pace()), ["new box"]);
        for second in 7..1_000 {
            assert_eq!(sent(&mut board, second * 1_000, &down, pace()), [""; 0]);
        }
        let later = 6_000 + 240 * MINUTE;
        assert_eq!(sent(&mut board, later, &down, pace()), ["still box"]);
        assert_eq!(sent(&mut board, later + 29_999, &[], pace()), [""; 0], "it may come back");
        assert_eq!(sent(&mut board, later + 30_000, &[], pace()), ["resolved box"]);
        assert_eq!(sent(&mut board, later + 90_000, &[], pace()), [""; 0]);
    }

    /// Regression: a critical alert came under the title of one that was over.
    #[test]
    fn the_worst_alert_comes_first() {
        let mut board = Board::default();
        let over = [found(Rule::ReloadFailed, "")];
        sent(&mut board, 1_000, &over, pace());
        sent(&mut board, 6_000, &over, pace());
        let begun = [found(Rule::TaskFailed, "x"), found(Rule::UpstreamDown, "box")];
        sent(&mut board, 31_000, &begun, pace());
        assert_eq!(sent(&mut board, 36_000, &begun, pace()), ["new box", "new x", "resolved "]);
    }

    /// Regression: `alerts` went on asking for an approval that had been given.
    #[test]
    fn decided_requests_are_listed_no_longer() {
        let mut board = Board::default();
        let both = [found(Rule::ApprovalWaiting, "a"), found(Rule::UpstreamDown, "box")];
        let listed = |board: &Board, now| {
            let open = board.open(now, &Silences::default());
            open.into_iter().map(|alert| alert.subject).collect::<Vec<_>>()
        };
        sent(&mut board, 1_000, &both, pace());
        assert_eq!(listed(&board, 2_000).len(), 2);
        sent(&mut board, 6_000, &[], pace());
        assert_eq!(listed(&board, 6_000), ["box"], "a server may be away again in a moment");
    }

    /// Regression: an alert that was sent before a restart never ended.
    #[test]
    fn an_alert_of_an_earlier_process_ends() {
        let kept = |rule: &str| Kept {
            rule: rule.into(),
            subject: "box".into(),
            what: "box!".into(),
            since: 5,
            sent: 500,
        };
        let (mut board, down) = (Board::default(), [found(Rule::UpstreamDown, "box")]);
        sent(&mut board, 900, &down, pace());
        board.take_kept(1_000, vec![kept("upstream_down"), kept("of_another_version")]);
        assert_eq!(sent(&mut board, 9_000, &down, pace()), [""; 0], "it was sent before");
        assert_eq!(board.open(9_000, &Silences::default())[0].since, 5);
        assert_eq!(sent(&mut board, 38_999, &[], pace()), [""; 0]);
        assert_eq!(sent(&mut board, 39_000, &[], pace()), ["resolved box"]);
    }

    #[test]
    fn a_spent_budget_takes_over_its_warning() {
        let mut board = Board::default();
        let (reached, spent) = ([found(Rule::BudgetReached, "alice")], [found(Rule::BudgetSpent, "alice")]);
        sent(&mut board, 0, &reached, pace());
        assert_eq!(sent(&mut board, 5_000, &reached, pace()), ["new alice"]);
        sent(&mut board, 10_000, &spent, pace());
        assert_eq!(sent(&mut board, 15_000, &spent, pace()), ["new alice"]);
        let open = board.open(15_000, &Silences::default());
        assert_eq!(open.iter().map(|alert| alert.rule.as_str()).collect::<Vec<_>>(), ["budget_spent"]);
        // Regression: the store still had the warning, whose end came when the budget was raised.
        assert_eq!(board.take_replaced(), [(Rule::BudgetReached, "alice".to_owned())]);
        assert_eq!(board.take_replaced(), []);
    }

    #[test]
    fn a_server_that_is_down_is_one_alert() {
        let mut board = Board::default();
        sent(&mut board, 0, &[found(Rule::CircuitOpen, "box")], pace());
        sent(&mut board, 5_000, &[found(Rule::UpstreamDown, "box")], pace());
        let open = board.open(5_000, &Silences::default());
        assert_eq!(open.iter().map(|alert| alert.rule.as_str()).collect::<Vec<_>>(), ["upstream_down"]);
    }

    #[test]
    fn a_flapping_finding_is_one_alert() {
        let (mut board, down) = (Board::default(), [found(Rule::UpstreamDown, "box")]);
        let mut messages = Vec::new();
        for second in 0..120 {
            let findings = if second % 20 < 10 { &down[..] } else { &[] };
            messages.extend(sent(&mut board, second * 1_000, findings, pace()));
        }
        assert_eq!(messages, ["new box"]);
        let mut board = Board::default();
        assert_eq!(sent(&mut board, 0, &down, pace()), [""; 0]);
        assert_eq!(sent(&mut board, 40_000, &[], pace()), [""; 0]);
    }

    #[test]
    fn alerts_that_begin_together_are_one_message() {
        let (mut board, one) = (Board::default(), found(Rule::UpstreamDown, "a"));
        sent(&mut board, 0, std::slice::from_ref(&one), pace());
        let both = [one, found(Rule::ErrorRate, "")];
        assert_eq!(sent(&mut board, 5_000, &both, pace()), ["new a", "new "]);
    }

    #[test]
    fn a_silenced_alert_is_not_sent() {
        let dir = tempfile::tempdir().unwrap();
        let silence =
            super::super::Silence { rule: "upstream_down".into(), subject: String::new(), until: 50_000 };
        Silences::add(dir.path(), silence, 0).unwrap();
        let (mut board, silences) = (Board::default(), Silences::read(dir.path()));
        let down = vec![found(Rule::UpstreamDown, "box")];
        assert!(
            [0, 10_000, 49_000]
                .iter()
                .all(|now| board.take_findings(*now, down.clone(), pace(), &silences).is_none())
        );
        assert!(board.open(49_000, &silences)[0].is_silenced);
        assert!(board.take_findings(50_000, down, pace(), &silences).is_some());
    }
}
