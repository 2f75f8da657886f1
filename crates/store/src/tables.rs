//! The tables that both engines have, and a digest by which their rows are compared.

use wire::digest::sha256;

/// A table of both engines.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    /// The columns that both have.
    pub(crate) columns: &'static [&'static str],
    /// Those that are truth values in the database, and numbers in files.
    flags: &'static [&'static str],
    /// The columns by which rows are told apart.
    key: &'static str,
    /// The order of the rows in files, which is that in which they were made where it matters.
    order: &'static str,
    /// The column that numbers new rows.
    pub(crate) numbered: Option<&'static str>,
}

/// The tables, those first that others refer to.
pub(crate) const TABLES: [Table; 12] = [
    Table {
        name: "runs",
        columns: &[
            "id",
            "agent",
            "status",
            "owner",
            "created",
            "updated",
            "fingerprint",
            "setup",
            "client",
            "answered",
            "cancel",
            "epoch",
            "parent",
        ],
        flags: &["answered", "cancel"],
        key: "id",
        order: "rowid",
        numbered: None,
    },
    Table::new("events", &["run", "seq", "at", "kind", "body"], "run, seq"),
    Table::new("client_calls", &["id", "run"], "id"),
    Table::new(
        "approvals",
        &["id", "run", "state", "requested", "expires", "body", "decided", "decision"],
        "id",
    ),
    Table {
        name: "queue",
        columns: &[
            "seq",
            "id",
            "queue",
            "lane",
            "state",
            "due",
            "accepted",
            "blocked",
            "attempt",
            "is_new_attempt",
            "epoch",
            "lease_until",
            "run",
            "work",
            "payload",
            "note",
            "ended",
        ],
        flags: &["blocked", "is_new_attempt"],
        key: "seq",
        order: "seq",
        numbered: Some("seq"),
    },
    Table::new("dedupe", &["key", "until", "entry"], "key"),
    Table::new("clocks", &["queue", "name", "schedule", "mark", "entry"], "queue, name"),
    Table::new(
        "outbox",
        &["id", "expert", "entry", "kind", "created", "due", "body", "attempts", "delivered", "note"],
        "id",
    ),
    Table::new(
        "responses",
        &["id", "client", "previous", "status", "used", "bytes", "input", "body", "request", "owner"],
        "id",
    ),
    Table::new("response_items", &["id", "response"], "id"),
    Table::new(
        "key_usage",
        &["day", "key", "model", "requests", "prompt", "cached", "completion"],
        "day, key, model",
    ),
    Table::new("operators", &["digest", "name"], "digest"),
];

impl Table {
    const fn new(name: &'static str, columns: &'static [&'static str], key: &'static str) -> Self {
        // Messages leave in the order in which they were made.
        let order = if matches!(name.as_bytes(), b"outbox") { "created, id" } else { key };
        Self { name, columns, flags: &[], key, order, numbered: None }
    }

    /// Reads the rows of files.
    pub(crate) fn read_statement(&self) -> String {
        format!("SELECT {} FROM {} ORDER BY {}", self.columns.join(", "), self.name, self.order)
    }

    /// Writes the rows of one JSON text. Those that are there already stay.
    pub(crate) fn write_statement(&self) -> String {
        let (name, columns) = (self.name, self.columns.join(", "));
        format!(
            "INSERT INTO respool.{name} ({columns}) OVERRIDING SYSTEM VALUE
             SELECT {columns} FROM json_populate_recordset(NULL::respool.{name}, $1::text::json) ON CONFLICT ({}) DO NOTHING",
            self.key
        )
    }

    /// Reads the rows of the database as texts.
    pub(crate) fn compare_statement(&self) -> String {
        let texts: Vec<_> = self.columns.iter().map(|column| format!("{column}::text")).collect();
        format!("SELECT {} FROM respool.{}", texts.join(", "), self.name)
    }

    /// Returns true for a column of truth values.
    pub(crate) fn is_flag(&self, column: &str) -> bool {
        self.flags.contains(&column)
    }
}

/// The rows of a table, in any order: their number, and the sum of their digests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowsDigest {
    pub(crate) rows: u64,
    sum: u128,
}

impl RowsDigest {
    pub(crate) fn add_row<'a>(&mut self, texts: impl Iterator<Item = Option<&'a str>>) {
        let mut bytes = Vec::new();
        for text in texts {
            match text {
                None => bytes.push(0),
                Some(text) => {
                    bytes.push(1);
                    bytes.extend(text.len().to_le_bytes());
                    bytes.extend(text.as_bytes());
                }
            }
        }
        let mut half = [0; 16];
        half.copy_from_slice(&sha256(&bytes)[..16]);
        self.rows += 1;
        self.sum = self.sum.wrapping_add(u128::from_le_bytes(half));
    }
}
