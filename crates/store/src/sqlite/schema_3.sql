-- What each key of a client has used: by UTC day (days since 1970) and model.
CREATE TABLE key_usage (
    day INTEGER NOT NULL,
    key TEXT NOT NULL,
    model TEXT NOT NULL,
    requests INTEGER NOT NULL,
    prompt INTEGER NOT NULL,
    cached INTEGER NOT NULL,
    completion INTEGER NOT NULL,
    PRIMARY KEY (day, key, model)
) STRICT, WITHOUT ROWID;

-- A chat of the terminal belongs to no client, and is marked by an empty one. Chats of before schema 2 had none at all.
UPDATE runs SET client = '' WHERE client IS NULL AND agent = 'respool chat';
