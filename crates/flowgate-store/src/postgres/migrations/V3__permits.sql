-- One row for each key that is limited, locked by whoever takes or gives back. A key has one kind
-- of limit: so many at once, or so many in a span.
CREATE TABLE permit_keys (
    key text COLLATE "C" PRIMARY KEY,
    -- How many rows of permits there are of each kind, also those that are over.
    held bigint NOT NULL,
    in_line bigint NOT NULL,
    -- Of a rate, in microseconds: the last place that was granted, and from when on it counts for
    -- nothing.
    granted_us bigint,
    free_us bigint,
    -- The hour in which it was last looked at. Of the columns that change, only this one is in an
    -- index.
    used_at bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500);

CREATE INDEX permit_keys_by_use ON permit_keys (used_at);

-- Who holds a permit, and who waits for one: in line, or for a place of a rate.
CREATE TABLE permits (
    key text COLLATE "C" NOT NULL,
    run_id uuid NOT NULL,
    step integer NOT NULL,
    is_held boolean NOT NULL,
    -- In line, a number that grows; of a rate, a time in microseconds.
    place bigint NOT NULL,
    -- When it is over, or who waits is forgotten.
    expires_at bigint NOT NULL,
    PRIMARY KEY (key, run_id, step)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_limit = 2000
);

CREATE INDEX permits_by_end ON permits (key, expires_at);
CREATE INDEX permits_in_line ON permits (key, place) WHERE NOT is_held;

