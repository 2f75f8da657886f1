//! Looks a store through: how many rows it has, which versions may use it, and whether they fit together.

use async_trait::async_trait;

use super::error::StoreError;

/// The findings about a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreCheck {
    /// The version of its schema.
    pub schema: u32,
    /// The oldest schema version that a respool must know to use it.
    pub oldest: u32,
    /// The rows of each table.
    pub counts: Vec<(&'static str, u64)>,
    /// The rows that do not fit together, for people.
    pub problems: Vec<String>,
}

impl StoreCheck {
    /// Notes how often a rule is broken.
    pub(crate) fn note(&mut self, rule: &str, broken: u64) {
        if broken > 0 {
            self.problems.push(format!("{broken} {rule}"));
        }
    }
}

/// A check of a whole store.
#[async_trait]
pub trait Checks: Send + Sync {
    /// Counts the rows and looks for those that do not fit together. It reads everything.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn check(&self) -> Result<StoreCheck, StoreError>;
}

/// The statements that count: of each table, and of each rule how often it is broken. `$schema` goes before
/// the names of tables.
macro_rules! checks {
    ($schema:literal) => {
        $crate::check::checks! { $schema: approvals, client_calls, clocks, dedupe, events, key_usage, operators, outbox, queue,
            response_items, responses, runs }
    };
    ($schema:literal: $($table:ident),+) => {
        const COUNTS: &[(&str, &str)] =
            &[$((stringify!($table), concat!("SELECT count(*) FROM ", $schema, stringify!($table)))),+];
        const RULES: [(&str, &str); 4] = [
            (
                "runs lack events in the middle",
                concat!("SELECT count(*) FROM (SELECT 1 FROM ", $schema, "events GROUP BY run
                    HAVING count(*) <> max(seq) - min(seq) + 1) AS broken"),
            ),
            (
                "lanes have two entries at work",
                concat!("SELECT count(*) FROM (SELECT 1 FROM ", $schema, "queue WHERE state = 'claimed' AND lane IS NOT NULL
                    GROUP BY queue, lane HAVING count(*) > 1) AS broken"),
            ),
            (
                "lanes wait for an entry that has ended",
                concat!("SELECT count(*) FROM (SELECT 1 FROM ", $schema, "queue
                    WHERE lane IS NOT NULL AND state IN ('waiting', 'claimed', 'held') GROUP BY queue, lane
                    HAVING min(CASE WHEN blocked THEN 1 ELSE 0 END) = 1) AS broken"),
            ),
            (
                "entries at work have no lease",
                concat!("SELECT count(*) FROM ", $schema, "queue WHERE state = 'claimed' AND lease_until IS NULL"),
            ),
        ];
    };
}
pub(crate) use checks;
