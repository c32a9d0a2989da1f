-- Each handler looks for its own deliveries, so that none waits behind those of another one.
ALTER TABLE {eventlog}.deliveries
    DROP INDEX deliveries_due,
    ADD INDEX deliveries_due (state, handler, due);
