-- Facts that few requests have, as JSON; empty when there are none.
ALTER TABLE requests ADD COLUMN details TEXT NOT NULL DEFAULT '';
