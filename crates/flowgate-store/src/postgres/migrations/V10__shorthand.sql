-- Records and events are stored with one control character in place of each phrase that nearly all of
-- them have. Whoever writes and reads them knows these phrases; this is for people with other tools.

CREATE TABLE phrases (
    kind text NOT NULL,
    code integer NOT NULL,
    phrase text NOT NULL,
    PRIMARY KEY (kind, code)
);

INSERT INTO phrases (kind, code, phrase) VALUES
    ('events', 1, '{"type":"step.started","data":{"step":"'),
    ('events', 2, '{"type":"step.succeeded","data":{"step":"'),
    ('events', 3, '{"type":"step.queued","data":{"step":"'),
    ('events', 4, '{"type":"event.emitted","data":{"step":"'),
    ('events', 5, '","lease":{"attempt":1,"token":'),
    ('events', 6, '","lease":{"attempt":'),
    ('events', 7, ',"token":'),
    ('events', 8, ',"instance":"'),
    ('events', 11, '"},"elapsed_us":'),
    ('events', 12, '"}}},'),
    ('events', 14, '","event":"'),
    ('events', 15, '","data":'),
    ('events', 16, '","inputs":['),
    ('events', 17, ']}}'),
    ('events', 18, '}},'),
    ('events', 19, '}}]'),
    ('events', 20, '{"type":"run.started","data":{"flow":"'),
    ('events', 21, '","revision":"'),
    ('events', 22, '","input":'),
    ('events', 23, '{"type":"run.completed","data":{}}]'),
    ('events', 24, ',"result":'),
    ('events', 25, '{"type":"attempt.failed","data":{"step":"'),
    ('events', 26, '{"type":"'),
    ('events', 27, '","error":{'),
    ('record', 1, '{"run_id":"'),
    ('record', 2, '","flow":"'),
    ('record', 3, '","revision":"'),
    ('record', 4, '","version":'),
    ('record', 5, ',"status":"running","steps":['),
    ('record', 6, ',"status":"'),
    ('record', 7, '","steps":['),
    ('record', 8, '{"state":"succeeded","attempt":1},'),
    ('record', 11, '{"state":"succeeded","attempt":1}'),
    ('record', 12, '{"state":"pending"},'),
    ('record', 14, '{"state":"pending"}'),
    ('record', 15, '{"state":"queued"},'),
    ('record', 16, '{"state":"queued"}'),
    ('record', 17, '{"state":"skipped"},'),
    ('record', 18, '{"state":"'),
    ('record', 19, '","attempt":'),
    ('record', 20, '],"slots":['),
    ('record', 21, '],"open":1,"waiting":0}'),
    ('record', 22, '],"open":'),
    ('record', 23, ',"waiting":');

-- The JSON of `events` or of a `record`. No phrase has such a character, so their order is the same.
CREATE FUNCTION spelled_out(kind_wanted text, stored text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
    row record;
BEGIN
    FOR row IN SELECT p.code, p.phrase FROM phrases p WHERE p.kind = kind_wanted LOOP
        stored := replace(stored, chr(row.code), row.phrase);
    END LOOP;
    RETURN stored;
END
$$;

CREATE OR REPLACE VIEW events AS
SELECT
    log.xid,
    log.ordinal + event.number - 1 AS ordinal,
    log.run_id,
    log.seq + event.number - 1 AS seq,
    to_timestamp(log.at / 1000.0) AS at,
    event.value ->> 'type' AS type,
    event.value -> 'data' ->> 'step' AS step,
    event.value -> 'data' AS data
FROM log, json_array_elements(spelled_out('events', log.events)::json)
    WITH ORDINALITY AS event (value, number);
