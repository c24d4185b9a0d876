-- A step of a chain writes to no index but those of the log: it adds a row there, and rewrites those
-- of its run and of its job, which goes on from one step to the next. PostgreSQL leaves indexes alone
-- as long as none of their columns changes and the page has room for a second version of all that it
-- holds.

ALTER TABLE runs SET (fillfactor = 35);

-- Steps that may share a row, one after the other. Whoever looks for a job of a run looks at the
-- open ones of its lane, so this bounds what he sees in a run with a thousand of them.
CREATE FUNCTION lane_of(step integer) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT step / 16 $$;

ALTER TABLE jobs RENAME TO jobs_before;

-- Small and busy. A step of a run has at most one job: whoever writes jobs of a run has locked the
-- run, but for who leases a job that waits, and who renews. Who lets a lease end has locked it too,
-- so no lease ends while somebody else has.
--
-- A job waits in a queue, by order_at and ticket; or it is leased, and found by check_at, no later
-- than the end of the lease. One that was never in its queue has neither order_at nor ticket.
CREATE TABLE jobs (
    run_id uuid NOT NULL,
    lane integer NOT NULL GENERATED ALWAYS AS (lane_of(step)) STORED,
    step integer NOT NULL,
    -- The ticket of the first job that was in this row.
    number bigint NOT NULL,
    attempt bigint NOT NULL,
    due_at bigint NOT NULL,
    priority smallint NOT NULL,
    kind text NOT NULL,
    queue text NOT NULL,
    -- The numbers of the events that it needs, as a JSON array.
    inputs text NOT NULL,
    -- Its queue, unless it is leased.
    waits_in text,
    order_at bigint,
    ticket bigint,
    check_at bigint,
    token bigint,
    expires_at bigint,
    instance text,
    granted_by uuid,
    -- Leases that ended without a word and are not in the log yet.
    lost jsonb,
    CONSTRAINT jobs_by_run PRIMARY KEY (run_id, lane, number)
) WITH (
    fillfactor = 35,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.1,
    autovacuum_vacuum_cost_limit = 2000
);

INSERT INTO jobs (run_id, step, number, attempt, due_at, priority, kind, queue, inputs, waits_in,
    order_at, ticket, check_at, token, expires_at, instance, granted_by, lost)
SELECT run_id, step, ticket, attempt, due_at, priority, kind, queue, inputs,
    CASE WHEN NOT is_leased THEN queue END, order_at, ticket, CASE WHEN is_leased THEN check_at END,
    token, expires_at, instance, granted_by, lost
FROM jobs_before;

DROP TABLE jobs_before;
CREATE INDEX jobs_by_order ON jobs (waits_in, order_at, ticket) WHERE waits_in IS NOT NULL;
CREATE INDEX jobs_by_check ON jobs (check_at) WHERE check_at IS NOT NULL;

DROP FUNCTION commit_batch;

