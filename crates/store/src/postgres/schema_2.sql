-- `serves`: false for a command that uses the database for a moment.
ALTER TABLE respool.nodes ADD COLUMN serves boolean NOT NULL DEFAULT true;
ALTER TABLE respool.nodes ADD COLUMN configuration text NOT NULL DEFAULT '';

-- What one process at a time does, until when it has it.
CREATE TABLE respool.duties (
    name text PRIMARY KEY,
    owner text NOT NULL,
    until bigint NOT NULL
);

CREATE TABLE respool.secrets (
    name text PRIMARY KEY,
    secret bytea NOT NULL
);
