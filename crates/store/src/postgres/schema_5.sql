-- The alerts that were sent and have not ended, by the process that sent them last.
CREATE TABLE respool.sent_alerts (
    name text PRIMARY KEY,
    owner text NOT NULL,
    body text NOT NULL
);
