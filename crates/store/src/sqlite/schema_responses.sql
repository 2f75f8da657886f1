-- Responses that clients keep. `client`: stands for the key that may read it; `previous`: the response that it continues; `used`: when it
-- was made or last continued; `input`: the request's own items; `body`: the response object; `request`: what a response in the
-- background still has to be asked for; `owner`: the process that works on it.
CREATE TABLE responses (
    id TEXT PRIMARY KEY,
    client TEXT NOT NULL,
    previous TEXT,
    status TEXT NOT NULL,
    used INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    input TEXT NOT NULL,
    body TEXT NOT NULL,
    request TEXT,
    owner TEXT
) STRICT;
CREATE INDEX responses_used ON responses (used, bytes);
CREATE INDEX responses_unfinished ON responses (status) WHERE request IS NOT NULL;

-- The items that the model made, which later requests may name.
CREATE TABLE response_items (
    id TEXT PRIMARY KEY,
    response TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX response_items_response ON response_items (response);
