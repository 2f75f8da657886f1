-- The operators of the last `respool serve`, by the SHA-256 of their keys: who may decide about approvals on the command line.
CREATE TABLE operators (digest TEXT PRIMARY KEY, name TEXT NOT NULL) STRICT, WITHOUT ROWID;
