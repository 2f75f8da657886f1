//! Work that a person must know of, read by one statement: it is asked for every few seconds.

use crate::queue::EntryRow;

/// The statement that finds it: by kind, id, whose it is, and a note. `$1` is a time, `$2` a limit for each
/// kind; the argument is what stands before the tables' names.
macro_rules! attention {
    ($schema:literal) => {
        concat!(
            "SELECT 'run', id, agent, NULL FROM (
                 SELECT id, agent FROM ",
            $schema,
            "runs
                 WHERE (client IS NULL OR client <> '') AND status = 'failed' AND updated > $1
                 ORDER BY updated DESC LIMIT $2) AS failed
             UNION ALL SELECT 'task', id, queue, note FROM (
                 SELECT id, queue, note FROM ",
            $schema,
            "queue AS task WHERE state = 'failed' AND (ended > $1 OR id IN (
                     SELECT substr(outbox.id, 1, length(outbox.id) - 7) FROM ",
            $schema,
            "outbox WHERE outbox.delivered IS NULL AND outbox.id LIKE '%:failed'))
                 AND NOT EXISTS (SELECT 1 FROM ",
            $schema,
            "outbox WHERE outbox.id = task.id || ':failed' AND outbox.note LIKE 'done:%')
                 ORDER BY seq DESC LIMIT $2) AS tasks
             UNION ALL SELECT 'dead_letter', id, queue, NULL FROM (
                 SELECT id, queue FROM ",
            $schema,
            "queue WHERE state = 'dead_letter'
                 ORDER BY seq DESC LIMIT $2) AS letters
             UNION ALL SELECT 'escalated', id, queue, NULL FROM (
                 SELECT id, queue FROM ",
            $schema,
            "queue AS task WHERE state = 'escalated' AND EXISTS (
                     SELECT 1 FROM ",
            $schema,
            "outbox WHERE outbox.id = task.id || ':escalated' AND outbox.delivered IS NULL)
                 ORDER BY seq DESC LIMIT $2) AS escalated
             UNION ALL SELECT 'approval', asked.id, runs.agent, NULL FROM (
                 SELECT id, run FROM ",
            $schema,
            "approvals WHERE state = 'waiting'
                 ORDER BY requested, id LIMIT $2) AS asked JOIN ",
            $schema,
            "runs AS runs ON runs.id = asked.run"
        )
    };
}
pub(crate) use attention;

/// Each with its id, and the agent or the queue whose it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attention {
    /// Clients' runs that have failed, the latest first.
    pub failed_runs: Vec<(String, String)>,
    /// Tasks that have failed lately, or with a message that is not delivered, but for those that a person
    /// ended; those that were accepted last are first.
    pub failed_tasks: Vec<(String, String)>,
    /// Tasks that have failed and wait for a person; those that were accepted last are first.
    pub dead_letters: Vec<(String, String)>,
    /// Tasks whose decision is a person's, with a message that is not delivered; those that were accepted
    /// last are first.
    pub escalated_tasks: Vec<(String, String)>,
    /// Requests for consent that wait for a decision, the oldest first.
    pub approvals: Vec<(String, String)>,
}

/// A row of the statement: kind, id, whose, note.
pub(crate) type AttentionRow = (String, String, String, Option<String>);

impl Attention {
    pub(crate) fn from_rows(rows: Vec<AttentionRow>) -> Self {
        let mut found = Self::default();
        for (kind, id, whose, note) in rows {
            let kept = match kind.as_str() {
                "run" => &mut found.failed_runs,
                "task" if EntryRow::is_note_of_person(note.as_deref()) => continue,
                "task" => &mut found.failed_tasks,
                "dead_letter" => &mut found.dead_letters,
                "escalated" => &mut found.escalated_tasks,
                _ => &mut found.approvals,
            };
            kept.push((id, whose));
        }
        found
    }
}
