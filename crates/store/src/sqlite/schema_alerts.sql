-- The alerts that were sent and have not ended, with what their owner needs to send their end, also after a restart.
CREATE TABLE sent_alerts (name TEXT PRIMARY KEY, body TEXT NOT NULL) STRICT, WITHOUT ROWID;
