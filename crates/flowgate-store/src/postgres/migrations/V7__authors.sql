-- Who registered a revision, and what for; null if they did not say.
--
-- The functions without them stay for instances that were started before this was applied.

ALTER TABLE revisions ADD COLUMN author text, ADD COLUMN note text;

-- Keeps a revision and makes it the active one of its flow. One that is known keeps its author.
CREATE FUNCTION register_revision(
    flow_name text, revision_name text, file_text text, folder_name text,
    author_name text, note_text text
) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(
        hashtextextended('flowgate ' || current_schema() || ' ' || flow_name, 0)
    );
    UPDATE revisions SET active = false
    WHERE flow = flow_name AND active AND revision <> revision_name;
    INSERT INTO revisions (flow, revision, file, folder, registered_at, active, author, note)
    VALUES (
        flow_name, revision_name, file_text, folder_name, store_now(), true, author_name, note_text
    )
    ON CONFLICT (flow, revision) DO UPDATE SET active = true, folder = excluded.folder;
END
$$;

-- Keeps a revision of another store, unless it is known; whether it was not.
CREATE FUNCTION import_revision(
    flow_name text, revision_name text, file_text text, folder_name text, at bigint,
    is_active boolean, author_name text, note_text text
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(
        hashtextextended('flowgate ' || current_schema() || ' ' || flow_name, 0)
    );
    INSERT INTO revisions (flow, revision, file, folder, registered_at, active, author, note)
    SELECT flow_name, revision_name, file_text, folder_name, at,
        is_active AND NOT EXISTS (SELECT FROM revisions WHERE flow = flow_name AND active),
        author_name, note_text
    ON CONFLICT (flow, revision) DO NOTHING;
    RETURN FOUND;
END
$$;
