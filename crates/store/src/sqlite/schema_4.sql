-- The epoch grows each time a process claims a run; what is written with an older one is refused.
ALTER TABLE runs ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;
-- The run that began this one as its child.
ALTER TABLE runs ADD COLUMN parent TEXT REFERENCES runs (id) ON DELETE CASCADE;
CREATE INDEX runs_by_parent ON runs (parent) WHERE parent IS NOT NULL;

-- Requests for consent. `state`: waiting, decided (the run does not know it yet), applied, withdrawn.
CREATE TABLE approvals (
    id TEXT PRIMARY KEY,
    run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    state TEXT NOT NULL,
    requested INTEGER NOT NULL,
    expires INTEGER,
    body TEXT NOT NULL,
    decided INTEGER,
    decision TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX approvals_by_run ON approvals (run);
CREATE INDEX approvals_open ON approvals (state, requested) WHERE state IN ('waiting', 'decided');
