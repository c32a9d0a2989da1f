-- Raises a fence and then reads a row by its id. Each statement of a volatile function sees
-- what was committed before it began: the read sees the commit that the raise waited for.
-- Under any other isolation than read committed it would not, so that is refused.
CREATE FUNCTION eventlog.read_under_fence(
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
    VALUES (fence_key, fence_token, clock_timestamp() AT TIME ZONE 'UTC' + micros::float8 * interval '1 microsecond')
    ON CONFLICT (lock_key) DO UPDATE SET
        token = excluded.token,
        until = CASE WHEN f.token = excluded.token THEN greatest(f.until, excluded.until) ELSE excluded.until END
    WHERE f.token <= excluded.token;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'a later lease has raised the fence of %', fence_key USING ERRCODE = 'KB001';
    END IF;
    RETURN QUERY EXECUTE question USING id;
END
$$;