-- Applies commits, each about another run, or refuses them.
--
-- A commit is named by its place in the arrays from run_ids to ordinals; ordinals are the places of
-- their events in the transaction. `steps` are the places of those that go on with a run, `starts` of
-- those that start one, which expect version 0 and alone need the next four arrays; both by run ids,
-- which is the order of their locks.
--
-- leases_* are the leases that commits need; leases_to is the step of the job that takes the row of
-- such a lease. changes_* are the last words on steps, by their places: adds are jobs of starts; moves
-- are other jobs that steps have from now on, in the row of changes_from if that step has one;
-- postponed go back to their queues; removes have no job. Of a job that is due now and wanted a lease
-- is granted to the claimant while it has slots.
--
-- gates are the generations that starts name, null for other commits; gate_flows and
-- gate_generations are the same, each flow with each generation once.
--
-- Answers one row. verdicts: 0 applied, 1 applied by an earlier call, 2 there is such a run, 3 the
-- run is at another version, 4 a lease is lost: that of the step in lost_steps, 5 the gate is at
-- another generation: the gate is in gates_found, and empty if it was never set. A run that is there
-- was started before, whatever the gate is now. granted are places in changes_*, without a token if
-- none was.
--
-- Arrays are looked into by place: to unnest them would copy every record and event once more.
CREATE FUNCTION commit_batch(
    gates bigint[], gate_flows text[], gate_generations bigint[],
    run_ids uuid[], commit_ids uuid[], befores bigint[], counts integer[], statuses text[],
    are_ends boolean[], records text[], all_events text[], ordinals integer[],
    flows text[], revisions text[], keys text[], all_tags text[],
    steps integer[], starts integer[],
    leases_of integer[], leases_step integer[], leases_token bigint[], leases_to integer[],
    changes_of integer[], changes_step integer[], changes_from integer[], changes_kind text[],
    changes_queue text[], changes_priority smallint[], changes_attempt bigint[],
    changes_inputs text[], changes_after_ms bigint[], changes_at bigint[],
    changes_wanted boolean[],
    adds integer[], moves integer[], postponed integer[], removes integer[],
    queues_new text[], claimant text, slots integer, lease_ms bigint,
    OUT verdicts smallint[], OUT lost_steps integer[],
    OUT granted integer[], OUT granted_token bigint[],
    OUT expires_at bigint, OUT gates_found text[]
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    count integer := cardinality(run_ids);
    now_ms bigint;
    -- When the runs were locked.
    judged_ms bigint;
    -- How many leases are held.
    held bigint;
    is_lost boolean;
    has_lost boolean := false;
    -- Whether a job is where another one is to be moved to.
    is_taken boolean := false;
    is_stale boolean := false;
    refused integer := 0;
    written integer[];
    inserted uuid[];
    added integer[];
    added_token bigint[];
    gate_value text;
    row record;
BEGIN
    verdicts := array_fill(0::smallint, ARRAY[count]);
    lost_steps := array_fill(NULL::integer, ARRAY[count]);

    FOR i IN 1 .. cardinality(gate_flows) LOOP
        PERFORM pg_advisory_xact_lock_shared(gate_lock(gate_flows[i]));
        -- A statement of its own sees the gate as it is now that it is locked.
        SELECT r.value INTO gate_value FROM records r
        WHERE r.kind = 'gate' AND r.key = gate_flows[i];
        CONTINUE WHEN gate_generations[i] = coalesce((gate_value::json ->> 'generation')::bigint, 0);
        FOR row IN
            SELECT c.ord
            FROM unnest(flows, gates, run_ids) WITH ORDINALITY AS c (flow, generation, run_id, ord)
            WHERE c.flow = gate_flows[i] AND c.generation = gate_generations[i]
                AND NOT EXISTS (SELECT FROM runs r WHERE r.run_id = c.run_id)
        LOOP
            gates_found := coalesce(gates_found, array_fill(NULL::text, ARRAY[count]));
            gates_found[row.ord] := coalesce(gate_value, '');
            verdicts[row.ord] := 5;
            refused := refused + 1;
        END LOOP;
    END LOOP;

    -- As store_now does, which would be planned anew in every call.
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + m.value INTO now_ms
    FROM meta m WHERE m.name = 'clock_offset_ms';

    -- Runs are locked as they are written, and leases judged after that. If one is lost, all of it
    -- is undone and done again without its commit; the version has decided before.
    LOOP
        BEGIN
            IF cardinality(steps) > 0 THEN
                WITH written AS (
                    UPDATE runs r SET version = befores[c.at] + counts[c.at],
                        status = statuses[c.at], updated_at = now_ms,
                        ended_at = CASE WHEN are_ends[c.at] THEN now_ms END,
                        record = records[c.at]
                    FROM unnest(steps) AS c (at)
                    WHERE verdicts[c.at] = 0 AND r.run_id = run_ids[c.at]
                        AND r.version = befores[c.at] AND r.ended_at IS NULL
                    RETURNING c.at
                )
                SELECT array_agg(w.at) INTO written FROM written w;
            END IF;
            IF cardinality(leases_of) > 0 THEN
                SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + m.value
                INTO judged_ms FROM meta m WHERE m.name = 'clock_offset_ms';
                SELECT count(*) FILTER (WHERE j.step = l.step AND j.token = leases_token[l.at]
                        AND j.expires_at > judged_ms),
                    bool_or(j.lost IS NOT NULL), bool_or(j.step <> l.step)
                INTO held, has_lost, is_taken
                FROM unnest(leases_step) WITH ORDINALITY AS l (step, at)
                JOIN jobs j ON j.run_id = run_ids[leases_of[l.at]] AND j.lane = lane_of(l.step)
                    AND (j.step = l.step OR j.step = leases_to[l.at]);
                IF held < cardinality(leases_of) THEN
                    is_lost := false;
                    FOR row IN
                        SELECT l.at FROM unnest(leases_step) WITH ORDINALITY AS l (step, at)
                        WHERE (befores[leases_of[l.at]] = 0 OR leases_of[l.at] = ANY (written))
                            AND NOT EXISTS (
                                SELECT FROM jobs j WHERE j.run_id = run_ids[leases_of[l.at]]
                                    AND j.lane = lane_of(l.step) AND j.step = l.step
                                    AND j.token = leases_token[l.at] AND j.expires_at > judged_ms
                            )
                        ORDER BY l.at
                    LOOP
                        CONTINUE WHEN verdicts[leases_of[row.at]] <> 0;
                        is_lost := true;
                        refused := refused + 1;
                        verdicts[leases_of[row.at]] := 4;
                        lost_steps[leases_of[row.at]] := leases_step[row.at];
                    END LOOP;
                    IF is_lost THEN
                        RAISE EXCEPTION USING ERRCODE = 'FG002', MESSAGE = 'a lease is lost';
                    END IF;
                END IF;
            END IF;
            EXIT;
        EXCEPTION WHEN SQLSTATE 'FG002' THEN
            NULL;
        END;
    END LOOP;

    IF cardinality(starts) > 0 THEN
        WITH added AS (
            INSERT INTO runs (run_id, flow, revision, status, version, started_at, updated_at,
                ended_at, key, tags, record)
            SELECT run_ids[c.at], flows[c.at], revisions[c.at], statuses[c.at], counts[c.at],
                now_ms, now_ms, CASE WHEN are_ends[c.at] THEN now_ms END, keys[c.at],
                CASE WHEN all_tags[c.at] IS NOT NULL THEN
                    ARRAY(SELECT json_array_elements_text(all_tags[c.at]::json)) END,
                records[c.at]
            FROM unnest(starts) AS c (at)
            WHERE verdicts[c.at] = 0
            ON CONFLICT (run_id) DO NOTHING
            RETURNING run_id
        )
        SELECT array_agg(a.run_id) INTO inserted FROM added a;
    END IF;
    IF coalesce(cardinality(written), 0) + coalesce(cardinality(inserted), 0) + refused < count THEN
        is_stale := true;
        FOR row IN
            SELECT c.at FROM unnest(steps) AS c (at)
            EXCEPT SELECT w.at FROM unnest(written) AS w (at)
        LOOP
            IF verdicts[row.at] = 0 THEN
                verdicts[row.at] := 3;
            END IF;
        END LOOP;
        FOR row IN
            SELECT c.at FROM unnest(starts) AS c (at)
            WHERE array_position(inserted, run_ids[c.at]) IS NULL
        LOOP
            IF verdicts[row.at] = 0 THEN
                verdicts[row.at] := 2;
            END IF;
        END LOOP;
    END IF;

    IF is_stale THEN
        FOR row IN
            SELECT c.at FROM unnest(verdicts) WITH ORDINALITY AS c (verdict, at)
            JOIN log l ON l.run_id = run_ids[c.at] AND l.seq = befores[c.at] + 1
            WHERE c.verdict IN (2, 3) AND l.commit_id = commit_ids[c.at]
        LOOP
            verdicts[row.at] := 1;
        END LOOP;
    END IF;

    INSERT INTO log (run_id, seq, xid, ordinal, count, commit_id, at, format, events)
    SELECT run_ids[c.at], befores[c.at] + 1, pg_current_xact_id(), ordinals[c.at], counts[c.at],
        commit_ids[c.at], now_ms, 1, all_events[c.at]
    FROM unnest(verdicts) WITH ORDINALITY AS c (verdict, at)
    WHERE c.verdict = 0;

    IF true = ANY (are_ends) THEN
        DELETE FROM jobs j USING unnest(steps) AS c (at)
        WHERE are_ends[c.at] AND verdicts[c.at] = 0 AND j.run_id = run_ids[c.at];
    END IF;

    IF cardinality(removes) > 0 THEN
        DELETE FROM jobs j USING unnest(removes) AS c (at)
        WHERE verdicts[changes_of[c.at]] = 0 AND j.run_id = run_ids[changes_of[c.at]]
            AND j.lane = lane_of(changes_step[c.at]) AND j.step = changes_step[c.at];
    END IF;

    IF is_taken THEN
        DELETE FROM jobs j USING unnest(leases_to) WITH ORDINALITY AS l (step, at)
        WHERE verdicts[leases_of[l.at]] = 0 AND j.run_id = run_ids[leases_of[l.at]]
            AND j.lane = lane_of(l.step) AND j.step = l.step;
    END IF;

    IF has_lost THEN
        UPDATE jobs j SET lost = NULL
        FROM unnest(leases_step) WITH ORDINALITY AS l (step, at)
        WHERE verdicts[leases_of[l.at]] = 0 AND j.run_id = run_ids[leases_of[l.at]]
            AND j.lane = lane_of(l.step) AND j.step = l.step;
    END IF;

    IF cardinality(postponed) > 0 THEN
        UPDATE jobs j SET attempt = changes_attempt[p.at], due_at = p.due_at,
            order_at = order_of(p.due_at, now_ms, j.priority), ticket = nextval('tickets'),
            waits_in = j.queue, token = NULL, instance = NULL, expires_at = NULL, check_at = NULL,
            granted_by = NULL
        FROM (
            SELECT c.at, coalesce(changes_at[c.at], now_ms + changes_after_ms[c.at]) AS due_at
            FROM unnest(postponed) AS c (at)
        ) AS p
        WHERE verdicts[changes_of[p.at]] = 0 AND j.run_id = run_ids[changes_of[p.at]]
            AND j.lane = lane_of(changes_step[p.at]) AND j.step = changes_step[p.at];
    END IF;

    IF cardinality(queues_new) > 0 THEN
        INSERT INTO queues (name) SELECT DISTINCT unnest(queues_new) AS name ORDER BY name
        ON CONFLICT DO NOTHING;
    END IF;

    expires_at := now_ms + lease_ms;
    IF is_stale AND 1 = ANY (verdicts) THEN
        SELECT greatest(0, slots - count(*)) INTO slots
        FROM unnest(verdicts) WITH ORDINALITY AS c (verdict, at)
        JOIN jobs j ON j.run_id = run_ids[c.at]
        WHERE c.verdict = 1 AND j.granted_by = commit_ids[c.at] AND j.instance = claimant
            AND j.waits_in IS NULL AND j.expires_at > now_ms;
    END IF;
    IF cardinality(array_positions(changes_wanted, true)) > slots THEN
        changes_wanted := ARRAY(
            SELECT w.is_wanted AND count(*) FILTER (WHERE w.is_wanted) OVER (ORDER BY w.at) <= slots
            FROM (
                SELECT c.at, c.is_wanted AND verdicts[changes_of[c.at]] = 0
                    AND coalesce(changes_at[c.at], now_ms + changes_after_ms[c.at]) <= now_ms
                    AS is_wanted
                FROM unnest(changes_wanted) WITH ORDINALITY AS c (is_wanted, at)
            ) AS w
            ORDER BY w.at
        );
    END IF;

    IF cardinality(moves) > 0 THEN
        WITH moved AS (
            UPDATE jobs j SET step = changes_step[p.at],
                attempt = changes_attempt[p.at] + p.is_granted::integer, due_at = p.due_at,
                priority = changes_priority[p.at], kind = changes_kind[p.at],
                queue = changes_queue[p.at], inputs = changes_inputs[p.at],
                waits_in = CASE WHEN NOT p.is_granted THEN changes_queue[p.at] END,
                order_at = CASE WHEN NOT p.is_granted THEN
                    order_of(p.due_at, now_ms, changes_priority[p.at]) END,
                ticket = CASE WHEN NOT p.is_granted THEN p.ticket END,
                -- Where it is found stays the same as long as that is soon enough.
                check_at = CASE WHEN p.is_granted THEN least(j.check_at, now_ms + lease_ms) END,
                token = CASE WHEN p.is_granted THEN p.ticket END,
                expires_at = CASE WHEN p.is_granted THEN now_ms + lease_ms END,
                instance = CASE WHEN p.is_granted THEN claimant END,
                granted_by = CASE WHEN p.is_granted THEN commit_ids[changes_of[p.at]] END,
                lost = NULL
            FROM (
                SELECT c.at, c.due_at, nextval('tickets') AS ticket,
                    changes_wanted[c.at] AND c.due_at <= now_ms AS is_granted
                FROM (
                    SELECT m.at, coalesce(changes_at[m.at], now_ms + changes_after_ms[m.at])
                        AS due_at
                    FROM unnest(moves) AS m (at) WHERE verdicts[changes_of[m.at]] = 0
                ) AS c
            ) AS p
            WHERE j.run_id = run_ids[changes_of[p.at]] AND j.lane = lane_of(changes_from[p.at])
                AND j.step = changes_from[p.at]
            RETURNING p.at, j.token
        )
        SELECT array_agg(m.at), array_agg(m.token) INTO granted, granted_token FROM moved m;
        IF coalesce(cardinality(granted), 0) < cardinality(moves) THEN
            adds := adds || ARRAY(
                SELECT m.at FROM unnest(moves) AS m (at)
                EXCEPT SELECT g.at FROM unnest(granted) AS g (at)
            );
        END IF;
    END IF;
    IF cardinality(adds) > 0 THEN
        WITH placed AS MATERIALIZED (
            SELECT c.at, c.due_at, nextval('tickets') AS ticket,
                changes_wanted[c.at] AND c.due_at <= now_ms AS is_granted
            FROM (
                SELECT a.at, coalesce(changes_at[a.at], now_ms + changes_after_ms[a.at]) AS due_at
                FROM unnest(adds) AS a (at) WHERE verdicts[changes_of[a.at]] = 0
            ) AS c
        ), added AS (
            INSERT INTO jobs (run_id, step, number, attempt, due_at, priority, kind, queue, inputs,
                waits_in, order_at, ticket, check_at, token, expires_at, instance, granted_by)
            SELECT run_ids[changes_of[p.at]], changes_step[p.at], p.ticket,
                changes_attempt[p.at] + p.is_granted::integer, p.due_at, changes_priority[p.at],
                changes_kind[p.at], changes_queue[p.at], changes_inputs[p.at],
                CASE WHEN NOT p.is_granted THEN changes_queue[p.at] END,
                CASE WHEN NOT p.is_granted THEN
                    order_of(p.due_at, now_ms, changes_priority[p.at]) END,
                CASE WHEN NOT p.is_granted THEN p.ticket END,
                CASE WHEN p.is_granted THEN now_ms + lease_ms END,
                CASE WHEN p.is_granted THEN p.ticket END,
                CASE WHEN p.is_granted THEN now_ms + lease_ms END,
                CASE WHEN p.is_granted THEN claimant END,
                CASE WHEN p.is_granted THEN commit_ids[changes_of[p.at]] END
            FROM placed p
        )
        SELECT array_agg(p.at), array_agg(p.ticket) INTO added, added_token
        FROM placed p WHERE p.is_granted;
        granted := granted || added;
        granted_token := granted_token || added_token;
    END IF;
END
$$;

-- Lets leases that are over end, and leases due jobs to an instance in their order. The queues
-- are all of no pool where wanted_queues is null, but for unwanted_queues; with those of a pool if
-- `@` and its name is among unwanted_queues.
--
-- Jobs that are ordered before floor_at and leases to be checked before floor_check are passed
-- over: where the remains of many jobs cannot be cleaned up, a scan from the start is slow. A caller
-- scans from the start again and again all the same. How long each scan took is in the answer.
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
        SELECT j.run_id, j.lane, j.number, j.expires_at <= claimed_at AS is_over
        FROM jobs j JOIN runs r ON r.run_id = j.run_id
        WHERE j.check_at <= claimed_at AND j.check_at >= floor_check
        ORDER BY j.check_at LIMIT checks_max FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE jobs j SET waits_in = CASE WHEN over.is_over THEN j.queue END,
        order_at = CASE WHEN over.is_over THEN
            coalesce(j.order_at, order_of(j.due_at, j.due_at, j.priority)) ELSE j.order_at END,
        ticket = CASE WHEN over.is_over THEN coalesce(j.ticket, j.token) ELSE j.ticket END,
        check_at = CASE WHEN NOT over.is_over THEN j.expires_at END
    FROM over
    WHERE j.run_id = over.run_id AND j.lane = over.lane AND j.number = over.number;
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
            WHERE j.waits_in = names[1]
                AND j.order_at <= claimed_at AND j.order_at >= floor_at
            ORDER BY j.order_at, j.ticket LIMIT slots FOR UPDATE SKIP LOCKED
        ) AS j;
    ELSE
        -- Locking the heads of every queue would lock far more than is taken.
        WITH heads AS MATERIALIZED (
            SELECT h.* FROM unnest(names) AS q (name)
            CROSS JOIN LATERAL (
                SELECT j.run_id, j.step, j.order_at, j.ticket FROM jobs j
                WHERE j.waits_in = q.name
                    AND j.order_at <= claimed_at AND j.order_at >= floor_at
                ORDER BY j.order_at, j.ticket LIMIT slots
            ) AS h
            ORDER BY h.order_at, h.ticket LIMIT slots
        ), locked AS MATERIALIZED (
            SELECT j.run_id, j.step FROM heads h
            JOIN jobs j ON j.run_id = h.run_id AND j.lane = lane_of(h.step)
                AND j.step = h.step
            WHERE j.waits_in IS NOT NULL AND j.order_at <= claimed_at
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
                    WHERE j.waits_in = q.name
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
            JOIN jobs j ON j.run_id = p.run_id AND j.lane = lane_of(p.step) AND j.step = p.step
            ORDER BY j.order_at, j.ticket
        ) AS j
    ), taken AS (
        UPDATE jobs j SET waits_in = NULL, token = p.token, instance = claimant,
            attempt = j.attempt + 1, expires_at = claimed_at + lease_ms,
            check_at = claimed_at + lease_ms, granted_by = NULL,
            lost = CASE WHEN j.token IS NULL THEN j.lost
                ELSE coalesce(j.lost, '[]') || jsonb_build_object(
                    'attempt', j.attempt, 'token', j.token, 'instance', j.instance
                ) END
        FROM picked p
        WHERE j.run_id = p.run_id AND j.lane = lane_of(p.step) AND j.step = p.step
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
        WHERE j.waits_in = q.name AND j.order_at >= floor_at
        ORDER BY j.order_at, j.ticket LIMIT 1
    ) AS h;
    SELECT j.check_at INTO check_at FROM jobs j
    WHERE j.check_at >= floor_check ORDER BY j.check_at LIMIT 1;
