-- One row for each request and for each model call of an agent's run, without content. `at` and durations are milliseconds.
CREATE TABLE requests (
    id INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    request TEXT NOT NULL,
    route TEXT NOT NULL,
    key TEXT NOT NULL,
    model TEXT NOT NULL,
    upstream TEXT NOT NULL,
    agent TEXT NOT NULL,
    run TEXT NOT NULL,
    stream INTEGER NOT NULL,
    status INTEGER NOT NULL,
    prompt INTEGER,
    cached INTEGER,
    reasoning INTEGER,
    completion INTEGER,
    first_byte INTEGER,
    duration INTEGER NOT NULL,
    waited INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    dialects TEXT NOT NULL,
    repairs TEXT NOT NULL,
    recovery TEXT NOT NULL,
    loop_stopped TEXT NOT NULL,
    outcome TEXT NOT NULL,
    error_code TEXT NOT NULL,
    error TEXT NOT NULL
) STRICT;
CREATE INDEX requests_by_time ON requests (at);
CREATE INDEX requests_by_run ON requests (run) WHERE run <> '';
