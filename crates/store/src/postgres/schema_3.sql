-- Usage rows of all processes. `origin` stands for the file that a row was kept in first, `place` is its number there.
CREATE TABLE respool.usage (
    origin text NOT NULL,
    place bigint NOT NULL,
    request text NOT NULL,
    route text NOT NULL,
    key text NOT NULL,
    model text NOT NULL,
    upstream text NOT NULL,
    agent text NOT NULL,
    run text NOT NULL,
    dialects text NOT NULL,
    repairs text NOT NULL,
    recovery text NOT NULL,
    loop_stopped text NOT NULL,
    outcome text NOT NULL,
    error_code text NOT NULL,
    error text NOT NULL,
    details text NOT NULL,
    at bigint NOT NULL,
    stream bigint NOT NULL,
    status bigint NOT NULL,
    prompt bigint,
    cached bigint,
    reasoning bigint,
    completion bigint,
    first_byte bigint,
    duration bigint NOT NULL,
    waited bigint NOT NULL,
    attempts bigint NOT NULL,
    PRIMARY KEY (origin, place)
);
CREATE INDEX usage_at ON respool.usage (at);
CREATE INDEX usage_run ON respool.usage (run) WHERE run <> '';

-- What each process has spent on a UTC day, by the scopes of budgets, in millionths.
CREATE TABLE respool.spending (
    day bigint NOT NULL,
    owner text NOT NULL,
    scope text NOT NULL,
    millionths bigint NOT NULL,
    PRIMARY KEY (day, owner, scope)
);
