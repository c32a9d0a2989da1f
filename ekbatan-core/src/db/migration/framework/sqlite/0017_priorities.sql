-- Of the enqueued calls of an action that are due, those of higher priority run first: 1 is high, -1 low. Events have 0.
ALTER TABLE eventlog_deliveries ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;

DROP INDEX eventlog_deliveries_due;

CREATE INDEX eventlog_deliveries_due ON eventlog_deliveries (state, handler, priority, due);
