-- A lane that lost its connection looks for the row to find out what committed, so nobody may delete it too
-- early. The application's clock is that of this machine.
CREATE TRIGGER eventlog_keep_young_events BEFORE DELETE ON eventlog_events FOR EACH ROW
    WHEN OLD.completion_date > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-1 hour')
BEGIN
    SELECT RAISE(ABORT, 'rows of eventlog_events are kept for one hour: a lane that lost its connection looks for them to find out what committed; set delivered, and delete later (databases.prune_outbox)');
END;
