CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    agent TEXT NOT NULL,
    status TEXT NOT NULL,
    owner TEXT NOT NULL,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    fingerprint TEXT NOT NULL,
    setup TEXT NOT NULL,
    cancel INTEGER NOT NULL DEFAULT 0,
    answered INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX runs_by_time ON runs (created);
CREATE INDEX runs_unanswered ON runs (fingerprint, updated) WHERE answered = 0;
CREATE INDEX runs_by_status ON runs (status, updated);

CREATE TABLE events (
    run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    seq INTEGER NOT NULL,
    at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (run, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE client_calls (
    id TEXT PRIMARY KEY,
    run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX client_calls_by_run ON client_calls (run);
