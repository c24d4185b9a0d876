-- Who held a name, and when.
CREATE TABLE terms (
    name TEXT NOT NULL,
    number INTEGER NOT NULL,
    holder TEXT NOT NULL,
    began_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    released_at INTEGER,
    PRIMARY KEY (name, number)
) WITHOUT ROWID;

CREATE TABLE records (
    record_number INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    version INTEGER NOT NULL,
    written_at INTEGER NOT NULL,
    -- None if it is kept for ever.
    expires_at INTEGER,
    -- JSON.
    value TEXT NOT NULL,
    UNIQUE (kind, key)
);

CREATE INDEX records_by_expiry ON records (expires_at) WHERE expires_at IS NOT NULL;

-- record_version_last: the last version of any record, also of one that is gone.
INSERT INTO meta (name, value) VALUES ('record_version_last', 0);

-- Who holds a permit of a key, or waits for one.
CREATE TABLE permits (
    key TEXT NOT NULL,
    run_id BLOB NOT NULL,
    step INTEGER NOT NULL,
    ends_at INTEGER NOT NULL,
    -- The number in line of who waits there.
    ticket INTEGER,
    -- The reserved place of a rate, in microseconds; who has neither holds a permit.
    place_us INTEGER,
    PRIMARY KEY (key, run_id, step)
) WITHOUT ROWID;

-- The last place of a rate that was granted, and from when on it no longer counts.
CREATE TABLE rates (
    key TEXT NOT NULL PRIMARY KEY,
    granted_us INTEGER NOT NULL,
    free_us INTEGER NOT NULL
) WITHOUT ROWID;

PRAGMA user_version = 3;
