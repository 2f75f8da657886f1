//! The rules: which conditions are alerts, what they mean and what to do. Pure; the defaults need no tuning.

use std::time::Duration;

use store::Attention;
use usage::{Counts, DayBudget, Minutes};
use wire::{CERTIFICATE_REFUSED_TODO, ErrorCode, KEY_REFUSED_TODO, is_request_fault};

/// A minute, in milliseconds.
const MINUTE: u64 = 60_000;
/// Shares are taken over this time,
const WINDOW: u64 = 5 * MINUTE;
/// and events counted over this one.
const LONG_WINDOW: u64 = 15 * MINUTE;
/// A server is reported that has had requests for this time and sent nothing.
const SILENCE: Duration = Duration::from_mins(10);
/// A share of failed requests counts only from this many requests on.
const FEW: u64 = 10;

/// How urgent an alert is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The owner should look when there is time.
    Warning,
    /// The owner should look now.
    Critical,
}

impl Severity {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

macro_rules! rules {
    ($( $rule:ident = $name:literal, $severity:ident, $meaning:literal, $todo:expr; )*) => {
        /// A condition that is watched.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rule {
            $(
                #[doc = $meaning]
                $rule,
            )*
        }

        impl Rule {
            /// All rules.
            pub const ALL: &'static [Self] = &[$( Self::$rule, )*];

            /// Returns its name, for the configuration and for people.
            pub fn as_str(self) -> &'static str {
                match self { $( Self::$rule => $name, )* }
            }

            /// Returns its urgency.
            pub fn severity(self) -> Severity {
                match self { $( Self::$rule => Severity::$severity, )* }
            }

            /// Returns its meaning, for people.
            pub fn meaning(self) -> &'static str {
                match self { $( Self::$rule => $meaning, )* }
            }

            /// Returns the advice for the owner.
            pub fn todo(self) -> &'static str {
                match self { $( Self::$rule => $todo, )* }
            }
        }
    };
}

