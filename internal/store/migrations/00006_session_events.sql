{{/* What happens to a session, as a numbered log; what its deadline needs to be
remembered. Sessions made before have a log too, so that it can be followed to
its end. */}}
CREATE TABLE session_events (
    session_id {{text}} NOT NULL,
    seq        BIGINT NOT NULL,
    kind       {{text}} NOT NULL,
    meta       {{text}} NOT NULL DEFAULT '',
    at         BIGINT NOT NULL,
    PRIMARY KEY (session_id, seq)
){{if not postgres}} WITHOUT ROWID{{end}};

INSERT INTO session_events (session_id, seq, kind, meta, at) SELECT id, 1, 'created', '{}', created_at FROM sessions;
INSERT INTO session_events (session_id, seq, kind, meta, at) SELECT id, 2, state, '{}', ended_at FROM sessions WHERE state <> 'active';

ALTER TABLE sessions ADD COLUMN keep_at_expiry {{text}} NOT NULL DEFAULT '[]';
ALTER TABLE sessions ADD COLUMN warned_at BIGINT NOT NULL DEFAULT 0; -- of its deadline, last
ALTER TABLE sessions ADD COLUMN ending BIGINT NOT NULL DEFAULT 0; -- 1: it has ended and its last event is still to come
CREATE INDEX sessions_ending ON sessions (id) WHERE ending = 1;

ALTER TABLE revisions ADD COLUMN keep_at_expiry {{text}} NOT NULL DEFAULT '[]';
