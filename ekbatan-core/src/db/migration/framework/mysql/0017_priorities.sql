-- Of the enqueued calls of an action that are due, those of higher priority run first: 1 is high, -1 low. Events have 0.
ALTER TABLE {eventlog}.deliveries
    ADD COLUMN priority smallint NOT NULL DEFAULT 0,
    DROP INDEX deliveries_due,
    ADD INDEX deliveries_due (state, handler, priority, due);