rules! {
    UpstreamDown = "upstream_down", Critical,
        "The model server does not answer, or another program answers at its address. Requests to it fail unless another server has the same model.",
        "Check that the server is running and has loaded its model (until then vLLM refuses connections), and that its address is right; its own log says more. `respool check`, with the options of `serve` if it has any, says what is wrong.";
    CircuitOpen = "circuit_open", Critical,
        "The model server answers, but its replies fail. It is tried again with growing pauses.",
        "Look at the log of the model server: it may have run out of memory or lost its GPU.";
    UpstreamSilent = "upstream_silent", Warning,
        "The model server accepts requests and has sent nothing for a long time: it hangs, or works on very long prompts or replies.",
        "`respool requests --running` lists the requests. If the GPU is idle or the log of the server stands still, restart the server; a `timeout` of the upstream ends such requests by itself.";
    KeyRefused = "key_refused", Critical,
        "The model server rejects the key that it was sent, or asks for a key and gets none.",
        KEY_REFUSED_TODO;
    CertificateRefused = "certificate_refused", Critical,
        "No secure connection to the model server can be made: its certificate is not trusted or has expired.",
        CERTIFICATE_REFUSED_TODO;
    ModelMissing = "model_missing", Warning,
        "No server has a model that `[models]` names: requests for its alias fail, and a fallback to it does not work.",
        "Start its server with that name (vLLM: --served-model-name), or correct `[models]`. `respool upstreams` lists what is served.";
    ErrorRate = "error_rate", Critical,
        "A large share of the requests is failing.",
        "The page lists the last problems, each with what to do.";
    SecondAttempts = "second_attempts", Warning,
        "Many turns need a second attempt: the model writes tool calls that cannot be used, which costs time and tokens.",
        "Check the server's tool parser for this model (docs/dialects.md), its token limit and its context window.";
    LoopsStopped = "loops_stopped", Warning,
        "A model is repeating itself, and respool is ending its loops.",
        "Look at the runs on the page: the task may be too hard for the model, or a tool may always give the same answer.";
    Overflows = "overflows", Warning,
        "Conversations are longer than the model's context window.",
        "Raise --max-model-len of the server, tell the clients the true window, or set `context.on_overflow = \"trim\"`.";
    PrefixLost = "prefix_lost", Warning,
        "Prompts of conversations that go on differ early from the ones before, so the server reads nearly all of them again: each turn starts late.",
        "Find what changes there: a time or a status in the system prompt, or tools in another order. Let the client send it later, or not at all.";
    RepairsRepeated = "repairs_repeated", Warning,
        "Most tool calls of a model server need the same repair. respool makes it, but something at the server spoils them.",
        "The alert names the repair and its usual cause (docs/recovery.md).";
    QueueWaits = "queue_waits", Warning,
        "Requests wait a long time for a free slot at a model server.",
        "Raise `max_concurrency` of the upstream if the server can handle more, or add another server.";
    FirstByteSlow = "first_byte_slow", Warning,
        "Replies start much later than usual.",
        "Look at the load of the GPU and at the length of the prompts; the server's prefix cache may be switched off.";
    RunFailed = "run_failed", Warning,
        "A run of an agent or expert has failed.",
        "The page shows its steps and the reason, under Runs.";
    TaskFailed = "task_failed", Warning,
        "An expert's task has failed: all its attempts are used up.",
        "`respool expert queue`, or the page under Approvals, says why it failed; a new try does not repeat what was done before.";
    ExpertNotReady = "expert_not_ready", Warning,
        "An expert cannot work: a tool is not bound, or its server or program cannot be started. Its events wait.",
        "`respool expert validate NAME` tries each of its tools, and says what to correct. The events go on by themselves then.";
    TaskEscalated = "task_escalated", Warning,
        "An expert has handed a decision to you: its task waits.",
        "Look at it on the page under Approvals, or with `respool expert outbox list --kind escalation`. A new try with your comment goes on; it does not repeat what was done before.";
    DeadLetter = "dead_letter", Warning,
        "An expert's task failed for good: all its attempts are used up.",
        "Look at it on the page under Approvals, then try it again or drop it; a new try does not repeat what was done before.";
    ApprovalWaiting = "approval_waiting", Warning,
        "An agent is waiting for you to approve a call.",
        "Approve or reject it on the page, or with `respool expert approvals`.";
    BudgetReached = "budget_reached", Warning,
        "A daily budget is nearly spent.",
        "Raise the budget in `[budgets]`; the page shows under Usage who spent it.";
    BudgetSpent = "budget_spent", Critical,
        "A daily budget is spent: its requests that cost something are refused until 00:00 UTC.",
        "Raise the budget in `[budgets]`, which takes effect at once; the page shows under Usage who spent it.";
    StateNotWritable = "state_not_writable", Critical,
        "Usage records cannot be written to disk. Requests are still answered.",
        "Make room on the disk of `state_dir`, or give respool the right to write there. A damaged file is set aside when respool is restarted.";
    StateRemoved = "state_removed", Critical,
        "A file of `state_dir` was removed or replaced while respool was using it. Requests are still answered; without `respool.db` webhooks are refused, and agents and experts cannot go on.",
        "Restart respool; to keep what the old file held, restore a copy first (docs/operating.md).";
    DatabaseAway = "database_away", Critical,
        "The database of `store.url` cannot be used. Requests are still answered; webhooks are refused, and agents and experts cannot go on.",
        "Repair the database or the way to it. Do not restart respool: it goes on by itself, and then writes what waits in its memory.";
    NodeLost = "node_lost", Warning,
        "A node of the same database was killed, or its machine or network failed. Its requests were cut; others take over its runs.",
        "Start it again, under the same name: the alert ends. If it will not come back, `respool nodes --forget NAME` ends it.";
    DatabaseSetAside = "database_set_aside", Critical,
        "A database of `state_dir` was damaged. respool has set it aside and begun a new one, without what the old one held.",
        "Restore a copy if there is one (docs/operating.md). Then move the damaged file away or delete it: the alert ends.";
    LogLinesLost = "log_lines_lost", Warning,
        "Log lines were lost: the log could not be written, or not fast enough. Requests are still answered.",
        "Make room on the disk of `[log] file`, or let something read the standard error.";
    ReloadFailed = "reload_failed", Warning,
        "The changed configuration, or file of client keys, is wrong. The old one stays in use.",
        "Correct the file; `respool check` says what is wrong and where.";
}

