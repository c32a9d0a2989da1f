-- Each handler looks for its own deliveries, so that none waits behind those of another one.
DROP INDEX eventlog.deliveries_due;

CREATE INDEX deliveries_due ON eventlog.deliveries (state, handler, due);
