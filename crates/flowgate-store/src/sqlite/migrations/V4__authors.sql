-- Who registered a revision, and what for; null if they did not say.
ALTER TABLE revisions ADD COLUMN author TEXT;
ALTER TABLE revisions ADD COLUMN note TEXT;

PRAGMA user_version = 4;