impl Rule {
    /// Returns the rule of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|rule| rule.as_str() == name)
    }

    /// Returns the rules whose alerts of the same subject say less than one of this rule.
    pub(super) fn lesser_rules(self) -> &'static [Self] {
        match self {
            // Its requests fail for the same reason.
            Self::UpstreamDown => &[Self::CircuitOpen, Self::UpstreamSilent],
            Self::CircuitOpen => &[Self::UpstreamSilent],
            Self::BudgetSpent => &[Self::BudgetReached],
            _ => &[],
        }
    }

    /// Returns true if the subjects of its alerts are upstreams.
    pub fn is_about_upstream(self) -> bool {
        matches!(
            self,
            Self::UpstreamDown
                | Self::CircuitOpen
                | Self::UpstreamSilent
                | Self::KeyRefused
                | Self::CertificateRefused
        )
    }
}

/// The observations of one upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamSignal {
    /// Its name.
    pub name: String,
    /// The reason why it cannot be used, as a probe found it, and its rule.
    pub problem: Option<(Rule, String)>,
    /// It asks for a key, respool has none for it, and passes on those of clients.
    pub asks_for_key: bool,
    /// Its circuit is open.
    pub is_open: bool,
    /// For how long it has sent nothing of a reply while it had requests.
    pub silence: Option<Duration>,
    /// Its circuit lets the next request through.
    pub admits: bool,
}

/// The faults of the databases.
#[derive(Clone, Debug, Default)]
pub(super) struct DatabaseSignals {
    /// The reason why usage records cannot be written.
    pub(super) usage_fault: Option<String>,
    /// The reason why nothing can be kept, if a database was removed.
    pub(super) removed: Option<String>,
    /// The reason why the database of `store.url` cannot be used.
    pub(super) away: Option<String>,
    /// The damaged ones that were set aside.
    pub(super) set_aside: Vec<String>,
}

/// All observations of one look.
#[derive(Clone, Debug, Default)]
pub(super) struct Signals {
    pub(super) upstreams: Vec<UpstreamSignal>,
    /// The models that the configuration names and no upstream serves, each with what it is named for.
    pub(super) missing_models: Vec<(String, String)>,
    /// The requests of the last hours.
    pub(super) minutes: Minutes,
    pub(super) budgets: Vec<DayBudget>,
    pub(super) databases: DatabaseSignals,
    /// The work that failed of late, or waits for a person.
    pub(super) attention: Attention,
    /// Experts that cannot work, each with the reason.
    pub(super) not_ready: Vec<(String, String)>,
    /// How many log lines were lost of late.
    pub(super) lost_lines: u64,
    /// The nodes of the same database that were killed, and when each was last seen.
    pub(super) lost_nodes: Vec<(String, u64)>,
    /// The reason why the changed configuration is not used.
    pub(super) reload_problem: Option<String>,
    /// The reason why the changed file of client keys is not used.
    pub(super) key_file_problem: Option<String>,
}

/// A condition that holds now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) rule: Rule,
    /// Its subject. The same rule and subject are the same alert.
    pub(super) subject: String,
    pub(super) what: String,
}

fn new_finding(rule: Rule, subject: impl Into<String>, what: impl Into<String>) -> Finding {
    Finding { rule, subject: subject.into(), what: what.into() }
}

