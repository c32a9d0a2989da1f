-- When the row was written, by the clock of this server. A lane that lost its connection looks for the row to
-- find out what committed, so nobody may delete it too early.
ALTER TABLE {eventlog}.events ADD COLUMN recorded_date datetime(6) DEFAULT (UTC_TIMESTAMP(6));

-- A server with a binary log lets only some users create triggers.
-- may be refused:
CREATE TRIGGER {eventlog}.keep_young_events BEFORE DELETE ON {eventlog}.events FOR EACH ROW
    IF OLD.recorded_date > UTC_TIMESTAMP(6) - INTERVAL 1 HOUR THEN
        SIGNAL SQLSTATE '45000' SET
            MESSAGE_TEXT = 'rows of events are kept for one hour, to find out what committed; set delivered, delete later (prune_outbox)';
    END IF;
