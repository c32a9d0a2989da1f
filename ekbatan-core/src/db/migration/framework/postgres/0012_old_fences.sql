-- A fence that is not there is raised only by a token that is at most 30 days old, so that the rows of
-- older ones can be deleted. The bits above the lowest 16 of a token are the milliseconds since 1970 at its
-- grant; smaller tokens than that of the year 2020 are no times. The rest of the function is as before.
CREATE OR REPLACE FUNCTION eventlog.read_under_fence(
    fence_key text, fence_token bigint, micros bigint, to_disk boolean, question text, id uuid
) RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'a read under a fence needs read committed' USING ERRCODE = 'KB002';
    END IF;
    IF NOT to_disk THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    INSERT INTO eventlog.lock_fences AS f (lock_key, token, until)
    SELECT fence_key, fence_token, clock_timestamp() AT TIME ZONE 'UTC' + micros::float8 * interval '1 microsecond'
    WHERE fence_token < 103405112524800000
        OR fence_token >= (extract(epoch FROM clock_timestamp())::int8 - 2592000) * 65536000
        OR EXISTS (SELECT FROM eventlog.lock_fences t WHERE t.lock_key = fence_key)
    ON CONFLICT (lock_key) DO UPDATE SET
        token = excluded.token,
        until = CASE WHEN f.token = excluded.token THEN greatest(f.until, excluded.until) ELSE excluded.until END
    WHERE f.token <= excluded.token;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'a later lease has or may have raised the fence of %', fence_key USING ERRCODE = 'KB001';
    END IF;
    RETURN QUERY EXECUTE question USING id;
END
$$;

-- Whether the row of a fence may be deleted: its token is older than that by a day, and its lease ended a day
-- ago.
CREATE FUNCTION eventlog.fence_is_old(token bigint, until timestamp) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT token >= 103405112524800000
        AND token < (extract(epoch FROM clock_timestamp())::int8 - 2678400) * 65536000
        AND until < clock_timestamp() AT TIME ZONE 'UTC' - interval '86400 seconds'
$$;
