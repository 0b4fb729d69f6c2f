-- Living interpreters of a session. A context that a cell runs in is busy: that
-- is read from the runs, not written here.
CREATE TABLE contexts (
    session_id  {{text}} NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    id          {{text}} NOT NULL, -- the client's
    handle      {{text}} NOT NULL, -- names its interpreter in a sandbox
    language    {{text}} NOT NULL,
    dir         {{text}} NOT NULL,
    sealed_env  {{bytes}},
    state       {{text}} NOT NULL, -- idle, ended, lost
    memory      {{text}} NOT NULL DEFAULT '', -- the sandbox memory its interpreter lives in; '' when it has none
    generation  BIGINT NOT NULL DEFAULT 0,
    cells       BIGINT NOT NULL DEFAULT 0, -- ever dispatched
    loss_reason {{text}} NOT NULL DEFAULT '',
    lost_at     BIGINT NOT NULL DEFAULT 0,
    created_at  BIGINT NOT NULL,
    used_at     BIGINT NOT NULL,
    PRIMARY KEY (session_id, id)
);

-- A receipt reads what a run showed without walking its output.
CREATE INDEX run_log_results ON run_log (run_id, seq) WHERE kind = 'result';

ALTER TABLE runs ADD COLUMN context_id {{text}} NOT NULL DEFAULT '';
