-- Sessions of the page that were ended before their time, by their signatures.
CREATE TABLE respool.ended_sessions (
    signature text PRIMARY KEY,
    until bigint NOT NULL
);
