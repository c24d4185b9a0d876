-- Where a job stands in its queue: order_at, then ticket. One that is due when it is queued is
-- ahead of its due time by a minute for each step of its priority; so priority makes nobody wait
-- for ever.
ALTER TABLE jobs
    ADD COLUMN priority smallint NOT NULL DEFAULT 0,
    ADD COLUMN order_at bigint NOT NULL DEFAULT 0;
UPDATE jobs SET order_at = due_at;
ALTER TABLE jobs ALTER COLUMN priority DROP DEFAULT, ALTER COLUMN order_at DROP DEFAULT;

DROP INDEX jobs_by_due;
CREATE INDEX jobs_by_order ON jobs (queue, order_at, ticket) WHERE NOT is_leased;

-- Without settings of its own, so that it is part of the statement that calls it.
CREATE FUNCTION order_of(due_at bigint, now_ms bigint, priority smallint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN due_at <= now_ms THEN due_at - priority * 60000::bigint ELSE due_at END
$$;

DROP FUNCTION commit_batch;
DROP FUNCTION claim_jobs;
DROP FUNCTION next_due;
DROP FUNCTION import_run;

-- Applies commits, each about another run, or refuses them.
--
-- A commit is named by its place in the first eight arrays. Of a start, which expects version 0,
-- the next four hold what never changes. leases_* are the leases that commits need. changes_* are
-- the last words on steps; of a put that is due now, and in the queues of the claimant, a lease
-- is granted to it while it has slots. Those are all
-- queues where claimant_queues is null, but for claimant_queues_not.
--
-- Answers one row. verdicts: 0 applied, 1 applied by an earlier call, 2 there is such a run, 3 the
-- run is at another version, 4 a lease is lost: that of the step in lost_steps.
CREATE FUNCTION commit_batch(
    run_ids uuid[], commit_ids uuid[], befores bigint[], counts integer[], statuses text[],
    are_ends boolean[], records text[], all_events text[],
    flows text[], revisions text[], keys text[], all_tags text[],
    leases_of integer[], leases_step integer[], leases_token bigint[],
    changes_of integer[], changes_step integer[], changes_action text[], changes_kind text[],
    changes_queue text[], changes_priority smallint[], changes_attempt bigint[],
    changes_inputs text[], changes_after_ms bigint[], changes_at bigint[],
    queues_new text[],
    claimant text, claimant_queues text[], claimant_queues_not text[], slots integer,
    lease_ms bigint,
    OUT verdicts smallint[], OUT lost_steps integer[],
    OUT granted_of integer[], OUT granted_step integer[], OUT granted_token bigint[],
    OUT expires_at bigint
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    count integer := cardinality(run_ids);
    now_ms bigint;
    -- The version of each run; -1 where it has ended, null where there is none.
    versions bigint[] := array_fill(NULL::bigint, ARRAY[count]);
    held_token bigint[] := leases_token;
    held_until bigint[] := leases_token;
    has_lost boolean := false;
    is_stale boolean := false;
    starts integer := 0;
    inserted uuid[];
    row record;
BEGIN
    verdicts := array_fill(0::smallint, ARRAY[count]);
    lost_steps := array_fill(NULL::integer, ARRAY[count]);

    -- Loops over plain arrays, since a join of two lists would compare each with each.
    FOR row IN
        SELECT c.ord, CASE WHEN r.ended_at IS NULL THEN r.version ELSE -1 END AS version
        FROM unnest(run_ids) WITH ORDINALITY AS c (run_id, ord)
        JOIN runs r ON r.run_id = c.run_id
        ORDER BY r.run_id FOR UPDATE OF r
    LOOP
        versions[row.ord] := row.version;
    END LOOP;
    FOR i IN 1 .. cardinality(leases_of) LOOP
        held_token[i] := NULL;
    END LOOP;
    IF cardinality(leases_of) > 0 THEN
        FOR row IN
            SELECT l.ord, j.token, j.expires_at, j.lost IS NOT NULL AS has_lost
            FROM unnest(leases_of, leases_step) WITH ORDINALITY AS l (of, step, ord)
            JOIN jobs j ON j.run_id = run_ids[l.of] AND j.step = l.step
            ORDER BY j.run_id, j.step FOR UPDATE OF j
        LOOP
            held_token[row.ord] := row.token;
            held_until[row.ord] := row.expires_at;
            has_lost := has_lost OR row.has_lost;
        END LOOP;
    END IF;

    now_ms := store_now();

    -- The version decides before a lease does: the commit that is sent again may have ended it.
    FOR i IN 1 .. count LOOP
        IF befores[i] = 0 THEN
            IF versions[i] IS NULL THEN
                starts := starts + 1;
            ELSE
                verdicts[i] := 2;
                is_stale := true;
            END IF;
        ELSIF versions[i] IS DISTINCT FROM befores[i] THEN
            verdicts[i] := 3;
            is_stale := true;
        END IF;
    END LOOP;
    FOR i IN 1 .. cardinality(leases_of) LOOP
        IF verdicts[leases_of[i]] = 0
            AND (held_token[i] IS DISTINCT FROM leases_token[i] OR held_until[i] <= now_ms)
        THEN
            verdicts[leases_of[i]] := 4;
            lost_steps[leases_of[i]] := leases_step[i];
        END IF;
    END LOOP;

    IF starts > 0 THEN
        WITH added AS (
            INSERT INTO runs (run_id, flow, revision, status, version, started_at, updated_at,
                ended_at, key, tags, record)
            SELECT c.run_id, c.flow, c.revision, c.status, c.count, now_ms, now_ms,
                CASE WHEN c.ends THEN now_ms END, c.key,
                CASE WHEN c.tags IS NOT NULL THEN
                    ARRAY(SELECT json_array_elements_text(c.tags::json)) END,
                c.record
            FROM unnest(run_ids, befores, counts, statuses, are_ends, records, flows, revisions,
                keys, all_tags, verdicts)
                AS c (run_id, before, count, status, ends, record, flow, revision, key, tags,
                    verdict)
            WHERE c.before = 0 AND c.verdict = 0
            ORDER BY c.run_id
            ON CONFLICT (run_id) DO NOTHING
            RETURNING run_id
        )
        SELECT array_agg(run_id) INTO inserted FROM added;
        IF starts > coalesce(cardinality(inserted), 0) THEN
            -- Somebody else has started some of these runs since they were looked for.
            is_stale := true;
            FOR i IN 1 .. count LOOP
                IF befores[i] = 0 AND verdicts[i] = 0
                    AND array_position(inserted, run_ids[i]) IS NULL
                THEN
                    verdicts[i] := 2;
                END IF;
            END LOOP;
        END IF;
    END IF;

    IF is_stale THEN
        FOR row IN
            SELECT c.ord
            FROM unnest(run_ids, commit_ids, befores, verdicts)
                WITH ORDINALITY AS c (run_id, commit_id, before, verdict, ord)
            JOIN log l ON l.run_id = c.run_id AND l.seq = c.before + 1
            WHERE c.verdict IN (2, 3) AND l.commit_id = c.commit_id
        LOOP
            verdicts[row.ord] := 1;
        END LOOP;
    END IF;

    UPDATE runs r SET version = c.before + c.count, status = c.status, updated_at = now_ms,
        ended_at = CASE WHEN c.ends THEN now_ms END, record = c.record
    FROM unnest(run_ids, befores, counts, statuses, are_ends, records, verdicts)
        AS c (run_id, before, count, status, ends, record, verdict)
    WHERE c.before > 0 AND c.verdict = 0 AND r.run_id = c.run_id;

    INSERT INTO log (run_id, seq, xid, ordinal, count, commit_id, at, format, events)
    SELECT c.run_id, c.before + 1, pg_current_xact_id(),
        1 + sum(c.count) OVER (ORDER BY c.ord) - c.count, c.count, c.commit_id, now_ms, 1, c.events
    FROM unnest(run_ids, commit_ids, befores, counts, all_events, verdicts)
        WITH ORDINALITY AS c (run_id, commit_id, before, count, events, verdict, ord)
    WHERE c.verdict = 0;

    IF true = ANY (are_ends) THEN
        DELETE FROM jobs j
        USING unnest(run_ids, are_ends, befores, verdicts) AS c (run_id, ends, before, verdict)
        WHERE c.ends AND c.before > 0 AND c.verdict = 0 AND j.run_id = c.run_id;
    END IF;

    IF 'remove' = ANY (changes_action) THEN
        DELETE FROM jobs j
        USING unnest(changes_of, changes_step, changes_action) AS c (of, step, action)
        WHERE c.action = 'remove' AND verdicts[c.of] = 0
            AND j.run_id = run_ids[c.of] AND j.step = c.step;
    END IF;

    IF has_lost THEN
        UPDATE jobs j SET lost = NULL
        FROM unnest(leases_of, leases_step) AS l (of, step)
        WHERE verdicts[l.of] = 0 AND j.run_id = run_ids[l.of] AND j.step = l.step;
    END IF;

    IF 'postpone' = ANY (changes_action) THEN
        UPDATE jobs j SET attempt = c.attempt, due_at = coalesce(c.at, now_ms + c.after_ms),
            order_at = order_of(coalesce(c.at, now_ms + c.after_ms), now_ms, j.priority),
            ticket = nextval('tickets'), is_leased = false, token = NULL, instance = NULL,
            expires_at = NULL, check_at = NULL, granted_by = NULL
        FROM unnest(changes_of, changes_step, changes_action, changes_attempt, changes_after_ms,
            changes_at) AS c (of, step, action, attempt, after_ms, at)
        WHERE c.action = 'postpone' AND verdicts[c.of] = 0
            AND j.run_id = run_ids[c.of] AND j.step = c.step;
    END IF;

    IF cardinality(queues_new) > 0 THEN
        INSERT INTO queues (name) SELECT DISTINCT unnest(queues_new) AS name ORDER BY name
        ON CONFLICT DO NOTHING;
    END IF;

    IF claimant IS NOT NULL AND 1 = ANY (verdicts) THEN
        SELECT greatest(0, slots - count(*)) INTO slots
        FROM unnest(run_ids, commit_ids, verdicts) AS c (run_id, commit_id, verdict)
        JOIN jobs j ON j.run_id = c.run_id
        WHERE c.verdict = 1 AND j.granted_by = c.commit_id AND j.instance = claimant
            AND j.is_leased AND j.expires_at > now_ms;
    END IF;

    expires_at := now_ms + lease_ms;
    IF 'put' = ANY (changes_action) THEN
        WITH wanted AS MATERIALIZED (
            SELECT c.*, coalesce(c.at, now_ms + c.after_ms) AS due_at,
                claimant IS NOT NULL AND coalesce(c.at, now_ms + c.after_ms) <= now_ms
                    AND (claimant_queues IS NULL OR c.queue = ANY (claimant_queues))
                    AND (claimant_queues_not IS NULL OR c.queue <> ALL (claimant_queues_not))
                    AS is_wanted
            FROM unnest(changes_of, changes_step, changes_action, changes_kind, changes_queue,
                changes_priority, changes_attempt, changes_inputs, changes_after_ms, changes_at)
                WITH ORDINALITY
                AS c (of, step, action, kind, queue, priority, attempt, inputs, after_ms, at, ord)
            WHERE c.action = 'put' AND verdicts[c.of] = 0
        ), placed AS MATERIALIZED (
            SELECT w.*, nextval('tickets') AS ticket
            FROM (
                SELECT w.*, w.is_wanted
                    AND count(*) FILTER (WHERE w.is_wanted) OVER (ORDER BY w.ord) <= slots
                    AS is_granted
                FROM wanted w ORDER BY w.ord
            ) AS w
        ), put AS (
            INSERT INTO jobs AS j (run_id, step, kind, queue, priority, attempt, inputs, due_at,
                order_at, ticket, is_leased, token, instance, expires_at, check_at, granted_by)
            SELECT run_ids[p.of], p.step, p.kind, p.queue, p.priority,
                p.attempt + p.is_granted::integer, p.inputs, p.due_at,
                order_of(p.due_at, now_ms, p.priority), p.ticket, p.is_granted,
                CASE WHEN p.is_granted THEN p.ticket END,
                CASE WHEN p.is_granted THEN claimant END,
                CASE WHEN p.is_granted THEN now_ms + lease_ms END,
                CASE WHEN p.is_granted THEN now_ms + lease_ms END,
                CASE WHEN p.is_granted THEN commit_ids[p.of] END
            FROM placed p
            ON CONFLICT (run_id, step) DO UPDATE SET kind = excluded.kind, queue = excluded.queue,
                priority = excluded.priority, attempt = excluded.attempt, inputs = excluded.inputs,
                due_at = excluded.due_at, order_at = excluded.order_at, ticket = excluded.ticket,
                is_leased = excluded.is_leased, token = excluded.token,
                instance = excluded.instance, expires_at = excluded.expires_at,
                check_at = excluded.check_at, granted_by = excluded.granted_by, lost = NULL
        )
        SELECT array_agg(p.of ORDER BY p.ord), array_agg(p.step ORDER BY p.ord),
            array_agg(p.ticket ORDER BY p.ord)
        INTO granted_of, granted_step, granted_token
        FROM placed p WHERE p.is_granted;
    END IF;
END
$$;

-- Lets leases that are over end, and leases due jobs to an instance in their order. The queues
-- are all where wanted_queues is null, but for unwanted_queues.
--
-- Jobs that are ordered before floor_at and leases to be checked before floor_check are passed
-- over: where the remains of many jobs cannot be cleaned up, a scan from the start is slow. A caller
-- scans from the start again and again all the same. How long each scan took is in the answer.
CREATE FUNCTION claim_jobs(
    claimant text, wanted_queues text[], unwanted_queues text[], slots integer, lease_ms bigint,
    floor_at bigint, floor_check bigint, checks_max integer,
    OUT claimed_at bigint, OUT due_us bigint, OUT check_us bigint, OUT checks_left boolean,
    OUT order_last bigint,
    OUT run_ids uuid[], OUT steps integer[], OUT kinds text[], OUT queues text[],
    OUT priorities smallint[], OUT attempts bigint[], OUT all_inputs text[], OUT tokens bigint[],
    OUT all_lost text[], OUT records text[]
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET enable_sort = on SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    names text[];
    picked_run uuid[];
    picked_step integer[];
    more_run uuid[];
    more_step integer[];
    count integer;
    began timestamptz;
BEGIN
    claimed_at := store_now();
    began := clock_timestamp();
    WITH over AS MATERIALIZED (
        SELECT j.run_id, j.step FROM jobs j
        WHERE j.is_leased AND j.check_at <= claimed_at AND j.check_at >= floor_check
        ORDER BY j.check_at LIMIT checks_max FOR UPDATE SKIP LOCKED
    )
    UPDATE jobs j SET is_leased = j.expires_at > claimed_at, check_at = j.expires_at
    FROM over WHERE j.run_id = over.run_id AND j.step = over.step;
    GET DIAGNOSTICS count = ROW_COUNT;
    checks_left := count >= checks_max;
    check_us := extract(epoch FROM clock_timestamp() - began) * 1000000;

    began := clock_timestamp();
    names := coalesce(wanted_queues, ARRAY(
        SELECT q.name FROM queues q
        WHERE unwanted_queues IS NULL OR q.name <> ALL (unwanted_queues) ORDER BY q.name
    ));
    IF cardinality(names) = 1 THEN
        SELECT array_agg(j.run_id), array_agg(j.step) INTO picked_run, picked_step
        FROM (
            SELECT j.run_id, j.step FROM jobs j
            WHERE j.queue = names[1] AND NOT j.is_leased
                AND j.order_at <= claimed_at AND j.order_at >= floor_at
            ORDER BY j.order_at, j.ticket LIMIT slots FOR UPDATE SKIP LOCKED
        ) AS j;
    ELSE
        -- Locking the heads of every queue would lock far more than is taken.
        WITH heads AS MATERIALIZED (
            SELECT h.* FROM unnest(names) AS q (name)
            CROSS JOIN LATERAL (
                SELECT j.run_id, j.step, j.order_at, j.ticket FROM jobs j
                WHERE j.queue = q.name AND NOT j.is_leased
                    AND j.order_at <= claimed_at AND j.order_at >= floor_at
                ORDER BY j.order_at, j.ticket LIMIT slots
            ) AS h
            ORDER BY h.order_at, h.ticket LIMIT slots
        ), locked AS MATERIALIZED (
            SELECT j.run_id, j.step FROM heads h
            JOIN jobs j ON j.run_id = h.run_id AND j.step = h.step
            WHERE NOT j.is_leased AND j.order_at <= claimed_at
            FOR UPDATE OF j SKIP LOCKED
        )
        SELECT array_agg(l.run_id), array_agg(l.step), (SELECT count(*) FROM heads)
        INTO picked_run, picked_step, count FROM locked l;
        IF coalesce(cardinality(picked_run), 0) < count THEN
            -- Somebody else takes from the same heads: take what is behind them.
            SELECT array_agg(j.run_id), array_agg(j.step) INTO more_run, more_step
            FROM (
                SELECT h.run_id, h.step FROM unnest(names) AS q (name)
                CROSS JOIN LATERAL (
                    SELECT j.run_id, j.step, j.order_at, j.ticket FROM jobs j
                    WHERE j.queue = q.name AND NOT j.is_leased
                        AND j.order_at <= claimed_at AND j.order_at >= floor_at
                        AND (j.run_id, j.step) NOT IN (
                            SELECT * FROM unnest(picked_run, picked_step)
                        )
                    ORDER BY j.order_at, j.ticket
                    LIMIT slots - coalesce(cardinality(picked_run), 0) FOR UPDATE SKIP LOCKED
                ) AS h
                ORDER BY h.order_at, h.ticket LIMIT slots - coalesce(cardinality(picked_run), 0)
            ) AS j;
            picked_run := picked_run || more_run;
            picked_step := picked_step || more_step;
        END IF;
    END IF;
    due_us := extract(epoch FROM clock_timestamp() - began) * 1000000;

    IF picked_run IS NULL THEN
        RETURN;
    END IF;
    -- A statement of its own sees the records as they are now that the jobs are locked.
    WITH picked AS MATERIALIZED (
        SELECT j.run_id, j.step, j.order_at, j.ticket, nextval('tickets') AS token
        FROM (
            SELECT j.run_id, j.step, j.order_at, j.ticket
            FROM unnest(picked_run, picked_step) AS p (run_id, step)
            JOIN jobs j ON j.run_id = p.run_id AND j.step = p.step
            ORDER BY j.order_at, j.ticket
        ) AS j
    ), taken AS (
        UPDATE jobs j SET is_leased = true, token = p.token, instance = claimant,
            attempt = j.attempt + 1, expires_at = claimed_at + lease_ms,
            check_at = claimed_at + lease_ms, granted_by = NULL,
            lost = CASE WHEN j.token IS NULL THEN j.lost
                ELSE coalesce(j.lost, '[]') || jsonb_build_object(
                    'attempt', j.attempt, 'token', j.token, 'instance', j.instance
                ) END
        FROM picked p WHERE j.run_id = p.run_id AND j.step = p.step
        RETURNING j.*
    )
    SELECT max(t.order_at),
        array_agg(t.run_id ORDER BY t.token), array_agg(t.step ORDER BY t.token),
        array_agg(t.kind ORDER BY t.token), array_agg(t.queue ORDER BY t.token),
        array_agg(t.priority ORDER BY t.token), array_agg(t.attempt ORDER BY t.token),
        array_agg(t.inputs ORDER BY t.token),
        array_agg(t.token ORDER BY t.token), array_agg(t.lost::text ORDER BY t.token),
        array_agg(r.record ORDER BY t.token)
    INTO order_last, run_ids, steps, kinds, queues, priorities, attempts, all_inputs, tokens,
        all_lost, records
    FROM taken t LEFT JOIN runs r ON r.run_id = t.run_id;
END
$$;

-- When the next job of some queues is due, or a lease is to be checked; null if never. A time that
-- is not after now_ms means that a claim is worth it.
CREATE FUNCTION next_due(
    wanted_queues text[], unwanted_queues text[], floor_at bigint, floor_check bigint,
    OUT now_ms bigint, OUT due_at bigint, OUT check_at bigint
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_variable
BEGIN
    now_ms := store_now();
    SELECT min(h.order_at) INTO due_at
    FROM unnest(coalesce(wanted_queues, ARRAY(
        SELECT q.name FROM queues q
        WHERE unwanted_queues IS NULL OR q.name <> ALL (unwanted_queues)
    ))) AS q (name)
    CROSS JOIN LATERAL (
        SELECT j.order_at FROM jobs j
        WHERE j.queue = q.name AND NOT j.is_leased AND j.order_at >= floor_at
        ORDER BY j.order_at, j.ticket LIMIT 1
    ) AS h;
    SELECT j.check_at INTO check_at FROM jobs j
    WHERE j.is_leased AND j.check_at >= floor_check ORDER BY j.check_at LIMIT 1;
END
$$;

-- Writes a whole run of another store, unless there is such a run; whether there was none.
CREATE FUNCTION import_run(
    id uuid, flow_name text, revision_name text, status_name text, at_version bigint,
    started bigint, updated bigint, ended bigint, start_key text, start_tags text,
    lacks_events boolean, lines_last bigint, record_text text, token_max bigint,
    jobs_step integer[], jobs_kind text[], jobs_queue text[],
    jobs_priority smallint[], jobs_attempt bigint[],
    jobs_inputs text[], jobs_due_at bigint[], jobs_lost text[],
    log_seq bigint[], log_count integer[], log_at bigint[], log_events text[],
    lines_number bigint[], lines_at bigint[], lines_step text[], lines_attempt bigint[],
    lines_level text[], lines_text text[]
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
    now_ms bigint := store_now();
BEGIN
    INSERT INTO runs (run_id, flow, revision, status, version, started_at, updated_at, ended_at,
        key, tags, events_removed, log_lines, record)
    VALUES (id, flow_name, revision_name, status_name, at_version, started, updated, ended,
        start_key, CASE WHEN start_tags IS NOT NULL THEN
            ARRAY(SELECT json_array_elements_text(start_tags::json)) END,
        lacks_events, lines_last, record_text)
    ON CONFLICT (run_id) DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF token_max >= (SELECT last_value FROM tickets) THEN
        -- Nobody takes a number from here to the end of this transaction.
        ALTER SEQUENCE tickets CACHE 1;
        SELECT greatest(token_max, last_value) INTO token_max FROM tickets;
        EXECUTE format('ALTER SEQUENCE tickets RESTART WITH %s', token_max + 1);
    END IF;
    INSERT INTO queues (name) SELECT DISTINCT unnest(jobs_queue) AS name ORDER BY name
    ON CONFLICT DO NOTHING;
    INSERT INTO jobs (run_id, step, kind, queue, priority, attempt, inputs, due_at, order_at,
        ticket, is_leased, lost)
    SELECT id, j.step, j.kind, j.queue, j.priority, j.attempt, j.inputs, j.due_at,
        order_of(j.due_at, now_ms, j.priority), nextval('tickets'), false, j.lost::jsonb
    FROM unnest(jobs_step, jobs_kind, jobs_queue, jobs_priority, jobs_attempt, jobs_inputs,
        jobs_due_at, jobs_lost)
        AS j (step, kind, queue, priority, attempt, inputs, due_at, lost);
    -- No commit has the nil id, so none is taken for one that was applied.
    INSERT INTO log (run_id, seq, xid, ordinal, count, commit_id, at, format, events)
    SELECT id, l.seq, pg_current_xact_id(), 1 + sum(l.count) OVER (ORDER BY l.seq) - l.count,
        l.count, '00000000-0000-0000-0000-000000000000', l.at, 1, l.events
    FROM unnest(log_seq, log_count, log_at, log_events) AS l (seq, count, at, events);
    INSERT INTO log_lines (run_id, number, at, step, attempt, level, text)
    SELECT id, l.*
    FROM unnest(lines_number, lines_at, lines_step, lines_attempt, lines_level, lines_text) AS l;
    RETURN true;
END
$$;

-- Makes queued jobs due, as if they were queued now; those that are due stay as they are. Answers
-- the numbers of those that are there.
CREATE FUNCTION wake_jobs(run_ids uuid[], steps integer[], OUT places integer[])
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    now_ms bigint;
BEGIN
    PERFORM FROM unnest(run_ids, steps) AS w (run_id, step)
    JOIN jobs j ON j.run_id = w.run_id AND j.step = w.step
    WHERE NOT j.is_leased
    ORDER BY j.run_id, j.step FOR UPDATE OF j;
    now_ms := store_now();
    UPDATE jobs j SET due_at = now_ms, order_at = order_of(now_ms, now_ms, j.priority),
        ticket = nextval('tickets')
    FROM (SELECT DISTINCT w.* FROM unnest(run_ids, steps) AS w (run_id, step)) AS w
    WHERE j.run_id = w.run_id AND j.step = w.step AND NOT j.is_leased AND j.due_at > now_ms;
    places := ARRAY(
        SELECT min(w.ord)::integer
        FROM unnest(run_ids, steps) WITH ORDINALITY AS w (run_id, step, ord)
        JOIN jobs j ON j.run_id = w.run_id AND j.step = w.step
        GROUP BY j.run_id, j.step ORDER BY 1
    );
END
$$;

-- What waits in each queue, counted up to count_max each; also jobs whose lease is over and that
-- nobody has claimed since.
CREATE FUNCTION queue_stats(count_max bigint)
RETURNS TABLE (name text, due bigint, later bigint, oldest_due_at bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := store_now();
BEGIN
    RETURN QUERY
    WITH over AS MATERIALIZED (
        SELECT o.queue, count(*) AS count, min(o.due_at) AS oldest
        FROM (
            SELECT j.queue, j.due_at FROM jobs j
            WHERE j.is_leased AND j.check_at <= now_ms AND j.expires_at <= now_ms
            LIMIT count_max
        ) AS o
        GROUP BY o.queue
    )
    SELECT q.name, least(count_max, d.count + coalesce(o.count, 0)), l.count,
        least(d.oldest, o.oldest)
    FROM queues q
    CROSS JOIN LATERAL (
        SELECT count(*) AS count, min(j.due_at) AS oldest
        FROM (
            SELECT j.due_at FROM jobs j
            WHERE j.queue = q.name AND NOT j.is_leased AND j.order_at <= now_ms
            ORDER BY j.order_at, j.ticket LIMIT count_max
        ) AS j
    ) AS d
    CROSS JOIN LATERAL (
        SELECT count(*) AS count
        FROM (
            SELECT FROM jobs j
            WHERE j.queue = q.name AND NOT j.is_leased AND j.order_at > now_ms
            ORDER BY j.order_at, j.ticket LIMIT count_max
        ) AS j
    ) AS l
    LEFT JOIN over o ON o.queue = q.name
    WHERE d.count + l.count + coalesce(o.count, 0) > 0
    ORDER BY q.name COLLATE "C";
END
$$;
