-- The name of the process that a usage row is of; empty in rows of versions that did not say it.
ALTER TABLE respool.usage ADD COLUMN node text NOT NULL DEFAULT '';
