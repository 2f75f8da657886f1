-- The time that a process said last: how respool learns that the system clock was set back.
CREATE TABLE last_time (only INTEGER PRIMARY KEY CHECK (only = 0), at INTEGER NOT NULL) STRICT;
