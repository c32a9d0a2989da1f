-- Each handler looks for its own deliveries, so that none waits behind those of another one.
DROP INDEX eventlog_deliveries_due;

CREATE INDEX eventlog_deliveries_due ON eventlog_deliveries (state, handler, due);
