-- The last term of each name. A renewal rewrites one row and no index.
CREATE TABLE terms (
    name text COLLATE "C" PRIMARY KEY,
    number bigint NOT NULL,
    holder text NOT NULL,
    began_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    released_at bigint
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500);

-- The terms before the last.
CREATE TABLE terms_past (
    name text COLLATE "C",
    number bigint NOT NULL,
    holder text NOT NULL,
    began_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    released_at bigint,
    PRIMARY KEY (name, number)
);

-- Numbers writes of records: no version is used twice.
CREATE SEQUENCE record_versions CACHE 1;

-- Keys are in the order of their bytes.
CREATE TABLE records (
    kind text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    -- JSON, byte for byte.
    value text NOT NULL,
    written_at bigint NOT NULL,
    expires_at bigint,
    PRIMARY KEY (kind, key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

CREATE INDEX records_by_end ON records (expires_at) WHERE expires_at IS NOT NULL;

-- Gives a name to who asks, or extends the term that he holds: the one numbered renews, if that is
-- not null. Answers whether he holds it and the last term; no number if there is none.
--
-- Whoever acts in a term holds its row FOR KEY SHARE to the end of his transaction: a renewal does
-- not wait for him, and a take-over does.
CREATE FUNCTION take_term(
    term_name text, asker text, span_ms bigint, renews bigint, kept_max bigint,
    OUT is_held boolean, OUT number bigint, OUT holder text, OUT began_at bigint,
    OUT expires_at bigint, OUT released_at bigint
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    last terms;
    now_ms bigint;
BEGIN
    is_held := false;
    IF renews IS NOT NULL THEN
        SELECT * INTO last FROM terms t WHERE t.name = term_name FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    ELSE
        LOOP
            SELECT * INTO last FROM terms t WHERE t.name = term_name FOR UPDATE;
            EXIT WHEN FOUND;
            -- A term that is over stands for none. Who comes first writes it, and all others wait
            -- for him.
            INSERT INTO terms VALUES (term_name, 0, '', 0, 0, NULL) ON CONFLICT DO NOTHING;
        END LOOP;
    END IF;
    now_ms := store_now();
    IF last.released_at IS NULL AND last.expires_at > now_ms THEN
        IF last.holder = asker AND (renews IS NULL OR renews = last.number) THEN
            is_held := true;
            last.expires_at := greatest(last.expires_at, now_ms + span_ms);
            UPDATE terms t SET expires_at = last.expires_at WHERE t.name = term_name;
        END IF;
    ELSIF renews IS NULL THEN
        IF last.number > 0 THEN
            INSERT INTO terms_past VALUES (last.*);
            DELETE FROM terms_past p WHERE p.name = term_name AND p.number <= last.number - kept_max;
        END IF;
        is_held := true;
        last := (term_name, last.number + 1, asker, now_ms, now_ms + span_ms, NULL);
        UPDATE terms t SET number = last.number, holder = asker, began_at = now_ms,
            expires_at = last.expires_at, released_at = NULL
        WHERE t.name = term_name;
    END IF;
    number := last.number;
    holder := last.holder;
    began_at := last.began_at;
    expires_at := last.expires_at;
    released_at := last.released_at;
END
$$;

-- Ends a term, if it is held.
CREATE FUNCTION release_term(term_name text, term_number bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    now_ms bigint;
BEGIN
    PERFORM FROM terms t WHERE t.name = term_name FOR UPDATE;
    now_ms := store_now();
    UPDATE terms t SET released_at = now_ms, expires_at = now_ms
    WHERE t.name = term_name AND t.number = term_number AND t.released_at IS NULL
        AND t.expires_at > now_ms;
END
$$;

-- Writes records, each named once, or nothing. Of each, expects is null for anything, 0 for none,
-- else the version that must be there; a value that is null removes it.
--
-- Answers whether the term is lost, or the place of the first expectation that does not hold, or
-- the new versions.
--
-- All locks are taken in one order: the term, the records that are there, those that are not.
-- What somebody else has added in between undoes this attempt with all its locks, and the next
-- one finds it.
CREATE FUNCTION write_records(
    kinds text[], keys text[], expects bigint[], all_values text[], keeps_ms bigint[],
    term_name text, term_number bigint,
    OUT is_term_lost boolean, OUT changed integer, OUT versions bigint[]
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    count integer := cardinality(kinds);
    found_version bigint[];
    missing bigint;
    added bigint;
    now_ms bigint;
    term terms;
    row record;
BEGIN
    is_term_lost := false;
    IF term_name IS NOT NULL THEN
        SELECT * INTO term FROM terms t WHERE t.name = term_name FOR KEY SHARE;
        is_term_lost := NOT FOUND OR term.number <> term_number OR term.released_at IS NOT NULL
            OR term.expires_at <= store_now();
        IF is_term_lost THEN
            RETURN;
        END IF;
    END IF;
    IF count = 0 THEN
        versions := '{}';
        RETURN;
    END IF;
    LOOP
        BEGIN
            found_version := array_fill(0::bigint, ARRAY[count]);
            FOR row IN
                SELECT w.ord, r.version
                FROM unnest(kinds, keys) WITH ORDINALITY AS w (kind, key, ord)
                JOIN records r ON r.kind = w.kind AND r.key = w.key
                ORDER BY r.kind, r.key FOR UPDATE OF r
            LOOP
                found_version[row.ord] := row.version;
            END LOOP;
            FOR i IN 1 .. count LOOP
                IF expects[i] <> found_version[i] THEN
                    changed := i;
                    RETURN;
                END IF;
            END LOOP;
            versions := ARRAY(SELECT nextval('record_versions') FROM generate_series(1, count));
            now_ms := store_now();

            -- Also what must be absent and stays so: nobody else may add it before the end.
            SELECT count(*) INTO missing
            FROM unnest(found_version, expects, all_values) AS w (found, expect, value)
            WHERE w.found = 0 AND (w.expect = 0 OR w.value IS NOT NULL);
            IF missing > 0 THEN
                INSERT INTO records (kind, key, version, value, written_at, expires_at)
                SELECT w.kind, w.key, w.version, coalesce(w.value, 'null'), now_ms,
                    now_ms + w.keep_ms
                FROM unnest(kinds, keys, versions, all_values, keeps_ms, found_version, expects)
                    AS w (kind, key, version, value, keep_ms, found, expect)
                WHERE w.found = 0 AND (w.expect = 0 OR w.value IS NOT NULL)
                ORDER BY w.kind COLLATE "C", w.key COLLATE "C"
                ON CONFLICT DO NOTHING;
                GET DIAGNOSTICS added = ROW_COUNT;
                IF added < missing THEN
                    RAISE EXCEPTION USING ERRCODE = 'FG001', MESSAGE = 'added in between';
                END IF;
            END IF;
            UPDATE records r SET version = w.version, value = w.value, written_at = now_ms,
                expires_at = now_ms + w.keep_ms
            FROM unnest(kinds, keys, versions, all_values, keeps_ms, found_version)
                AS w (kind, key, version, value, keep_ms, found)
            WHERE w.found > 0 AND w.value IS NOT NULL AND r.kind = w.kind AND r.key = w.key;
            IF array_position(all_values, NULL) IS NOT NULL THEN
                DELETE FROM records r USING unnest(kinds, keys, all_values) AS w (kind, key, value)
                WHERE w.value IS NULL AND r.kind = w.kind AND r.key = w.key;
            END IF;
            RETURN;
        EXCEPTION WHEN SQLSTATE 'FG001' THEN
            NULL;
        END;
    END LOOP;
END
$$;

-- Removes what is kept no longer besides runs, at most batch records.
CREATE FUNCTION sweep_control(batch bigint, OUT records_gone bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    now_ms bigint := store_now();
BEGIN
    WITH over AS MATERIALIZED (
        SELECT r.kind, r.key FROM records r
        WHERE r.expires_at IS NOT NULL AND r.expires_at <= now_ms
        ORDER BY r.expires_at LIMIT batch FOR UPDATE SKIP LOCKED
    )
    DELETE FROM records r USING over WHERE r.kind = over.kind AND r.key = over.key;
    GET DIAGNOSTICS records_gone = ROW_COUNT;
END
$$;

-- Removes the logs of runs that ended some time ago, the records of those that ended longer ago,
-- and records that are kept no longer, at most batch in all.
DROP FUNCTION sweep_runs(bigint, bigint, integer);

CREATE FUNCTION sweep_runs(
    events_ms bigint, runs_ms bigint, batch integer,
    OUT logs bigint, OUT runs_gone bigint, OUT records_gone bigint
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    now_ms bigint := store_now();
    swept uuid[];
BEGIN
    swept := ARRAY(
        SELECT r.run_id FROM runs r
        WHERE r.ended_at IS NOT NULL AND NOT r.events_removed AND r.ended_at <= now_ms - events_ms
        ORDER BY r.ended_at LIMIT batch FOR UPDATE SKIP LOCKED
    );
    logs := cardinality(swept);
    DELETE FROM log l WHERE l.run_id = ANY (swept);
    DELETE FROM log_lines l WHERE l.run_id = ANY (swept);
    UPDATE runs r SET events_removed = true WHERE r.run_id = ANY (swept);
    swept := ARRAY(
        SELECT r.run_id FROM runs r
        WHERE r.ended_at IS NOT NULL AND r.events_removed AND r.ended_at <= now_ms - runs_ms
        ORDER BY r.ended_at LIMIT batch - logs FOR UPDATE SKIP LOCKED
    );
    runs_gone := cardinality(swept);
    DELETE FROM runs r WHERE r.run_id = ANY (swept);
    records_gone := sweep_control(batch - logs - runs_gone);
END
$$;
