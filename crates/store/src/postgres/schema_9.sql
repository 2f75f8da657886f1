-- The silences of alerts, as any process has set them last.
CREATE TABLE respool.silences (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    list text NOT NULL
);
