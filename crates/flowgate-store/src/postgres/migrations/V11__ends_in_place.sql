-- The end of a run rewrites its row and no index, as its other steps do: no index of `runs` has a
-- column that the end of a run changes. What was found by those is found by what is written anyway:
-- runs that ended by the last rows of their logs, all that have not completed by rows of their own.

-- Every run that has not completed, by its status.
CREATE TABLE incomplete_runs (
    flow text NOT NULL,
    status text NOT NULL,
    started_at bigint NOT NULL,
    run_id uuid NOT NULL,
    PRIMARY KEY (flow, status, started_at, run_id)
) WITH (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.1,
    autovacuum_vacuum_cost_limit = 2000
);

INSERT INTO incomplete_runs (flow, status, started_at, run_id)
SELECT flow, status, started_at, run_id FROM runs WHERE status <> 'completed';

-- The flows of these runs, by one look at the index each.
CREATE VIEW incomplete_flows AS
WITH RECURSIVE flows (flow) AS (
    SELECT min(i.flow) FROM incomplete_runs i
    UNION ALL
    SELECT (SELECT min(i.flow) FROM incomplete_runs i WHERE i.flow > f.flow)
    FROM flows f WHERE f.flow IS NOT NULL
)
SELECT f.flow FROM flows f WHERE f.flow IS NOT NULL;

DROP INDEX runs_by_status;
DROP INDEX runs_by_flow_and_status;
DROP INDEX runs_by_end;

ALTER TABLE runs
    -- The status that the last commit found.
    ADD COLUMN status_before text,
    -- When it ended, of a run whose events are removed.
    ADD COLUMN bare_ended_at bigint;
UPDATE runs SET bare_ended_at = ended_at WHERE events_removed;
CREATE INDEX runs_by_bare_end ON runs (bare_ended_at) WHERE bare_ended_at IS NOT NULL;

-- Whether the run ends with this row.
ALTER TABLE log ADD COLUMN is_end boolean NOT NULL DEFAULT false;
UPDATE log l SET is_end = true
FROM runs r
WHERE r.ended_at IS NOT NULL AND l.run_id = r.run_id AND l.seq + l.count = r.version + 1;
CREATE INDEX log_by_end ON log (at) WHERE is_end;

-- lane_of(step), as whoever adds a row says: to work it out of each row took longer than to find the
-- row. A row never leaves its lane.
ALTER TABLE jobs ALTER COLUMN lane DROP EXPRESSION;

DROP FUNCTION commit_batch;

