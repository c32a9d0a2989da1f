-- The steps of a lease, one function each. A step locks the row of its key before it looks at it,
-- so that it is atomic. A waiter is {"o": owner, "p": process, "h": holder, "t": term in
-- microseconds, "u": when its registration ends, in microseconds since 1970}.

CREATE OR REPLACE FUNCTION eventlog.lease_micros(at timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT (extract(epoch FROM at) * 1000000)::bigint $$;

-- Ends the grant of a row that the caller has locked. The first waiter whose registration has not
-- ended becomes the owner: the caller itself for its whole term, another one for the confirm
-- term, and a message tells its process. Returns whether there was one.
CREATE OR REPLACE FUNCTION eventlog.lease_hand_over(
    l eventlog.lock_leases, me uuid, at timestamptz, confirm bigint
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    waiter jsonb;
    rest jsonb := l.waiters;
    next_token bigint := greatest(l.token + 1, eventlog.lease_micros(at) / 1000);
    term bigint;
BEGIN
    LOOP
        waiter := rest -> 0;
        EXIT WHEN waiter IS NULL;
        rest := rest - 0;
        EXIT WHEN (waiter ->> 'u')::bigint > eventlog.lease_micros(at);
    END LOOP;
    IF waiter IS NULL THEN
        UPDATE eventlog.lock_leases SET until = '-infinity', waiters = '[]'
        WHERE lock_key = l.lock_key;
        RETURN false;
    END IF;
    term := (waiter ->> 't')::bigint;
    IF (waiter ->> 'o')::uuid IS DISTINCT FROM me THEN
        term := least(term, confirm);
    END IF;
    UPDATE eventlog.lock_leases SET owner = (waiter ->> 'o')::uuid, holder = waiter ->> 'h',
        token = next_token, since = at, until = at + term * interval '1 microsecond',
        waiters = rest, wanted_until = '-infinity'
    WHERE lock_key = l.lock_key;
    IF (waiter ->> 'o')::uuid IS DISTINCT FROM me THEN
        PERFORM pg_notify('ekbatan_lock_' || (waiter ->> 'p'), concat_ws(' ',
            waiter ->> 'o', next_token, eventlog.lease_micros(at) + term, l.lock_key));
    END IF;
    RETURN true;
END
$$;

-- Takes the key if it is free and nobody waits. Otherwise registers the caller, if it waits, and
-- hands over a grant whose term has ended. `stood` says that the caller had the grant before, such
-- as one that was handed over for the confirm term.
CREATE OR REPLACE FUNCTION eventlog.lease_take(
    key text, me uuid, name text, term bigint, process text, waits boolean, registered bigint,
    confirm bigint, durable boolean,
    OUT is_granted boolean, OUT has_token bigint, OUT ends bigint, OUT at bigint, OUT stood boolean
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    l eventlog.lock_leases;
    clock timestamptz;
    waiter jsonb;
    place int;
    handed boolean := false;
BEGIN
    IF NOT durable THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    LOOP
        UPDATE eventlog.lock_leases f SET owner = me, holder = name, since = clock_timestamp(),
            token = greatest(f.token + 1, eventlog.lease_micros(clock_timestamp()) / 1000),
            until = clock_timestamp() + term * interval '1 microsecond', wanted_until = '-infinity'
        WHERE f.lock_key = key AND f.until <= clock_timestamp() AND f.waiters = '[]'
        RETURNING true, f.token, eventlog.lease_micros(f.until) INTO is_granted, has_token, ends;
        EXIT WHEN FOUND;
        clock := clock_timestamp();
        INSERT INTO eventlog.lock_leases AS n
            (lock_key, owner, holder, token, since, until, wanted_until)
        SELECT key, me, name, eventlog.lease_micros(clock) / 1000, clock,
            clock + term * interval '1 microsecond', '-infinity'
        WHERE NOT EXISTS (SELECT FROM eventlog.lock_leases e WHERE e.lock_key = key)
        ON CONFLICT DO NOTHING
        RETURNING true, n.token, eventlog.lease_micros(n.until) INTO is_granted, has_token, ends;
        EXIT WHEN FOUND;
        -- A caller that does not wait need not wait for the row either, as far as it is not free.
        IF NOT waits THEN
            SELECT * INTO l FROM eventlog.lock_leases e WHERE e.lock_key = key;
            EXIT WHEN FOUND AND l.until > clock_timestamp();
        END IF;
        SELECT * INTO l FROM eventlog.lock_leases e WHERE e.lock_key = key FOR UPDATE;
        CONTINUE WHEN NOT FOUND;
        clock := clock_timestamp();
        CONTINUE WHEN l.until <= clock AND l.waiters = '[]';
        IF waits AND l.owner IS DISTINCT FROM me THEN
            waiter := jsonb_build_object('o', me, 'p', process, 'h', name, 't', term,
                'u', eventlog.lease_micros(clock) + registered);
            SELECT w.place - 1 INTO place
            FROM jsonb_array_elements(l.waiters) WITH ORDINALITY AS w(waiter, place)
            WHERE w.waiter ->> 'p' = process LIMIT 1;
            IF place IS NULL THEN
                l.waiters := l.waiters || waiter;
            ELSE
                -- The process has one contender: an older one has given up.
                l.waiters := jsonb_set(l.waiters, ARRAY[place::text], waiter);
            END IF;
        END IF;
        IF l.until <= clock THEN
            handed := eventlog.lease_hand_over(l, me, clock, confirm);
            -- Every registration has ended, so the key is free.
            CONTINUE WHEN NOT handed;
            SELECT * INTO l FROM eventlog.lock_leases e WHERE e.lock_key = key;
        ELSIF waits AND l.owner IS DISTINCT FROM me THEN
            UPDATE eventlog.lock_leases e SET waiters = l.waiters WHERE e.lock_key = key;
            -- A crash may forget a registration: its process looks.
            PERFORM set_config('synchronous_commit', 'off', true);
        END IF;
        EXIT;
    END LOOP;
    at := eventlog.lease_micros(clock_timestamp());
    stood := false;
    IF is_granted IS NULL THEN
        is_granted := l.owner = me AND l.until > clock_timestamp();
        stood := is_granted AND NOT handed;
        has_token := l.token;
        ends := CASE WHEN l.until > clock_timestamp() THEN eventlog.lease_micros(l.until) ELSE at END;
    END IF;
END
$$;

-- Releases the key, or removes the registration of a caller that does not wait any more. Returns
-- whether the grant stood. A token of zero stands for one that the caller does not know.
CREATE OR REPLACE FUNCTION eventlog.lease_release(
    key text, me uuid, of_token bigint, confirm bigint, durable boolean
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    l eventlog.lock_leases;
    clock timestamptz;
    level text := current_setting('synchronous_commit');
BEGIN
    -- Nobody gets the key, so a crash may forget the release: the key is free when its term ends.
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE eventlog.lock_leases f SET until = '-infinity'
    WHERE f.lock_key = key AND f.owner = me AND (f.token = of_token OR of_token = 0)
        AND f.until > clock_timestamp() AND f.waiters = '[]';
    IF FOUND THEN
        RETURN true;
    END IF;
    SELECT * INTO l FROM eventlog.lock_leases e WHERE e.lock_key = key FOR UPDATE;
    clock := clock_timestamp();
    IF l.owner = me AND (l.token = of_token OR of_token = 0) AND l.until > clock THEN
        IF eventlog.lease_hand_over(l, NULL, clock, confirm) AND durable THEN
            PERFORM set_config('synchronous_commit', level, true);
        END IF;
        RETURN true;
    END IF;
    IF of_token = 0 AND l.waiters @> jsonb_build_array(jsonb_build_object('o', me)) THEN
        UPDATE eventlog.lock_leases e SET waiters = (
            SELECT coalesce(jsonb_agg(w.waiter ORDER BY w.place), '[]')
            FROM jsonb_array_elements(l.waiters) WITH ORDINALITY AS w(waiter, place)
            WHERE (w.waiter ->> 'o')::uuid <> me)
        WHERE e.lock_key = key;
    END IF;
    RETURN false;
END
$$;

-- Gives up a take whose answer was lost, and releases its grant. If the take is about to insert the
-- row of the key, its row cannot be seen yet: the insert here waits for it.
CREATE OR REPLACE FUNCTION eventlog.lease_give_up(
    key text, me uuid, confirm bigint, durable boolean
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO eventlog.lock_leases (lock_key, owner, holder, token, since, until, wanted_until)
    VALUES (key, me, '', 0, '-infinity', '-infinity', '-infinity') ON CONFLICT DO NOTHING;
    RETURN eventlog.lease_release(key, me, 0, confirm, durable);
END
$$;

-- Undoes the statement that calls it if it is carried out later than this, in microseconds since
-- 1970. A take calls it when it has locked the row of its key, so that what its caller sends when
-- it has given the take up finds the take undone, or waits for it.
CREATE OR REPLACE FUNCTION eventlog.lease_in_time(latest bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF eventlog.lease_micros(clock_timestamp()) > latest THEN
        RAISE EXCEPTION 'the take was carried out after its caller had given it up'
            USING ERRCODE = 'EK001';
    END IF;
    RETURN true;
END
$$;

-- Ends the grant that the caller has seen, and no other.
CREATE OR REPLACE FUNCTION eventlog.lease_force(
    key text, seen uuid, of_token bigint, confirm bigint
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    l eventlog.lock_leases;
    clock timestamptz;
BEGIN
    SELECT * INTO l FROM eventlog.lock_leases e WHERE e.lock_key = key FOR UPDATE;
    clock := clock_timestamp();
    IF NOT FOUND OR l.owner <> seen OR l.token <> of_token OR l.until <= clock THEN
        RETURN false;
    END IF;
    IF NOT eventlog.lease_hand_over(l, NULL, clock, confirm) THEN
        UPDATE eventlog.lock_leases e SET token = e.token + 1 WHERE e.lock_key = key;
    END IF;
    RETURN true;
END
$$;

-- Looks at the keys that a process waits for: renews registrations, repeats messages that were
-- lost, and hands over grants whose term has ended. Returns the grants of the process, and the
-- keys for which it is not registered. Rows that others have locked are left to the next look:
-- nothing waits while it has locked other rows, whose holders could not renew their leases.
CREATE OR REPLACE FUNCTION eventlog.lease_look_without_waiting(
    process text, keys text[], owners uuid[], registered bigint, confirm bigint, durable boolean
) RETURNS TABLE (of_owner uuid, is_granted boolean, has_token bigint, ends bigint, at bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    asked record;
    l eventlog.lock_leases;
    clock timestamptz;
    stale bigint;
    level text := current_setting('synchronous_commit');
    handed boolean := false;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    stale := eventlog.lease_micros(clock_timestamp()) + registered / 2;
    FOR asked IN
        SELECT q.key, q.owner FROM unnest(keys, owners) AS q(key, owner)
        LEFT JOIN eventlog.lock_leases e ON e.lock_key = q.key
        WHERE e.lock_key IS NULL OR e.owner = q.owner OR e.until <= clock_timestamp()
            OR NOT EXISTS (SELECT FROM jsonb_array_elements(e.waiters) AS w
                WHERE (w ->> 'o')::uuid = q.owner AND (w ->> 'u')::bigint > stale)
    LOOP
        SELECT * INTO l FROM eventlog.lock_leases e WHERE e.lock_key = asked.key
        FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND
            AND EXISTS (SELECT FROM eventlog.lock_leases e WHERE e.lock_key = asked.key);
        clock := clock_timestamp();
        IF l.until <= clock THEN
            handed := eventlog.lease_hand_over(l, NULL, clock, confirm) OR handed;
            SELECT * INTO l FROM eventlog.lock_leases e WHERE e.lock_key = asked.key;
        END IF;
        IF l.owner = asked.owner AND l.until > clock THEN
            of_owner := asked.owner;
            is_granted := true;
            has_token := l.token;
            ends := eventlog.lease_micros(l.until);
            at := eventlog.lease_micros(clock_timestamp());
            RETURN NEXT;
        ELSIF l.waiters @> jsonb_build_array(jsonb_build_object('o', asked.owner)) THEN
            UPDATE eventlog.lock_leases e SET waiters = (
                SELECT jsonb_agg(CASE WHEN (w.waiter ->> 'o')::uuid = asked.owner
                    THEN jsonb_set(w.waiter, '{u}', to_jsonb(eventlog.lease_micros(clock) + registered))
                    ELSE w.waiter END ORDER BY w.place)
                FROM jsonb_array_elements(l.waiters) WITH ORDINALITY AS w(waiter, place))
            WHERE e.lock_key = asked.key;
        ELSE
            -- It asks again, which registers it.
            of_owner := asked.owner;
            is_granted := false;
            has_token := 0;
            ends := 0;
            at := eventlog.lease_micros(clock_timestamp());
            RETURN NEXT;
        END IF;
    END LOOP;
    IF handed AND durable THEN
        PERFORM set_config('synchronous_commit', level, true);
    END IF;
END
$$;
