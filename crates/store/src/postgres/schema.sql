-- Everything is in a schema of its own. Times are milliseconds since 1970 by the database's clock where the database compares them with
-- the present, and by a node's clock where they only record what happened.
CREATE FUNCTION respool.now_ms() RETURNS bigint LANGUAGE sql STABLE AS
    $$ SELECT (extract(epoch FROM statement_timestamp()) * 1000)::bigint $$;

CREATE TABLE respool.nodes (
    owner text PRIMARY KEY,
    name text NOT NULL,
    version text NOT NULL,
    began bigint NOT NULL,
    seen bigint NOT NULL
);

CREATE TABLE respool.runs (
    place bigint GENERATED ALWAYS AS IDENTITY,
    id text PRIMARY KEY,
    agent text NOT NULL,
    status text NOT NULL,
    owner text NOT NULL,
    created bigint NOT NULL,
    updated bigint NOT NULL,
    fingerprint text NOT NULL,
    setup text NOT NULL,
    client text,
    answered boolean NOT NULL DEFAULT false,
    cancel boolean NOT NULL DEFAULT false,
    epoch bigint NOT NULL,
    parent text REFERENCES respool.runs (id) ON DELETE CASCADE
);
CREATE INDEX runs_created ON respool.runs (created DESC, place DESC);
CREATE INDEX runs_fingerprint ON respool.runs (fingerprint, updated);
CREATE INDEX runs_parent ON respool.runs (parent) WHERE parent IS NOT NULL;
CREATE INDEX runs_status ON respool.runs (status, updated);

CREATE TABLE respool.events (
    run text NOT NULL REFERENCES respool.runs (id) ON DELETE CASCADE,
    seq bigint NOT NULL,
    at bigint NOT NULL,
    kind text NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (run, seq)
);

CREATE TABLE respool.client_calls (
    id text PRIMARY KEY,
    run text NOT NULL REFERENCES respool.runs (id) ON DELETE CASCADE
);
CREATE INDEX client_calls_run ON respool.client_calls (run);

CREATE TABLE respool.approvals (
    id text PRIMARY KEY,
    run text NOT NULL REFERENCES respool.runs (id) ON DELETE CASCADE,
    state text NOT NULL,
    requested bigint NOT NULL,
    expires bigint,
    body text NOT NULL,
    decided bigint,
    decision text
);
CREATE INDEX approvals_run ON respool.approvals (run);
CREATE INDEX approvals_open ON respool.approvals (requested) WHERE state IN ('waiting', 'decided');

-- `seq` is the order in which entries were accepted; `blocked`: an earlier entry of the same lane has not ended, so that claims look at
-- the heads of lanes alone; `epoch` grows with each claim.
CREATE TABLE respool.queue (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL UNIQUE,
    queue text NOT NULL,
    lane text,
    state text NOT NULL,
    due bigint NOT NULL,
    accepted bigint NOT NULL,
    blocked boolean NOT NULL,
    attempt integer NOT NULL DEFAULT 0,
    is_new_attempt boolean NOT NULL DEFAULT true,
    epoch bigint NOT NULL DEFAULT 0,
    lease_until bigint,
    run text,
    work text,
    payload text NOT NULL,
    note text,
    ended bigint
);
CREATE INDEX queue_ready ON respool.queue (queue, due, seq) WHERE state = 'waiting' AND NOT blocked;
CREATE INDEX queue_leases ON respool.queue (lease_until) WHERE state = 'claimed';
CREATE INDEX queue_lanes ON respool.queue (queue, lane, seq) WHERE lane IS NOT NULL AND state IN ('waiting', 'claimed', 'held');
CREATE INDEX queue_open ON respool.queue (queue, seq) WHERE state IN ('waiting', 'claimed', 'held');
CREATE INDEX queue_runs ON respool.queue (run) WHERE run IS NOT NULL;
CREATE INDEX queue_work ON respool.queue (work) WHERE work IS NOT NULL;
CREATE INDEX queue_states ON respool.queue (state, ended);

CREATE TABLE respool.dedupe (
    key text PRIMARY KEY,
    until bigint NOT NULL,
    entry text NOT NULL
);
CREATE INDEX dedupe_until ON respool.dedupe (until);

CREATE TABLE respool.clocks (
    queue text NOT NULL,
    name text NOT NULL,
    schedule text NOT NULL,
    mark bigint NOT NULL,
    entry text,
    PRIMARY KEY (queue, name)
);

CREATE TABLE respool.outbox (
    place bigint GENERATED ALWAYS AS IDENTITY,
    id text PRIMARY KEY,
    expert text NOT NULL,
    entry text,
    kind text NOT NULL,
    created bigint NOT NULL,
    due bigint NOT NULL,
    body text NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    delivered bigint,
    note text
);
CREATE INDEX outbox_due ON respool.outbox (due) WHERE delivered IS NULL;
CREATE INDEX outbox_created ON respool.outbox (created);

CREATE TABLE respool.responses (
    id text PRIMARY KEY,
    client text NOT NULL,
    previous text,
    status text NOT NULL,
    used bigint NOT NULL,
    bytes bigint NOT NULL,
    input text NOT NULL,
    body text NOT NULL,
    request text,
    owner text
);
CREATE INDEX responses_used ON respool.responses (used);
CREATE INDEX responses_unfinished ON respool.responses (id) WHERE request IS NOT NULL;

CREATE TABLE respool.response_items (
    id text PRIMARY KEY,
    response text NOT NULL REFERENCES respool.responses (id) ON DELETE CASCADE
);
CREATE INDEX response_items_response ON respool.response_items (response);

CREATE TABLE respool.key_usage (
    day bigint NOT NULL,
    key text NOT NULL,
    model text NOT NULL,
    requests bigint NOT NULL,
    prompt bigint NOT NULL,
    cached bigint NOT NULL,
    completion bigint NOT NULL,
    PRIMARY KEY (day, key, model)
);

CREATE TABLE respool.operators (
    digest text PRIMARY KEY,
    name text NOT NULL
);
