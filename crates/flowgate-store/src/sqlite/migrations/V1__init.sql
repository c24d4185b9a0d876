-- Times are milliseconds since the Unix epoch. Ids of runs and commits are 16 bytes.

CREATE TABLE meta (
    name TEXT NOT NULL PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;

-- epoch: how often the file was opened; the upper half of every lease token.
-- position_last: the last position given out when the log was last swept.
INSERT INTO meta (name, value) VALUES ('epoch', 0), ('position_last', 0);

CREATE TABLE runs (
    run_number INTEGER PRIMARY KEY,
    run_id BLOB NOT NULL UNIQUE,
    flow TEXT NOT NULL,
    revision TEXT NOT NULL,
    status TEXT NOT NULL,
    version INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    ended_at INTEGER,
    key TEXT,
    events_removed INTEGER NOT NULL DEFAULT 0,
    log_lines INTEGER NOT NULL DEFAULT 0,
    -- The run's record as JSON.
    record TEXT NOT NULL,
    -- Its open jobs as JSON, each with its lease and the leases that it lost.
    jobs TEXT NOT NULL
);

-- No index holds a column that changes with every step: a step rewrites one row and no index.
CREATE INDEX runs_by_start ON runs (started_at, run_id);
CREATE INDEX runs_by_status ON runs (status, started_at, run_id);
CREATE INDEX runs_by_flow ON runs (flow, status, started_at, run_id);
CREATE INDEX runs_by_end ON runs (events_removed, ended_at) WHERE ended_at IS NOT NULL;

-- One row a commit. Its events have the numbers seq, seq + 1, … and the positions position,
-- position + 1, …
CREATE TABLE log (
    position INTEGER PRIMARY KEY,
    run_id BLOB NOT NULL,
    seq INTEGER NOT NULL,
    count INTEGER NOT NULL,
    commit_id BLOB NOT NULL,
    at INTEGER NOT NULL,
    format INTEGER NOT NULL,
    -- The events as a JSON array.
    events TEXT NOT NULL
);

CREATE UNIQUE INDEX log_by_run ON log (run_id, seq);

CREATE TABLE log_lines (
    run_id BLOB NOT NULL,
    number INTEGER NOT NULL,
    at INTEGER NOT NULL,
    step TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    level TEXT NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (run_id, number)
) WITHOUT ROWID;

CREATE TABLE revisions (
    revision_number INTEGER PRIMARY KEY,
    flow TEXT NOT NULL,
    revision TEXT NOT NULL,
    -- The flow as it was written, as JSON.
    file TEXT NOT NULL,
    folder TEXT,
    registered_at INTEGER NOT NULL,
    active INTEGER NOT NULL,
    UNIQUE (flow, revision)
);

-- For people with any SQLite tool: one row an event.
CREATE VIEW events AS
SELECT
    log.position + event.key AS position,
    lower(
        substr(hex(log.run_id), 1, 8) || '-' || substr(hex(log.run_id), 9, 4) || '-'
        || substr(hex(log.run_id), 13, 4) || '-' || substr(hex(log.run_id), 17, 4) || '-'
        || substr(hex(log.run_id), 21)
    ) AS run_id,
    log.seq + event.key AS seq,
    log.at AS at,
    json_extract(event.value, '$.type') AS type,
    json_extract(event.value, '$.data.step') AS step,
    json_extract(event.value, '$.data') AS data
FROM log, json_each(log.events) AS event;

PRAGMA user_version = 1;
