-- When the row was written, by the clock of this server. A lane that lost its connection looks for the row to
-- find out what committed, so nobody may delete it too early.
ALTER TABLE eventlog.events ADD COLUMN recorded_date timestamp DEFAULT (now() AT TIME ZONE 'UTC');

CREATE FUNCTION eventlog.keep_young_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of eventlog.events are kept for one hour: a lane that lost its connection looks for them to find out what committed; set delivered = true, and delete later (databases.prune_outbox)'
        USING ERRCODE = 'KB003';
END
$$;

CREATE TRIGGER keep_young_events BEFORE DELETE ON eventlog.events FOR EACH ROW
    WHEN (OLD.recorded_date > (clock_timestamp() AT TIME ZONE 'UTC') - interval '1 hour')
    EXECUTE FUNCTION eventlog.keep_young_events();