-- Locks keys in their order, and forgets what is over. Answers the time after that.
CREATE FUNCTION lock_permits(keys text[], OUT now_ms bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    names text[] := ARRAY(SELECT DISTINCT k.key COLLATE "C" FROM unnest(keys) AS k (key) ORDER BY 1);
    count integer;
    hour bigint;
    row record;
BEGIN
    LOOP
        INSERT INTO permit_keys (key, held, in_line, used_at)
        SELECT n.key, 0, 0, 0 FROM unnest(names) WITH ORDINALITY AS n (key, ord) ORDER BY n.ord
        ON CONFLICT DO NOTHING;
        PERFORM FROM permit_keys k WHERE k.key = ANY (names) ORDER BY k.key FOR UPDATE;
        GET DIAGNOSTICS count = ROW_COUNT;
        -- A sweep may have removed one in between.
        EXIT WHEN count = cardinality(names);
    END LOOP;
    now_ms := store_now();
    hour := now_ms - now_ms % 3600000;
    FOR row IN
        WITH gone AS (
            DELETE FROM permits p USING unnest(names) AS n (key)
            WHERE p.key = n.key AND p.expires_at <= now_ms
            RETURNING p.key, p.is_held
        )
        SELECT g.key, count(*) FILTER (WHERE g.is_held) AS held,
            count(*) FILTER (WHERE NOT g.is_held) AS in_line
        FROM gone g GROUP BY g.key
    LOOP
        UPDATE permit_keys k SET held = k.held - row.held, in_line = k.in_line - row.in_line
        WHERE k.key = row.key;
    END LOOP;
    UPDATE permit_keys k SET used_at = hour WHERE k.key = ANY (names) AND k.used_at <> hour;
END
$$;

-- Asks for permits, each for a job. Of a limit at once, limits_at_once has it; of a rate, shares_us
-- has how far apart its places are.
--
-- Answers for each: no place if it is granted, else the place in line, or the time of the place in
-- milliseconds.
CREATE FUNCTION take_permits(
    keys text[], run_ids uuid[], steps integer[], limits_at_once bigint[], shares_us bigint[],
    lease_ms bigint, kept_ms bigint,
    OUT places bigint[]
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    now_ms bigint := lock_permits(keys);
    now_us bigint := now_ms * 1000;
    places_found bigint[] := array_fill(NULL::bigint, ARRAY[cardinality(keys)]);
    known permit_keys;
    own permits;
    is_known boolean;
    is_granted boolean;
    place bigint;
    -- The last place of a rate.
    last_us bigint;
    ask record;
BEGIN
    FOR ask IN
        SELECT a.key, a.run_id, a.step, a.at_once, a.share_us, a.ord,
            lead(a.key) OVER (ORDER BY a.key COLLATE "C", a.ord) IS DISTINCT FROM a.key AS is_last,
            lag(a.key) OVER (ORDER BY a.key COLLATE "C", a.ord) IS DISTINCT FROM a.key AS is_first
        FROM unnest(keys, run_ids, steps, limits_at_once, shares_us) WITH ORDINALITY
            AS a (key, run_id, step, at_once, share_us, ord)
        ORDER BY a.key COLLATE "C", a.ord
    LOOP
        IF ask.is_first THEN
            SELECT * INTO known FROM permit_keys k WHERE k.key = ask.key;
            last_us := known.granted_us;
            IF ask.share_us IS NOT NULL AND known.in_line > 0 THEN
                SELECT greatest(last_us, p.place) INTO last_us FROM permits p
                WHERE p.key = ask.key AND NOT p.is_held ORDER BY p.place DESC LIMIT 1;
            END IF;
        END IF;

        SELECT * INTO own FROM permits p
        WHERE p.key = ask.key AND p.run_id = ask.run_id AND p.step = ask.step;
        is_known := FOUND;
        IF is_known AND own.is_held THEN
            UPDATE permits p SET expires_at = greatest(p.expires_at, now_ms + lease_ms)
            WHERE p.key = ask.key AND p.run_id = ask.run_id AND p.step = ask.step;
            CONTINUE WHEN NOT ask.is_last;
        ELSE
            IF ask.share_us IS NULL THEN
                place := known.in_line + 1;
                IF is_known THEN
                    SELECT count(*) INTO place FROM permits p
                    WHERE p.key = ask.key AND NOT p.is_held AND p.place <= own.place;
                ELSE
                    own.place := nextval('tickets');
                END IF;
                is_granted := place <= ask.at_once - known.held;
                own.expires_at := now_ms + kept_ms;
            ELSE
                IF NOT is_known THEN
                    own.place := greatest(now_us, last_us + ask.share_us);
                END IF;
                -- The first millisecond that is not before it.
                place := (own.place + 999) / 1000;
                is_granted := place <= now_ms;
                own.expires_at := place + kept_ms;
                last_us := greatest(last_us, own.place);
                IF is_granted THEN
                    known.granted_us := greatest(known.granted_us, own.place);
                    known.free_us := greatest(known.free_us, own.place + ask.share_us);
                END IF;
            END IF;
            IF is_granted THEN
                own.expires_at := now_ms + lease_ms;
            ELSE
                places_found[ask.ord] := place;
            END IF;
            INSERT INTO permits AS p (key, run_id, step, is_held, place, expires_at)
            VALUES (ask.key, ask.run_id, ask.step, is_granted, own.place, own.expires_at)
            ON CONFLICT (key, run_id, step) DO UPDATE
            SET is_held = excluded.is_held, expires_at = excluded.expires_at;
            known.held := known.held + is_granted::integer;
            known.in_line := known.in_line - is_known::integer + (NOT is_granted)::integer;
        END IF;
        IF ask.is_last THEN
            UPDATE permit_keys k SET held = known.held, in_line = known.in_line,
                granted_us = known.granted_us, free_us = known.free_us
            WHERE k.key = ask.key;
        END IF;
    END LOOP;
    places := places_found;
END
$$;

-- Gives permits and places back, those of no job aside, and then lets those who wait have what is
-- free, by keys in the order of their first mention. The last limit of a key counts; null is that
-- of a rate, by which nobody stands in line.
--
-- Answers who got one: the number of a release of that key, and the job.
CREATE FUNCTION release_permits(
    keys text[], run_ids uuid[], steps integer[], limits_at_once bigint[], lease_ms bigint,
    OUT granted_of integer[], OUT granted_run uuid[], OUT granted_step integer[]
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    now_ms bigint := lock_permits(keys);
    row record;
    next record;
BEGIN
    granted_of := '{}';
    granted_run := '{}';
    granted_step := '{}';
    FOR row IN
        WITH gone AS (
            DELETE FROM permits p USING unnest(keys, run_ids, steps) AS r (key, run_id, step)
            WHERE p.key = r.key AND p.run_id = r.run_id AND p.step = r.step
            RETURNING p.key, p.is_held
        )
        SELECT g.key, count(*) FILTER (WHERE g.is_held) AS held,
            count(*) FILTER (WHERE NOT g.is_held) AS in_line
        FROM gone g GROUP BY g.key
    LOOP
        UPDATE permit_keys k SET held = k.held - row.held, in_line = k.in_line - row.in_line
        WHERE k.key = row.key;
    END LOOP;
    FOR row IN
        SELECT k.key, r.ord, r.at_once - k.held AS free
        FROM (
            SELECT r.key, min(r.ord) AS ord,
                (array_agg(r.at_once ORDER BY r.ord DESC))[1] AS at_once
            FROM unnest(keys, limits_at_once) WITH ORDINALITY AS r (key, at_once, ord)
            GROUP BY r.key
        ) AS r
        JOIN permit_keys k ON k.key = r.key
        WHERE k.in_line > 0 AND r.at_once > k.held
        ORDER BY r.ord
    LOOP
        FOR next IN
            SELECT p.run_id, p.step FROM permits p
            WHERE p.key = row.key AND NOT p.is_held ORDER BY p.place LIMIT row.free
        LOOP
            UPDATE permits p SET is_held = true, expires_at = now_ms + lease_ms
            WHERE p.key = row.key AND p.run_id = next.run_id AND p.step = next.step;
            UPDATE permit_keys k SET held = k.held + 1, in_line = k.in_line - 1
            WHERE k.key = row.key;
            granted_of := granted_of || row.ord::integer;
            granted_run := granted_run || next.run_id;
            granted_step := granted_step || next.step;
        END LOOP;
    END LOOP;
END
$$;

-- Removes what is kept no longer besides runs, at most batch records; and at most as many keys
-- that have been of no use for an hour or two.
CREATE OR REPLACE FUNCTION sweep_control(batch bigint, OUT records_gone bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    now_ms bigint := store_now();
    hour bigint := now_ms - now_ms % 3600000;
    row record;
    gone_held bigint;
    gone_in_line bigint;
BEGIN
    WITH over AS MATERIALIZED (
        SELECT r.kind, r.key FROM records r
        WHERE r.expires_at IS NOT NULL AND r.expires_at <= now_ms
        ORDER BY r.expires_at LIMIT batch FOR UPDATE SKIP LOCKED
    )
    DELETE FROM records r USING over WHERE r.kind = over.kind AND r.key = over.key;
    GET DIAGNOSTICS records_gone = ROW_COUNT;
    FOR row IN
        SELECT k.key, k.held, k.in_line, k.free_us FROM permit_keys k
        WHERE k.used_at < hour - 3600000
        ORDER BY k.used_at LIMIT batch FOR UPDATE SKIP LOCKED
    LOOP
        WITH gone AS (
            DELETE FROM permits p WHERE p.key = row.key AND p.expires_at <= now_ms
            RETURNING p.is_held
        )
        SELECT count(*) FILTER (WHERE g.is_held), count(*) FILTER (WHERE NOT g.is_held)
        INTO gone_held, gone_in_line FROM gone g;
        IF row.held = gone_held AND row.in_line = gone_in_line
            AND coalesce(row.free_us, 0) <= now_ms * 1000
        THEN
            DELETE FROM permit_keys k WHERE k.key = row.key;
        ELSE
            UPDATE permit_keys k SET held = k.held - gone_held,
                in_line = k.in_line - gone_in_line, used_at = hour
            WHERE k.key = row.key;
        END IF;
    END LOOP;
END
$$;
