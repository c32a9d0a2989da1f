-- The row of an old fence is locked where it is looked for, so that it cannot be deleted between the look and
-- the insert, which would raise it anew. The rest of the function is as before.
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
        OR EXISTS (SELECT FROM eventlog.lock_fences t WHERE t.lock_key = fence_key FOR KEY SHARE)
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