/// Returns all conditions that hold now.
pub(super) fn find_problems(signals: &Signals, now: u64) -> Vec<Finding> {
    let mut all = Vec::new();
    for upstream in &signals.upstreams {
        let name = &upstream.name;
        if let Some((rule, problem)) = &upstream.problem {
            let what = format!("The upstream `{name}` cannot be used: {problem}.");
            all.push(new_finding(*rule, name, what));
        } else if upstream.is_open {
            let lately = signals.minutes.counts_since(now.saturating_sub(WINDOW));
            // Those of wrong requests do not open a circuit.
            let codes: Vec<&str> = lately.codes_at(name).filter(|code| !is_request_fault(code, 0)).collect();
            let why = if codes.is_empty() { String::new() } else { format!(" ({})", codes.join(", ")) };
            let what = format!("Replies from the upstream `{name}` are failing{why}.");
            all.push(new_finding(Rule::CircuitOpen, name, what));
        } else if let Some(silence) = upstream.silence.filter(|silence| *silence >= SILENCE) {
            let minutes = silence.as_secs() / 60;
            let what = format!("The upstream `{name}` has requests and has sent nothing for {minutes} min.");
            all.push(new_finding(Rule::UpstreamSilent, name, what));
        }
    }
    for (model, what_for) in &signals.missing_models {
        let what = format!("No upstream serves `{model}`, which {what_for}.");
        all.push(new_finding(Rule::ModelMissing, model, what));
    }
    // The reason that a probe finds is the better one.
    let is_new = |all: &[Finding], finding: &Finding| {
        all.iter().all(|known| (known.rule, &known.subject) != (finding.rule, &finding.subject))
    };
    let of_requests = request_findings(&signals.minutes, now);
    let of_requests: Vec<_> = of_requests.into_iter().filter(|finding| is_new(&all, finding)).collect();
    all.extend(of_requests);
    for reached in &signals.budgets {
        let rule = if reached.is_spent() { Rule::BudgetSpent } else { Rule::BudgetReached };
        all.push(new_finding(rule, reached.scope.describe(), reached.describe()));
    }
    all.extend(work_findings(signals));
    all.extend(state_findings(signals));
    all
}

/// Returns the conditions of runs and of experts' tasks.
fn work_findings(signals: &Signals) -> Vec<Finding> {
    let mut all = Vec::new();
    for (id, agent) in &signals.attention.approvals {
        all.push(new_finding(
            Rule::ApprovalWaiting,
            id,
            format!("The agent `{agent}` is waiting for your approval (`{id}`)."),
        ));
    }
    for (id, agent) in &signals.attention.failed_runs {
        all.push(new_finding(Rule::RunFailed, id, format!("The run `{id}` of `{agent}` has failed.")));
    }
    for (id, expert) in &signals.attention.failed_tasks {
        let what = format!(
            "A task of the expert `{expert}` has failed: `respool expert retry {id}` tries it again."
        );
        all.push(new_finding(Rule::TaskFailed, id, what));
    }
    for (id, expert) in &signals.attention.escalated_tasks {
        let what = format!(
            "The expert `{expert}` needs your decision: `respool expert retry {id} --comment TEXT` goes on."
        );
        all.push(new_finding(Rule::TaskEscalated, id, what));
    }
    for (expert, why) in &signals.not_ready {
        let what = end_sentence(format!("The expert `{expert}` is not ready: {why}"));
        all.push(new_finding(Rule::ExpertNotReady, expert, what));
    }
    for (id, expert) in &signals.attention.dead_letters {
        let what = format!(
            "A task of the expert `{expert}` failed for good: `respool expert retry {id}` tries it again."
        );
        all.push(new_finding(Rule::DeadLetter, id, what));
    }
    all
}