END
$$;

-- Extends leases that are held; where each then ends, or null where it is lost. No lease is named
-- twice. One whose job somebody else is writing stays as it is: whoever renews does so long before
-- the end, and waits for nobody.
CREATE OR REPLACE FUNCTION renew_leases(
    run_ids uuid[], steps integer[], tokens bigint[], lease_ms bigint, OUT held_until bigint[]
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    now_ms bigint := store_now();
    row record;
BEGIN
    held_until := array_fill(NULL::bigint, ARRAY[cardinality(run_ids)]);
    FOR row IN
        WITH held AS MATERIALIZED (
            SELECT l.ord, j.run_id, j.lane, j.number
            FROM unnest(run_ids, steps, tokens) WITH ORDINALITY AS l (run_id, step, token, ord)
            JOIN jobs j ON j.run_id = l.run_id AND j.lane = lane_of(l.step) AND j.step = l.step
                AND j.token = l.token AND j.waits_in IS NULL AND j.expires_at > now_ms
            FOR NO KEY UPDATE OF j SKIP LOCKED
        )
        UPDATE jobs j SET expires_at = greatest(j.expires_at, now_ms + lease_ms)
        FROM held h WHERE j.run_id = h.run_id AND j.lane = h.lane AND j.number = h.number
        RETURNING h.ord, j.expires_at
    LOOP
        held_until[row.ord] := row.expires_at;
    END LOOP;
    IF array_position(held_until, NULL) IS NOT NULL THEN
        FOR row IN
            SELECT l.ord, j.expires_at
            FROM unnest(run_ids, steps, tokens) WITH ORDINALITY AS l (run_id, step, token, ord)
            JOIN jobs j ON j.run_id = l.run_id AND j.lane = lane_of(l.step) AND j.step = l.step
                AND j.token = l.token AND j.waits_in IS NULL AND j.expires_at > now_ms
        LOOP
            held_until[row.ord] := coalesce(held_until[row.ord], row.expires_at);
        END LOOP;
    END IF;
END
$$;

-- Makes queued jobs due, as if they were queued now; those that are due stay as they are. Answers
-- the numbers of those that are there.
CREATE OR REPLACE FUNCTION wake_jobs(run_ids uuid[], steps integer[], OUT places integer[])
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
    JOIN jobs j ON j.run_id = w.run_id AND j.lane = lane_of(w.step) AND j.step = w.step
    WHERE j.waits_in IS NOT NULL
    ORDER BY j.run_id, j.step FOR UPDATE OF j;
    now_ms := store_now();
    UPDATE jobs j SET due_at = now_ms, order_at = order_of(now_ms, now_ms, j.priority),
        ticket = nextval('tickets')
    FROM (SELECT DISTINCT w.* FROM unnest(run_ids, steps) AS w (run_id, step)) AS w
    WHERE j.run_id = w.run_id AND j.lane = lane_of(w.step) AND j.step = w.step
        AND j.waits_in IS NOT NULL AND j.due_at > now_ms;
    places := ARRAY(
        SELECT min(w.ord)::integer
        FROM unnest(run_ids, steps) WITH ORDINALITY AS w (run_id, step, ord)
        JOIN jobs j ON j.run_id = w.run_id AND j.lane = lane_of(w.step) AND j.step = w.step
        GROUP BY j.run_id, j.step ORDER BY 1
    );
END
$$;

-- What waits in each queue, counted up to count_max each; also jobs whose lease is over and that
-- nobody has claimed since.
CREATE OR REPLACE FUNCTION queue_stats(count_max bigint)
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
            WHERE j.check_at <= now_ms AND j.expires_at <= now_ms
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
            WHERE j.waits_in = q.name AND j.order_at <= now_ms
            ORDER BY j.order_at, j.ticket LIMIT count_max
        ) AS j
    ) AS d
    CROSS JOIN LATERAL (
        SELECT count(*) AS count
        FROM (
            SELECT FROM jobs j
            WHERE j.waits_in = q.name AND j.order_at > now_ms
            ORDER BY j.order_at, j.ticket LIMIT count_max
        ) AS j
    ) AS l
    LEFT JOIN over o ON o.queue = q.name
    WHERE d.count + l.count + coalesce(o.count, 0) > 0
    ORDER BY q.name COLLATE "C";
END
$$;

-- Writes a whole run of another store, unless there is such a run; whether there was none.
CREATE OR REPLACE FUNCTION import_run(
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
    INSERT INTO jobs (run_id, step, number, attempt, due_at, priority, kind, queue, inputs,
        waits_in, order_at, ticket, lost)
    SELECT id, j.step, j.ticket, j.attempt, j.due_at, j.priority, j.kind, j.queue, j.inputs,
        j.queue, order_of(j.due_at, now_ms, j.priority), j.ticket, j.lost::jsonb
    FROM (
        SELECT j.*, nextval('tickets') AS ticket
        FROM unnest(jobs_step, jobs_kind, jobs_queue, jobs_priority, jobs_attempt, jobs_inputs,
            jobs_due_at, jobs_lost)
            AS j (step, kind, queue, priority, attempt, inputs, due_at, lost)
    ) AS j;
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
