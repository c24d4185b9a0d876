-- A queue `mail@green` holds jobs of `mail` for the pool `green`: whoever wants all queues gets those
-- of no pool, and of `green` if `@green` is among the queues that it leaves out, since no queue has
-- that name.

CREATE OR REPLACE FUNCTION claim_jobs(
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
        WHERE (unwanted_queues IS NULL OR q.name <> ALL (unwanted_queues))
            AND (strpos(q.name, '@') = 0
                OR substr(q.name, strpos(q.name, '@')) = ANY (unwanted_queues))
        ORDER BY q.name
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
CREATE OR REPLACE FUNCTION next_due(
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
        WHERE (unwanted_queues IS NULL OR q.name <> ALL (unwanted_queues))
            AND (strpos(q.name, '@') = 0
                OR substr(q.name, strpos(q.name, '@')) = ANY (unwanted_queues))
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
