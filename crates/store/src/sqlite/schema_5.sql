-- Durable work. `seq` is the order in which entries were accepted; `blocked`: an earlier entry of the same lane has not ended;
-- `epoch` grows with each claim; `claims`: the attempt that was claimed last.
CREATE TABLE queue (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    queue TEXT NOT NULL,
    lane TEXT,
    state TEXT NOT NULL,
    due INTEGER NOT NULL,
    accepted INTEGER NOT NULL,
    blocked INTEGER NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    claims INTEGER NOT NULL DEFAULT 0,
    is_new_attempt INTEGER NOT NULL DEFAULT 1,
    epoch INTEGER NOT NULL DEFAULT 0,
    lease_until INTEGER,
    run TEXT,
    payload TEXT NOT NULL,
    note TEXT,
    ended INTEGER
) STRICT;
CREATE INDEX queue_ready ON queue (queue, due, seq) WHERE state = 'waiting' AND blocked = 0;
CREATE INDEX queue_leases ON queue (lease_until) WHERE state = 'claimed';
CREATE INDEX queue_lanes ON queue (queue, lane, seq) WHERE lane IS NOT NULL AND state IN ('waiting', 'claimed', 'held');
CREATE INDEX queue_runs ON queue (run) WHERE run IS NOT NULL;
CREATE INDEX queue_states ON queue (state, ended);

-- What was accepted already, until when that counts.
CREATE TABLE dedupe (
    key TEXT PRIMARY KEY,
    until INTEGER NOT NULL,
    entry TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX dedupe_until ON dedupe (until);
