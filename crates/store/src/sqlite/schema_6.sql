-- The clocks of cron triggers. `mark`: the last time for which one fired, or when it was first seen; `entry`: what was queued then.
CREATE TABLE clocks (
    queue TEXT NOT NULL,
    name TEXT NOT NULL,
    schedule TEXT NOT NULL,
    mark INTEGER NOT NULL,
    entry TEXT,
    PRIMARY KEY (queue, name)
) STRICT, WITHOUT ROWID;
