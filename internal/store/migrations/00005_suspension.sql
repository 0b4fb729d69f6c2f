-- What a session's memory is when it has no sandbox, and whether it may be kept.
ALTER TABLE sessions ADD COLUMN keep_memory BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN suspended_at BIGINT NOT NULL DEFAULT 0; -- 0: it is not
ALTER TABLE sessions ADD COLUMN checkpoint {{text}} NOT NULL DEFAULT ''; -- JSON; empty: its memory is gone
