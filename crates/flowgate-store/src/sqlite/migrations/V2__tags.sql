-- The tags of runs, in the order of a listing; a run without tags has no row.
CREATE TABLE tags (
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    run_id BLOB NOT NULL,
    PRIMARY KEY (name, value, started_at, run_id)
) WITHOUT ROWID;

INSERT INTO tags (name, value, started_at, run_id)
SELECT tag.key, tag.value, runs.started_at, runs.run_id
FROM runs, json_each(runs.record, '$.tags') AS tag;

PRAGMA user_version = 2;
