-- Stands for the runs of an entry's attempts (their fingerprint): they are kept as long as it may be executed again. A replay takes it over.
ALTER TABLE queue ADD COLUMN work TEXT;
UPDATE queue SET work = (SELECT fingerprint FROM runs WHERE runs.id = queue.run) WHERE run IS NOT NULL;
CREATE INDEX queue_work ON queue (work) WHERE work IS NOT NULL;