/// Returns the conditions of what respool itself reads and writes.
fn state_findings(signals: &Signals) -> Vec<Finding> {
    let mut all = Vec::new();
    if signals.lost_lines > 0 {
        let lines = if signals.lost_lines == 1 { "line was" } else { "lines were" };
        let what = format!("{} log {lines} lost.", signals.lost_lines);
        all.push(new_finding(Rule::LogLinesLost, "", what));
    }
    // A database that was removed cannot be written either.
    if let Some(why) = signals.databases.usage_fault.as_ref().filter(|_| signals.databases.removed.is_none())
    {
        let what = end_sentence(format!("Usage records cannot be written: {why}"));
        all.push(new_finding(Rule::StateNotWritable, "", what));
    }
    if let Some(why) = &signals.databases.removed {
        all.push(new_finding(Rule::StateRemoved, "", format!("{}.", capitalize(why))));
    }
    if let Some(why) = &signals.databases.away {
        all.push(new_finding(Rule::DatabaseAway, "", format!("{}.", capitalize(why))));
    }
    for (node, seen) in &signals.lost_nodes {
        let seen = clock::format_time(*seen);
        let what =
            format!("The node `{node}` is gone: it was last seen at {seen} and did not end by itself.");
        all.push(new_finding(Rule::NodeLost, node, what));
    }
    for file in &signals.databases.set_aside {
        let what = format!("A damaged database was set aside as {file}.");
        all.push(new_finding(Rule::DatabaseSetAside, file, what));
    }
    if let Some(why) = &signals.reload_problem {
        all.push(new_finding(
            Rule::ReloadFailed,
            "",
            end_sentence(format!("The changed configuration is wrong: {why}")),
        ));
    }
    if let Some(why) = &signals.key_file_problem {
        let what = end_sentence(format!("The changed file of client keys is wrong: {why}"));
        all.push(new_finding(Rule::ReloadFailed, "client keys", what));
    }
    all
}

/// Adds a full stop to a text without one.
fn end_sentence(text: String) -> String {
    if text.trim_end().ends_with(['.', '!', '?']) { text } else { text + "." }
}

fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

fn request_findings(minutes: &Minutes, now: u64) -> Vec<Finding> {
    let since = |span: u64| minutes.counts_since(now.saturating_sub(span));
    let (window, long) = (since(WINDOW), since(LONG_WINDOW));
    let all = window.all;
    let mut found = Vec::new();
    let mut add = |rule, what: Option<String>| found.extend(what.map(|what| new_finding(rule, "", what)));
    let share = |count: u64, least: u64, what: &str| {
        (all >= FEW && count * 100 >= all * least).then(|| format!("{count} of {all} {what} in 5 minutes."))
    };
    add(
        Rule::ErrorRate,
        share(window.failed, 20, "requests failed").map(|what| what + &main_failure(&window)),
    );
    add(Rule::SecondAttempts, share(window.asked_again, 30, "turns needed a second attempt"));
    add(Rule::QueueWaits, share(window.waited_long, 20, "requests waited longer than 10 s"));
    let often = |count: u64, least: u64, what: &str| {
        (count >= least).then(|| format!("{count} {what} in 15 minutes."))
    };
    add(Rule::LoopsStopped, often(long.loops_stopped, 3, "loops were stopped"));
    add(Rule::Overflows, often(long.overflowed.len() as u64, 5, "requests were too long for the model"));
    add(Rule::FirstByteSlow, slow_replies(minutes, now));
    let place = long.last_lost_prefix.as_deref().unwrap_or_default();
    let lost = often(long.prefixes_lost, 3, "prompts differed early from the ones before");
    add(Rule::PrefixLost, lost.map(|what| format!("{what} The last one: {place}.")));
    found.extend(repeated_repairs(&long));
    found.extend(refused_findings(minutes, now));
    found
}

/// Names the error that most failed requests met.
fn main_failure(window: &Counts) -> String {
    let Some(((upstream, code), count)) = window.failures.iter().max_by_key(|(_, count)| **count) else {
        return String::new();
    };
    let place = if upstream.is_empty() { String::new() } else { format!(" at `{upstream}`") };
    format!(" Most often: `{code}`{place} ({count}).")
}

