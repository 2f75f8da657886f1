-- What is to be delivered: results, drafts, requests for approval, escalations. `delivered`: when the main session took it; `due`: when
-- delivery is tried next.
CREATE TABLE outbox (
    id TEXT PRIMARY KEY,
    expert TEXT NOT NULL,
    entry TEXT,
    kind TEXT NOT NULL,
    created INTEGER NOT NULL,
    due INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    delivered INTEGER,
    note TEXT,
    body TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX outbox_due ON outbox (due) WHERE delivered IS NULL;
CREATE INDEX outbox_created ON outbox (created);
