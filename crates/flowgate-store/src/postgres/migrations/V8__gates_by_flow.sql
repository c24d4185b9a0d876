-- Deployments ask all the time which runs of a flow are open or held: by runs_by_flow that is a look
-- at all that ever ended, by runs_by_status at those of all flows.
CREATE INDEX runs_by_flow_and_status ON runs (flow, status, started_at, run_id)
    WHERE status <> 'completed';

-- A batch in which runs start looks at the gate of each flow once, in the function that applies it.

DROP FUNCTION commit_at_gates;
DROP FUNCTION commit_batch;

-- Whoever calls it has the schema first in the search path.
CREATE OR REPLACE FUNCTION gate_lock(flow_name text) RETURNS bigint
LANGUAGE sql STABLE
RETURN hashtextextended(current_schema() || '/gate/' || flow_name, 0);

-- Applies commits, each about another run, or refuses them.
--
-- A commit is named by its place in the first eight arrays. Of a start, which expects version 0,
-- the next four hold what never changes. leases_* are the leases that commits need. changes_* are
-- the last words on steps; of a put that is due now, and in the queues of the claimant, a lease
-- is granted to it while it has slots. Those are all queues where claimant_queues is null, but for
-- claimant_queues_not.
--
-- gates are the generations that starts name, null for other commits; gate_flows and
-- gate_generations are the same, each flow with each generation once. If the gate of a flow is at
-- another one, nothing is written.
--
-- Answers one row. verdicts: 0 applied, 1 applied by an earlier call, 2 there is such a run, 3 the
-- run is at another version, 4 a lease is lost: that of the step in lost_steps. Where a gate has
-- moved: 5 for the starts that name another generation, with the gate in gates_found, which is empty
-- if it was never set, and 6 for all else, which is to be sent again. A run that is there was
-- started before, whatever the gate is now.
CREATE FUNCTION commit_batch(
    gates bigint[], gate_flows text[], gate_generations bigint[],
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
    OUT expires_at bigint, OUT gates_found text[]
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
    gate_value text;
    row record;
BEGIN
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
            IF gates_found IS NULL THEN
                verdicts := array_fill(6::smallint, ARRAY[count]);
                gates_found := array_fill(NULL::text, ARRAY[count]);
            END IF;
            verdicts[row.ord] := 5;
            gates_found[row.ord] := coalesce(gate_value, '');
        END LOOP;
    END LOOP;
    IF gates_found IS NOT NULL THEN
        expires_at := 0;
        RETURN;
    END IF;

    verdicts := array_fill(0::smallint, ARRAY[count]);

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