/// Finds the upstreams where the same repair was needed by at least ten requests, and by half of all.
fn repeated_repairs(long: &Counts) -> impl Iterator<Item = Finding> {
    let often = long.repairs.iter().filter(|(_, count)| **count >= FEW && **count * 2 >= long.all);
    often.map(|((upstream, kind), count)| {
        let what = format!(
            "{count} of {} requests in 15 minutes needed the repair `{kind}` at `{upstream}`. {}",
            long.all,
            cause_of_repair(kind)
        );
        new_finding(Rule::RepairsRepeated, format!("{upstream} {kind}"), what)
    })
}

/// The usual cause of a repair that most calls need, with the public thread that explains it.
fn cause_of_repair(kind: &str) -> &'static str {
    match kind {
        "framing" | "name" | "unwrapped" | "fence" => {
            "The server's tool parser is probably missing, or that of another model: see docs/dialects.md and \
             github.com/NousResearch/hermes-agent/issues/39099."
        }
        "unclosed" | "broken_pair" | "junk" | "quotes" | "inner_quotes" | "comma" | "key" => {
            "Speculative decoding (github.com/vllm-project/vllm/issues/56077) or a quantised cache \
             (github.com/nicedreamzapp/claude-code-local/issues/42) may spoil calls: try without."
        }
        "double_encoded" | "coerced" | "literal" => {
            "The server's tool parser passes values of another type than the schema asks for: see \
             github.com/vllm-project/vllm/issues/47906."
        }
        _ => "See docs/recovery.md.",
    }
}

/// Finds the upstreams that refused respool and have not worked since.
fn refused_findings(minutes: &Minutes, now: u64) -> impl Iterator<Item = Finding> {
    minutes.refusals_since(now.saturating_sub(WINDOW)).map(|(upstream, code)| {
        let (rule, what) = match code {
            ErrorCode::UpstreamTls => (Rule::CertificateRefused, "cannot be reached securely"),
            _ => (Rule::KeyRefused, "does not accept the API key that it was sent"),
        };
        new_finding(rule, upstream, format!("The upstream `{upstream}` {what}."))
    })
}