-- Applies commits, each about another run, or refuses them.
--
-- A commit is named by its place in the arrays from run_ids to ordinals; ordinals are the places of
-- their events in the transaction. `steps` are the places of those that go on with a run, `starts` of
-- those that start one, which expect version 0 and alone need the next four arrays; both by run ids,
-- which is the order of their locks.
--
-- leases_* are the leases that commits need. changes_* are the last words on steps, by their places:
-- adds are jobs of starts; moves are other jobs that steps have from now on, in the row of changes_from
-- if that step has one; postponed go back to their queues; removes have no job. A lease is judged by
-- the write that takes its job away: changes_lease is the place of that of a change, end_leases of that
-- of the end of a run; `judged` are the places of all others. Of a job that is due now and wanted a
-- lease is granted to the claimant while it has slots.
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
    leases_of integer[], leases_step integer[], leases_token bigint[],
    end_leases integer[], judged integer[],
    changes_of integer[], changes_step integer[], changes_from integer[], changes_lease integer[],
    changes_kind text[],
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
    -- How many of the judged leases are held, and the places of leases that are lost.
    held bigint;
    lost integer[];
    has_lost boolean;
    -- Whether a job may be where another one is to be moved to.
    is_taken boolean := false;
    is_stale boolean;
    refused integer := 0;
    -- Slots that are left, and the changes that get them.
    room integer;
    granting boolean[];
    written integer[];
    -- The commits after which a run is listed elsewhere, and where it was.
    turned integer[];
    turned_flow text[];
    turned_status text[];
    turned_started bigint[];
    inserted uuid[];
    -- How many rows a statement wrote.
    changed bigint;
    -- The commits that ended a run under a lease, and the changes that were done.
    ended integer[];
    done integer[];
    -- Changes that are left to see to.
    rest integer[];
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

    -- Runs are locked as they are written, and leases judged after that, also by the writes that they
    -- are about. If one is lost, all of it is undone and done again without its commit.
    LOOP
        BEGIN
            written := NULL;
            turned := NULL;
            inserted := NULL;
            granted := NULL;
            granted_token := NULL;
            lost := '{}';
            has_lost := false;
            is_stale := false;
            room := slots;
            granting := changes_wanted;

            IF cardinality(steps) > 0 THEN
                WITH written AS (
                    UPDATE runs r SET version = befores[c.at] + counts[c.at],
                        status_before = r.status, status = statuses[c.at], updated_at = now_ms,
                        ended_at = CASE WHEN are_ends[c.at] THEN now_ms END,
                        record = records[c.at]
                    FROM unnest(steps) AS c (at)
                    WHERE verdicts[c.at] = 0 AND r.run_id = run_ids[c.at]
                        AND r.version = befores[c.at] AND r.ended_at IS NULL
                    RETURNING c.at, r.status <> r.status_before AS has_turned, r.flow,
                        r.status_before, r.started_at
                )
                SELECT array_agg(w.at), array_agg(w.at) FILTER (WHERE w.has_turned),
                    array_agg(w.flow) FILTER (WHERE w.has_turned),
                    array_agg(w.status_before) FILTER (WHERE w.has_turned),
                    array_agg(w.started_at) FILTER (WHERE w.has_turned)
                INTO written, turned, turned_flow, turned_status, turned_started FROM written w;
            END IF;

            IF cardinality(starts) > 0 THEN
                WITH added AS (
                    INSERT INTO runs (run_id, flow, revision, status, version, started_at,
                        updated_at, ended_at, key, tags, record)
                    SELECT run_ids[c.at], flows[c.at], revisions[c.at], statuses[c.at],
                        counts[c.at], now_ms, now_ms, CASE WHEN are_ends[c.at] THEN now_ms END,
                        keys[c.at],
                        CASE WHEN all_tags[c.at] IS NOT NULL THEN
                            ARRAY(SELECT json_array_elements_text(all_tags[c.at]::json)) END,
                        records[c.at]
                    FROM unnest(starts) AS c (at)
                    WHERE verdicts[c.at] = 0
                    ON CONFLICT (run_id) DO NOTHING
                    RETURNING run_id, flow, status, started_at
                ), listed AS (
                    INSERT INTO incomplete_runs (flow, status, started_at, run_id)
                    SELECT a.flow, a.status, a.started_at, a.run_id FROM added a
                    WHERE a.status <> 'completed'
                )
                SELECT array_agg(a.run_id) INTO inserted FROM added a;
            END IF;
            IF coalesce(cardinality(written), 0) + coalesce(cardinality(inserted), 0) + refused
                < count
            THEN
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
                FOR row IN
                    SELECT c.at FROM unnest(verdicts) WITH ORDINALITY AS c (verdict, at)
                    JOIN log l ON l.run_id = run_ids[c.at] AND l.seq = befores[c.at] + 1
                    WHERE c.verdict IN (2, 3) AND l.commit_id = commit_ids[c.at]
                LOOP
                    verdicts[row.at] := 1;
                END LOOP;
            END IF;

            IF cardinality(leases_of) > 0 THEN
                SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + m.value
                INTO judged_ms FROM meta m WHERE m.name = 'clock_offset_ms';
            END IF;
            IF cardinality(judged) > 0 THEN
                SELECT count(*) FILTER (
                        WHERE j.token = leases_token[l.at] AND j.expires_at > judged_ms
                    ), coalesce(bool_or(j.lost IS NOT NULL), false)
                INTO held, has_lost
                FROM unnest(judged) AS l (at)
                JOIN jobs j ON j.run_id = run_ids[leases_of[l.at]]
                    AND j.lane = lane_of(leases_step[l.at]) AND j.step = leases_step[l.at];
                IF held < cardinality(judged) THEN
                    lost := ARRAY(
                        SELECT l.at FROM unnest(judged) AS l (at)
                        WHERE verdicts[leases_of[l.at]] = 0 AND NOT EXISTS (
                            SELECT FROM jobs j WHERE j.run_id = run_ids[leases_of[l.at]]
                                AND j.lane = lane_of(leases_step[l.at])
                                AND j.step = leases_step[l.at]
                                AND j.token = leases_token[l.at] AND j.expires_at > judged_ms
                        )
                    );
                END IF;
            END IF;

            IF cardinality(turned) > 0 THEN
                DELETE FROM incomplete_runs i
                USING unnest(turned, turned_flow, turned_status, turned_started)
                    AS t (at, flow, status, started_at)
                WHERE statuses[t.at] = 'completed' AND i.flow = t.flow AND i.status = t.status
                    AND i.started_at = t.started_at AND i.run_id = run_ids[t.at];
                GET DIAGNOSTICS changed = ROW_COUNT;
                IF changed < cardinality(turned) THEN
                    UPDATE incomplete_runs i SET status = statuses[t.at]
                    FROM unnest(turned, turned_flow, turned_status, turned_started)
                        AS t (at, flow, status, started_at)
                    WHERE statuses[t.at] <> 'completed' AND i.flow = t.flow
                        AND i.status = t.status AND i.started_at = t.started_at
                        AND i.run_id = run_ids[t.at];
                END IF;
            END IF;

            INSERT INTO log (run_id, seq, xid, ordinal, count, commit_id, at, format, is_end, events)
            SELECT run_ids[c.at], befores[c.at] + 1, pg_current_xact_id(), ordinals[c.at],
                counts[c.at], commit_ids[c.at], now_ms, 1, are_ends[c.at], all_events[c.at]
            FROM unnest(verdicts) WITH ORDINALITY AS c (verdict, at)
            WHERE c.verdict = 0;

            IF true = ANY (are_ends) THEN
                WITH gone AS (
                    DELETE FROM jobs j USING unnest(steps) AS c (at)
                    WHERE are_ends[c.at] AND verdicts[c.at] = 0 AND j.run_id = run_ids[c.at]
                    RETURNING c.at, j.step = leases_step[end_leases[c.at]]
                        AND j.token = leases_token[end_leases[c.at]]
                        AND j.expires_at > judged_ms AS is_held
                )
                SELECT coalesce(array_agg(g.at) FILTER (WHERE g.is_held), '{}') INTO ended
                FROM gone g;
                IF cardinality(ended) < cardinality(array_remove(end_leases, NULL)) THEN
                    lost := lost || ARRAY(
                        SELECT end_leases[c.at] FROM unnest(steps) AS c (at)
                        WHERE end_leases[c.at] IS NOT NULL AND verdicts[c.at] = 0
                            AND c.at <> ALL (ended)
                    );
                END IF;
            END IF;

            IF cardinality(removes) > 0 THEN
                WITH gone AS (
                    DELETE FROM jobs j USING unnest(removes) AS c (at)
                    WHERE verdicts[changes_of[c.at]] = 0 AND j.run_id = run_ids[changes_of[c.at]]
                        AND j.lane = lane_of(changes_step[c.at]) AND j.step = changes_step[c.at]
                        AND (changes_lease[c.at] IS NULL
                            OR (j.token = leases_token[changes_lease[c.at]]
                                AND j.expires_at > judged_ms))
                    RETURNING c.at
                )
                SELECT coalesce(array_agg(g.at), '{}') INTO done FROM gone g;
                IF cardinality(done) < cardinality(removes) THEN
                    lost := lost || ARRAY(
                        SELECT changes_lease[c.at] FROM unnest(removes) AS c (at)
                        WHERE changes_lease[c.at] IS NOT NULL AND verdicts[changes_of[c.at]] = 0
                            AND c.at <> ALL (done)
                    );
                END IF;
            END IF;

            IF is_taken THEN
                DELETE FROM jobs j USING unnest(moves) AS m (at)
                WHERE changes_from[m.at] <> changes_step[m.at] AND verdicts[changes_of[m.at]] = 0
                    AND j.run_id = run_ids[changes_of[m.at]]
                    AND j.lane = lane_of(changes_step[m.at]) AND j.step = changes_step[m.at];
            END IF;

            IF has_lost THEN
                UPDATE jobs j SET lost = NULL
                FROM unnest(judged) AS l (at)
                WHERE verdicts[leases_of[l.at]] = 0 AND j.run_id = run_ids[leases_of[l.at]]
                    AND j.lane = lane_of(leases_step[l.at]) AND j.step = leases_step[l.at];
            END IF;

            IF cardinality(postponed) > 0 THEN
                UPDATE jobs j SET attempt = changes_attempt[p.at], due_at = p.due_at,
                    order_at = order_of(p.due_at, now_ms, j.priority), ticket = nextval('tickets'),
                    waits_in = j.queue, token = NULL, instance = NULL, expires_at = NULL,
                    check_at = NULL, granted_by = NULL
                FROM (
                    SELECT c.at, coalesce(changes_at[c.at], now_ms + changes_after_ms[c.at])
                        AS due_at
                    FROM unnest(postponed) AS c (at)
                ) AS p
                WHERE verdicts[changes_of[p.at]] = 0 AND j.run_id = run_ids[changes_of[p.at]]
                    AND j.lane = lane_of(changes_step[p.at]) AND j.step = changes_step[p.at];
            END IF;

            expires_at := now_ms + lease_ms;
            IF is_stale AND 1 = ANY (verdicts) THEN
                SELECT greatest(0, slots - count(*)) INTO room
                FROM unnest(verdicts) WITH ORDINALITY AS c (verdict, at)
                JOIN jobs j ON j.run_id = run_ids[c.at]
                WHERE c.verdict = 1 AND j.granted_by = commit_ids[c.at] AND j.instance = claimant
                    AND j.waits_in IS NULL AND j.expires_at > now_ms;
            END IF;
            IF cardinality(array_positions(granting, true)) > room THEN
                granting := ARRAY(
                    SELECT w.is_wanted
                        AND count(*) FILTER (WHERE w.is_wanted) OVER (ORDER BY w.at) <= room
                    FROM (
                        SELECT c.at, c.is_wanted AND verdicts[changes_of[c.at]] = 0
                            AND coalesce(changes_at[c.at], now_ms + changes_after_ms[c.at])
                                <= now_ms
                            AS is_wanted
                        FROM unnest(changes_wanted) WITH ORDINALITY AS c (is_wanted, at)
                    ) AS w
                    ORDER BY w.at
                );
            END IF;

            rest := adds;
            IF cardinality(moves) > 0 THEN
                -- A row that the step has beside that of changes_from would be one too many.
                WITH moved AS (
                    UPDATE jobs j SET step = changes_step[p.at],
                        attempt = CASE WHEN j.step = changes_from[p.at] THEN
                            changes_attempt[p.at] + p.is_granted::integer ELSE -1 END,
                        due_at = p.due_at,
                        priority = changes_priority[p.at], kind = changes_kind[p.at],
                        queue = changes_queue[p.at], inputs = changes_inputs[p.at],
                        waits_in = CASE WHEN NOT p.is_granted THEN changes_queue[p.at] END,
                        order_at = CASE WHEN NOT p.is_granted THEN
                            order_of(p.due_at, now_ms, changes_priority[p.at]) END,
                        ticket = CASE WHEN NOT p.is_granted THEN p.ticket END,
                        -- Where it is found stays the same as long as that is soon enough.
                        check_at = CASE WHEN p.is_granted THEN
                            least(j.check_at, now_ms + lease_ms) END,
                        token = CASE WHEN p.is_granted THEN p.ticket END,
                        expires_at = CASE WHEN p.is_granted THEN now_ms + lease_ms END,
                        instance = CASE WHEN p.is_granted THEN claimant END,
                        granted_by = CASE WHEN p.is_granted THEN
                            commit_ids[changes_of[p.at]] END,
                        lost = NULL
                    FROM (
                        SELECT c.at, c.due_at, nextval('tickets') AS ticket,
                            granting[c.at] AND c.due_at <= now_ms AS is_granted
                        FROM (
                            SELECT m.at, coalesce(changes_at[m.at], now_ms + changes_after_ms[m.at])
                                AS due_at
                            FROM unnest(moves) AS m (at) WHERE verdicts[changes_of[m.at]] = 0
                        ) AS c
                    ) AS p
                    WHERE j.run_id = run_ids[changes_of[p.at]]
                        AND j.lane = lane_of(changes_from[p.at])
                        AND (j.step = changes_step[p.at] OR j.step = changes_from[p.at])
                        AND (changes_lease[p.at] IS NULL OR j.step <> changes_from[p.at]
                            OR (j.token = leases_token[changes_lease[p.at]]
                                AND j.expires_at > judged_ms))
                    RETURNING p.at, j.token, j.attempt
                )
                SELECT array_agg(m.at), array_agg(m.token), count(*), bool_or(m.attempt < 0)
                INTO granted, granted_token, changed, is_taken FROM moved m;
                IF is_taken THEN
                    RAISE EXCEPTION USING ERRCODE = 'FG002', MESSAGE = 'a row is taken';
                END IF;
                IF changed < cardinality(moves) THEN
                    rest := ARRAY(
                        SELECT m.at FROM unnest(moves) AS m (at)
                        WHERE verdicts[changes_of[m.at]] = 0
                        EXCEPT SELECT g.at FROM unnest(granted) AS g (at)
                        ORDER BY 1
                    );
                    lost := lost || ARRAY(
                        SELECT changes_lease[c.at] FROM unnest(rest) AS c (at)
                        WHERE changes_lease[c.at] IS NOT NULL
                    );
                    rest := adds || rest;
                END IF;
            END IF;
            IF cardinality(lost) > 0 THEN
                FOR row IN SELECT l.at FROM unnest(lost) AS l (at) ORDER BY l.at LOOP
                    CONTINUE WHEN verdicts[leases_of[row.at]] <> 0;
                    verdicts[leases_of[row.at]] := 4;
                    lost_steps[leases_of[row.at]] := leases_step[row.at];
                    refused := refused + 1;
                END LOOP;
                RAISE EXCEPTION USING ERRCODE = 'FG002', MESSAGE = 'a lease is lost';
            END IF;
            IF cardinality(rest) > 0 THEN
                WITH placed AS MATERIALIZED (
                    SELECT c.at, c.due_at, nextval('tickets') AS ticket,
                        granting[c.at] AND c.due_at <= now_ms AS is_granted
                    FROM (
                        SELECT a.at, coalesce(changes_at[a.at], now_ms + changes_after_ms[a.at])
                            AS due_at
                        FROM unnest(rest) AS a (at) WHERE verdicts[changes_of[a.at]] = 0
                    ) AS c
                ), added AS (
                    INSERT INTO jobs (run_id, lane, step, number, attempt, due_at, priority, kind,
                        queue, inputs, waits_in, order_at, ticket, check_at, token, expires_at,
                        instance, granted_by)
                    SELECT run_ids[changes_of[p.at]], lane_of(changes_step[p.at]),
                        changes_step[p.at], p.ticket,
                        changes_attempt[p.at] + p.is_granted::integer, p.due_at,
                        changes_priority[p.at], changes_kind[p.at], changes_queue[p.at],
                        changes_inputs[p.at],
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
            EXIT;
        EXCEPTION WHEN SQLSTATE 'FG002' THEN
            NULL;
        END;
    END LOOP;

    IF cardinality(queues_new) > 0 THEN
        INSERT INTO queues (name) SELECT DISTINCT unnest(queues_new) AS name ORDER BY name
        ON CONFLICT DO NOTHING;
    END IF;
END
$$;

-- Sets the gate of a flow to one of the generation after the one that is there.
--
-- outcome: 0 set, or set before by a call with the same; 1 it is at another generation; 2 runs are
-- held, and it was to be set only if none are.
CREATE OR REPLACE FUNCTION set_gate(
    flow_name text, gate_generation bigint, gate_value text, only_if_empty boolean,
    OUT outcome smallint
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    found_value text;
    found_generation bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(gate_lock(flow_name));
    SELECT r.value INTO found_value FROM records r WHERE r.kind = 'gate' AND r.key = flow_name;
    found_generation := coalesce((found_value::json ->> 'generation')::bigint, 0);
    IF found_value = gate_value THEN
        outcome := 0;
        RETURN;
    END IF;
    IF found_generation <> gate_generation - 1 THEN
        outcome := 1;
        RETURN;
    END IF;
    IF only_if_empty AND EXISTS (
        SELECT FROM incomplete_runs i WHERE i.flow = flow_name AND i.status = 'held'
    ) THEN
        outcome := 2;
        RETURN;
    END IF;
    INSERT INTO records AS r (kind, key, version, value, written_at)
    VALUES ('gate', flow_name, nextval('record_versions'), gate_value, store_now())
    ON CONFLICT (kind, key) DO UPDATE
        SET version = excluded.version, value = excluded.value, written_at = excluded.written_at;
    outcome := 0;
END
$$;

-- Removes the logs of runs that ended some time ago, the records of those that ended longer ago,
-- and records that are kept no longer, at most batch in all.
CREATE OR REPLACE FUNCTION sweep_runs(
    events_ms bigint, runs_ms bigint, batch integer,
    OUT logs bigint, OUT runs_gone bigint, OUT records_gone bigint
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    now_ms bigint := store_now();
    swept uuid[];
BEGIN
    swept := ARRAY(
        SELECT l.run_id FROM log l WHERE l.is_end AND l.at <= now_ms - events_ms
        ORDER BY l.at LIMIT batch FOR UPDATE SKIP LOCKED
    );
    logs := cardinality(swept);
    -- Nobody adds a line to a run while its lines are removed; in the order of all who lock runs.
    PERFORM FROM runs r WHERE r.run_id = ANY (swept) ORDER BY r.run_id FOR UPDATE;
    DELETE FROM log l WHERE l.run_id = ANY (swept);
    DELETE FROM log_lines l WHERE l.run_id = ANY (swept);
    UPDATE runs r SET events_removed = true, bare_ended_at = r.ended_at
    WHERE r.run_id = ANY (swept);
    swept := ARRAY(
        SELECT r.run_id FROM runs r WHERE r.bare_ended_at <= now_ms - runs_ms
        ORDER BY r.bare_ended_at LIMIT batch - logs FOR UPDATE SKIP LOCKED
    );
    runs_gone := cardinality(swept);
    WITH gone AS (
        DELETE FROM runs r WHERE r.run_id = ANY (swept)
        RETURNING r.flow, r.status, r.started_at, r.run_id
    )
    DELETE FROM incomplete_runs i USING gone g
    WHERE i.flow = g.flow AND i.status = g.status AND i.started_at = g.started_at
        AND i.run_id = g.run_id;
    records_gone := sweep_control(batch - logs - runs_gone);
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
        bare_ended_at, key, tags, events_removed, log_lines, record)
    VALUES (id, flow_name, revision_name, status_name, at_version, started, updated, ended,
        CASE WHEN lacks_events THEN ended END, start_key, CASE WHEN start_tags IS NOT NULL THEN
            ARRAY(SELECT json_array_elements_text(start_tags::json)) END,
        lacks_events, lines_last, record_text)
    ON CONFLICT (run_id) DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF status_name <> 'completed' THEN
        INSERT INTO incomplete_runs (flow, status, started_at, run_id)
        VALUES (flow_name, status_name, started, id);
    END IF;
    IF token_max >= (SELECT last_value FROM tickets) THEN
        -- Nobody takes a number from here to the end of this transaction.
        ALTER SEQUENCE tickets CACHE 1;
        SELECT greatest(token_max, last_value) INTO token_max FROM tickets;
        EXECUTE format('ALTER SEQUENCE tickets RESTART WITH %s', token_max + 1);
    END IF;
    INSERT INTO queues (name) SELECT DISTINCT unnest(jobs_queue) AS name ORDER BY name
    ON CONFLICT DO NOTHING;
    INSERT INTO jobs (run_id, lane, step, number, attempt, due_at, priority, kind, queue, inputs,
        waits_in, order_at, ticket, lost)
    SELECT id, lane_of(j.step), j.step, j.ticket, j.attempt, j.due_at, j.priority, j.kind, j.queue, j.inputs,
        j.queue, order_of(j.due_at, now_ms, j.priority), j.ticket, j.lost::jsonb
    FROM (
        SELECT j.*, nextval('tickets') AS ticket
        FROM unnest(jobs_step, jobs_kind, jobs_queue, jobs_priority, jobs_attempt, jobs_inputs,
            jobs_due_at, jobs_lost)
            AS j (step, kind, queue, priority, attempt, inputs, due_at, lost)
    ) AS j;
    -- No commit has the nil id, so none is taken for one that was applied.
    INSERT INTO log (run_id, seq, xid, ordinal, count, commit_id, at, format, is_end, events)
    SELECT id, l.seq, pg_current_xact_id(), 1 + sum(l.count) OVER (ORDER BY l.seq) - l.count,
        l.count, '00000000-0000-0000-0000-000000000000', l.at, 1,
        ended IS NOT NULL AND l.seq + l.count = at_version + 1, l.events
    FROM unnest(log_seq, log_count, log_at, log_events) AS l (seq, count, at, events);
    INSERT INTO log_lines (run_id, number, at, step, attempt, level, text)
    SELECT id, l.*
    FROM unnest(lines_number, lines_at, lines_step, lines_attempt, lines_level, lines_text) AS l;
    RETURN true;
END
$$;
