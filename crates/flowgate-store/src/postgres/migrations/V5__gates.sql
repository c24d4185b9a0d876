-- The gates of flows. A gate is the record of kind `gate` with the flow's name as its key.
--
-- A commit that starts a run holds the lock of its flow's gate with others until it ends; whoever
-- sets the gate holds it alone. So when a gate is set, no start of an older generation is under way.

CREATE FUNCTION gate_lock(flow_name text) RETURNS bigint
LANGUAGE sql STABLE
SET search_path FROM CURRENT
RETURN hashtextextended(current_schema() || '/gate/' || flow_name, 0);

-- Sets the gate of a flow to one of the generation after the one that is there.
--
-- outcome: 0 set, or set before by a call with the same; 1 it is at another generation; 2 runs are
-- held, and it was to be set only if none are.
CREATE FUNCTION set_gate(
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
        SELECT FROM runs r WHERE r.status = 'held' AND r.flow = flow_name
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

-- A batch in which runs start: commit_batch, if the gate of each flow is at the generation that its
-- starts name in `gates`, which is null for other commits.
--
-- If one is not, nothing is written: verdicts are 5 for the starts that name another generation, with
-- the gate in `gates_found`, and 6 for all else, which is to be sent again. A run that is there was
-- started before, whatever the gate is now.
CREATE FUNCTION commit_at_gates(
    gates bigint[],
    run_ids uuid[], commit_ids uuid[], befores bigint[], counts integer[], statuses text[],
    are_ends boolean[], records_new text[], all_events text[],
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
AS $$
DECLARE
    has_moved boolean := false;
    flow_name text;
    found_value text;
    found_generation bigint;
BEGIN
    FOR flow_name IN
        SELECT DISTINCT f.name FROM unnest(flows, gates) AS f (name, gate)
        WHERE f.gate IS NOT NULL ORDER BY f.name
    LOOP
        PERFORM pg_advisory_xact_lock_shared(gate_lock(flow_name));
        SELECT r.value INTO found_value FROM records r WHERE r.kind = 'gate' AND r.key = flow_name;
        found_generation := coalesce((found_value::json ->> 'generation')::bigint, 0);
        FOR i IN 1 .. cardinality(gates) LOOP
            IF flows[i] = flow_name AND gates[i] <> found_generation
                AND NOT EXISTS (SELECT FROM runs r WHERE r.run_id = run_ids[i])
            THEN
                IF NOT has_moved THEN
                    has_moved := true;
                    verdicts := array_fill(6::smallint, ARRAY[cardinality(run_ids)]);
                    gates_found := array_fill(NULL::text, ARRAY[cardinality(run_ids)]);
                END IF;
                verdicts[i] := 5;
                gates_found[i] := coalesce(found_value, '');
            END IF;
        END LOOP;
    END LOOP;
    IF has_moved THEN
        lost_steps := array_fill(NULL::integer, ARRAY[cardinality(run_ids)]);
        expires_at := 0;
        RETURN;
    END IF;
    SELECT c.* INTO verdicts, lost_steps, granted_of, granted_step, granted_token, expires_at
    FROM commit_batch(
        run_ids, commit_ids, befores, counts, statuses, are_ends, records_new, all_events,
        flows, revisions, keys, all_tags, leases_of, leases_step, leases_token,
        changes_of, changes_step, changes_action, changes_kind, changes_queue, changes_priority,
        changes_attempt, changes_inputs, changes_after_ms, changes_at, queues_new,
        claimant, claimant_queues, claimant_queues_not, slots, lease_ms
    ) AS c;
END
$$;