/// The median of the last minutes is over three times that of the hours before, and over 5 s.
fn slow_replies(minutes: &Minutes, now: u64) -> Option<String> {
    let (early, late) = minutes.first_bytes(now.saturating_sub(LONG_WINDOW), 10);
    let (early, late) = (early?, late?);
    let seconds = |millis: u64| Duration::from_millis(millis).as_secs_f64();
    (late > 5_000 && late > 3 * early).then(|| {
        format!("Replies start after {:.1} s; before, it was {:.1} s.", seconds(late), seconds(early))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use usage::{Money, RequestOutcome, Scope};

    const NOW: u64 = 1_795_000_000_000;

    fn requests(
        count: usize,
        ago: u64,
        change: impl Fn(usize, &mut RequestOutcome),
    ) -> Vec<(u64, RequestOutcome)> {
        let one = |index| {
            let mut ended = RequestOutcome { first_byte: Some(1_000), ..RequestOutcome::default() };
            change(index, &mut ended);
            (NOW - ago, ended)
        };
        (0..count).map(one).collect()
    }

    #[track_caller]
    fn check(requests: Vec<(u64, RequestOutcome)>, expected: &[&str]) {
        let mut signals = Signals::default();
        requests.into_iter().for_each(|(at, ended)| signals.minutes.add_request(ended, at));
        let found: Vec<_> =
            find_problems(&signals, NOW).iter().map(|finding| finding.rule.as_str()).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn shares_need_enough_requests_and_fresh_ones() {
        check(requests(100, MINUTE, |index, it| it.failed = index < 19), &[]);
        check(requests(100, MINUTE, |index, it| it.failed = index < 20), &["error_rate"]);
        check(requests(9, MINUTE, |_, it| it.failed = true), &[]);
        check(requests(100, 6 * MINUTE, |_, it| it.failed = true), &[]);
        check(requests(10, MINUTE, |index, it| it.asked_again = index < 3), &["second_attempts"]);
        check(
            requests(10, MINUTE, |index, it| it.queued = if index < 2 { 10_001 } else { 0 }),
            &["queue_waits"],
        );
    }

    #[test]
    fn events_are_counted_over_fifteen_minutes() {
        check(requests(3, 14 * MINUTE, |_, it| it.loop_stopped = true), &["loops_stopped"]);
        check(requests(2, 14 * MINUTE, |_, it| it.loop_stopped = true), &[]);
        check(requests(5, 14 * MINUTE, |index, it| it.overflowed = Some(index as u64)), &["overflows"]);
        check(requests(5, 16 * MINUTE, |index, it| it.overflowed = Some(index as u64)), &[]);
        let lost = |_, it: &mut RequestOutcome| it.prefix_lost = Some("message 0, byte 7: 9 tokens".into());
        check(requests(3, 14 * MINUTE, lost), &["prefix_lost"]);
        check(requests(2, 14 * MINUTE, lost), &[]);
        let repaired = |kind: &'static str, least: usize| {
            move |index: usize, it: &mut RequestOutcome| {
                it.repairs.extend((index < least).then(|| ("box".into(), kind.into())));
            }
        };
        for kind in ["framing", "unclosed", "coerced"] {
            check(requests(20, 14 * MINUTE, repaired(kind, 10)), &["repairs_repeated"]);
            assert!(cause_of_repair(kind).contains("github.com/"), "{kind} has its thread");
        }
        check(requests(20, 14 * MINUTE, repaired("unclosed", 9)), &[]);
        let refused = |_, it: &mut RequestOutcome| {
            it.errors = vec![("box".into(), "upstream_credentials_refused".into())];
        };
        check(requests(2, MINUTE, refused), &["key_refused"]);
        check(requests(2, 6 * MINUTE, refused), &[]);
    }

    #[test]
    fn the_main_failure_is_named() {
        let mut signals = Signals::default();
        let failed = |index: usize, it: &mut RequestOutcome| {
            it.failed = index < 10;
            let code = if index < 8 { "upstream_error" } else { "upstream_timeout" };
            it.errors = vec![("flaky".into(), code.into())];
        };
        requests(11, MINUTE, failed).into_iter().for_each(|(at, it)| signals.minutes.add_request(it, at));
        let found = find_problems(&signals, NOW);
        let expected = "10 of 11 requests failed in 5 minutes. Most often: `upstream_error` at `flaky` (8).";
        assert_eq!(found[0].what, expected);
    }

    /// Regression: the alert stayed for five minutes after the key was corrected.
    #[test]
    fn an_upstream_that_works_again_refuses_nothing() {
        let refused = |code: &str| RequestOutcome {
            errors: vec![("box".into(), code.into())],
            ..RequestOutcome::default()
        };
        let mut signals = Signals::default();
        signals.minutes.add_request(refused("upstream_credentials_refused"), NOW);
        signals.minutes.add_request(refused("upstream_tls"), NOW);
        signals.minutes.forget_refusals("another");
        assert_eq!(find_problems(&signals, NOW).len(), 2);
        signals.minutes.forget_refusals("box");
        assert_eq!(find_problems(&signals, NOW), []);
    }

    #[test]
    fn slow_is_slower_than_usual() {
        let both = |early: u64, late: u64| {
            let early = requests(20, 60 * MINUTE, |_, it| it.first_byte = Some(early));
            [early, requests(20, MINUTE, |_, it| it.first_byte = Some(late))].concat()
        };
        check(both(1_000, 6_000), &["first_byte_slow"]);
        check(both(3_000, 6_000), &[]);
        check(both(100, 4_000), &[]);
        check(requests(20, MINUTE, |_, it| it.first_byte = Some(60_000)), &[]);
    }

    #[test]
    fn a_server_is_down_failing_or_silent() {
        let upstream = |is_down: bool, is_open, minutes| UpstreamSignal {
            name: "box".into(),
            problem: is_down.then(|| (Rule::UpstreamDown, String::new())),
            asks_for_key: false,
            is_open,
            silence: Some(Duration::from_mins(minutes)),
            admits: false,
        };
        for (upstream, expected) in [
            (upstream(true, true, 30), vec![Rule::UpstreamDown]),
            (upstream(false, true, 30), vec![Rule::CircuitOpen]),
            (upstream(false, false, 10), vec![Rule::UpstreamSilent]),
            (upstream(false, false, 9), vec![]),
        ] {
            let signals = Signals { upstreams: vec![upstream], ..Signals::default() };
            let rules: Vec<_> = find_problems(&signals, NOW).iter().map(|finding| finding.rule).collect();
            assert_eq!(rules, expected);
        }
    }

    #[test]
    fn a_spent_budget_is_critical() {
        for (spent, rule) in [(0.8, Rule::BudgetReached), (1.0, Rule::BudgetSpent)] {
            let (budget, spent) = (Money::from_units(1.0), Money::from_units(spent));
            let reached = DayBudget { scope: Scope::Everybody, budget, spent };
            let found = find_problems(&Signals { budgets: vec![reached], ..Signals::default() }, NOW);
            assert_eq!(found.iter().map(|finding| finding.rule).collect::<Vec<_>>(), [rule]);
        }
    }

    #[test]
    fn everything_else_that_is_looked_at() {
        let signals = Signals {
            attention: Attention {
                approvals: vec![("a1".into(), "helper".into())],
                failed_runs: vec![("run-1".into(), "helper".into())],
                failed_tasks: vec![("entry-2".into(), "sales".into())],
                dead_letters: vec![("entry-1".into(), "sales".into())],
                escalated_tasks: vec![("entry-3".into(), "sales".into())],
            },
            not_ready: vec![("sales".into(), "crm: it is not bound".into())],
            missing_models: vec![("small".into(), "is a fallback of `big`".into())],
            lost_lines: 3,
            lost_nodes: vec![("b".into(), NOW)],
            databases: DatabaseSignals {
                usage_fault: Some("the disk is full".into()),
                removed: Some("the database /x was removed".into()),
                away: Some("it refuses connections".into()),
                set_aside: vec!["/x/usage.damaged-1".into()],
            },
            reload_problem: Some("line 3".into()),
            key_file_problem: Some("keys.toml cannot be read".into()),
            ..Signals::default()
        };
        let found: Vec<_> =
            find_problems(&signals, NOW).iter().map(|finding| finding.rule.as_str()).collect();
        assert_eq!(
            found,
            [
                "model_missing",
                "approval_waiting",
                "run_failed",
                "task_failed",
                "task_escalated",
                "expert_not_ready",
                "dead_letter",
                "log_lines_lost",
                "state_removed",
                "database_away",
                "node_lost",
                "database_set_aside",
                "reload_failed",
                "reload_failed"
            ]
        );
    }

    #[test]
    fn the_reason_why_nothing_is_written_is_named() {
        let usage_fault = Some("the disk is full".to_owned());
        let databases = DatabaseSignals { usage_fault, ..DatabaseSignals::default() };
        let found = find_problems(&Signals { databases, ..Signals::default() }, NOW);
        assert_eq!(found[0].rule, Rule::StateNotWritable);
        assert_eq!(found[0].what, "Usage records cannot be written: the disk is full.");
    }

    #[test]
    fn reasons_end_like_sentences() {
        let signals = Signals { key_file_problem: Some("it has no key".into()), ..Signals::default() };
        let found = find_problems(&signals, NOW);
        assert_eq!(found[0].what, "The changed file of client keys is wrong: it has no key.");
    }

    #[test]
    fn every_rule_explains_itself() {
        for rule in Rule::ALL {
            assert!(rule.meaning().ends_with('.') && rule.todo().ends_with('.'), "{}", rule.as_str());
            assert_eq!(Rule::from_name(rule.as_str()), Some(*rule));
        }
    }
}
