{{/* The first schema. Times are unix microseconds, UTC; 0 is "not yet". JSON is
text. Text compares byte for byte on both databases. Data, sealed and wrapped
are opaque bytes that the store cannot read. */}}
CREATE TABLE projects (
    id         {{text}} PRIMARY KEY,
    name       {{text}} NOT NULL UNIQUE,
    created_at BIGINT NOT NULL
);

CREATE TABLE tenants (
    id          {{text}} PRIMARY KEY,
    project_id  {{text}} NOT NULL REFERENCES projects(id),
    name        {{text}} NOT NULL,
    files_bytes BIGINT NOT NULL DEFAULT 0 CHECK (files_bytes >= 0), -- retained and reserved
    created_at  BIGINT NOT NULL,
    UNIQUE (project_id, name)
);

CREATE TABLE users (
    id         {{text}} PRIMARY KEY,
    project_id {{text}} NOT NULL REFERENCES projects(id),
    tenant_id  {{text}} NOT NULL REFERENCES tenants(id),
    name       {{text}} NOT NULL,
    created_at BIGINT NOT NULL,
    UNIQUE (tenant_id, name)
);

CREATE TABLE user_groups (
    id         {{text}} PRIMARY KEY,
    project_id {{text}} NOT NULL REFERENCES projects(id),
    tenant_id  {{text}} NOT NULL REFERENCES tenants(id),
    name       {{text}} NOT NULL,
    created_at BIGINT NOT NULL,
    UNIQUE (tenant_id, name)
);

CREATE TABLE api_keys (
    id           {{text}} PRIMARY KEY,
    project_id   {{text}} NOT NULL REFERENCES projects(id),
    kind         {{text}} NOT NULL,
    name         {{text}} NOT NULL,
    tenant_id    {{text}} NOT NULL DEFAULT '',
    user_id      {{text}} NOT NULL DEFAULT '',
    tenants      {{text}} NOT NULL DEFAULT '[]',
    scopes       {{text}} NOT NULL DEFAULT '[]',
    session_id   {{text}} NOT NULL DEFAULT '',
    contents     BIGINT NOT NULL DEFAULT 0,
    secret_hash  {{bytes}} NOT NULL UNIQUE,
    created_at   BIGINT NOT NULL,
    expires_at   BIGINT NOT NULL DEFAULT 0,
    revoked_at   BIGINT NOT NULL DEFAULT 0,
    last_used_at BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX api_keys_project ON api_keys (project_id, id);

CREATE TABLE tenant_keys (
    key_id    {{text}} PRIMARY KEY,
    tenant_id {{text}} NOT NULL UNIQUE REFERENCES tenants(id),
    wrapped   {{bytes}} NOT NULL
);

CREATE TABLE sessions (
    id             {{text}} PRIMARY KEY,
    project_id     {{text}} NOT NULL REFERENCES projects(id),
    tenant_id      {{text}} NOT NULL REFERENCES tenants(id),
    user_id        {{text}} NOT NULL REFERENCES users(id),
    group_id       {{text}} NOT NULL DEFAULT '',
    key_id         {{text}} NOT NULL DEFAULT '',
    kind           {{text}} NOT NULL,
    agent          {{text}} NOT NULL DEFAULT '',
    labels         {{text}} NOT NULL DEFAULT '{}',
    state          {{text}} NOT NULL,
    generation     BIGINT NOT NULL,
    revision       BIGINT NOT NULL,
    size           {{text}} NOT NULL,
    limits         {{text}} NOT NULL,
    tools          {{text}} NOT NULL DEFAULT '[]',
    aliases        {{text}} NOT NULL DEFAULT '[]',
    image          {{text}} NOT NULL DEFAULT '',
    driver         {{text}} NOT NULL DEFAULT '',
    isolation      {{text}} NOT NULL DEFAULT '',
    head_commit    {{text}} NOT NULL DEFAULT '',
    created_at     BIGINT NOT NULL,
    expires_at     BIGINT NOT NULL,
    ended_at       BIGINT NOT NULL DEFAULT 0,
    active_at      BIGINT NOT NULL,
    run_count      BIGINT NOT NULL DEFAULT 0, -- runs ever admitted
    commit_count   BIGINT NOT NULL DEFAULT 0,
    files_bytes    BIGINT NOT NULL DEFAULT 0 CHECK (files_bytes >= 0),
    files_count    BIGINT NOT NULL DEFAULT 0 CHECK (files_count >= 0),
    lease_owner    {{text}} NOT NULL DEFAULT '',
    lease_epoch    BIGINT NOT NULL DEFAULT 0,
    lease_expires  BIGINT NOT NULL DEFAULT 0,
    lease_previous {{text}} NOT NULL DEFAULT '' -- who lost it at the last takeover and has not heard yet
);
CREATE INDEX sessions_project ON sessions (project_id, id);
CREATE INDEX sessions_user ON sessions (user_id, id);
CREATE INDEX sessions_deadline ON sessions (expires_at) WHERE state = 'active';
CREATE INDEX sessions_ended ON sessions (ended_at) WHERE state <> 'active';
CREATE INDEX sessions_lease ON sessions (lease_owner) WHERE lease_owner <> '';
CREATE INDEX sessions_lease_lost ON sessions (lease_previous) WHERE lease_previous <> '';
CREATE INDEX sessions_image ON sessions (image) WHERE state = 'active';

CREATE TABLE revisions (
    session_id {{text}} NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    number     BIGINT NOT NULL,
    agent      {{text}} NOT NULL,
    tools      {{text}} NOT NULL,
    aliases    {{text}} NOT NULL,
    limits     {{text}} NOT NULL,
    size       {{text}} NOT NULL,
    key_id     {{text}} NOT NULL DEFAULT '',
    created_at BIGINT NOT NULL,
    PRIMARY KEY (session_id, number)
);

CREATE TABLE runs (
    id               {{text}} PRIMARY KEY,
    project_id       {{text}} NOT NULL,
    tenant_id        {{text}} NOT NULL,
    user_id          {{text}} NOT NULL,
    session_id       {{text}} NOT NULL REFERENCES sessions(id),
    revision         BIGINT NOT NULL,
    generation       BIGINT NOT NULL DEFAULT 0,
    number           BIGINT NOT NULL,
    lane             {{text}} NOT NULL,
    language         {{text}} NOT NULL,
    status           {{text}} NOT NULL,
    reason           {{text}} NOT NULL DEFAULT '',
    message          {{text}} NOT NULL DEFAULT '',
    exit_code        BIGINT,
    signal           {{text}} NOT NULL DEFAULT '',
    timeout_ms       BIGINT NOT NULL,
    idempotency_key  {{text}} NOT NULL DEFAULT '',
    fingerprint      {{text}} NOT NULL DEFAULT '',
    fingerprint_version BIGINT NOT NULL DEFAULT 0,
    sealed           {{bytes}},
    cancel_requested BIGINT NOT NULL DEFAULT 0,
    cancel_reason    {{text}} NOT NULL DEFAULT '',
    log_seq          BIGINT NOT NULL DEFAULT 0, -- of the last entry
    stdout_bytes     BIGINT NOT NULL DEFAULT 0, -- in the log
    stderr_bytes     BIGINT NOT NULL DEFAULT 0,
    receipt          {{text}} NOT NULL DEFAULT '{}', -- outputs, limits hit, notices, counts
    dependencies     {{text}} NOT NULL DEFAULT '[]',
    input_root       {{text}} NOT NULL DEFAULT '',
    output_root      {{text}} NOT NULL DEFAULT '',
    commit_id        {{text}} NOT NULL DEFAULT '',
    image            {{text}} NOT NULL DEFAULT '',
    driver           {{text}} NOT NULL DEFAULT '',
    peak_memory      BIGINT NOT NULL DEFAULT 0,
    created_at       BIGINT NOT NULL,
    started_at       BIGINT NOT NULL DEFAULT 0,
    finished_at      BIGINT NOT NULL DEFAULT 0, -- 0: not terminal
    queued_ms        BIGINT NOT NULL DEFAULT 0,
    duration_ms      BIGINT NOT NULL DEFAULT 0,
    receipt_ends     BIGINT NOT NULL DEFAULT 0,
    UNIQUE (session_id, number)
);
CREATE UNIQUE INDEX runs_idempotency ON runs (project_id, tenant_id, idempotency_key) WHERE idempotency_key <> '';
CREATE INDEX runs_project ON runs (project_id, id);
CREATE INDEX runs_user ON runs (user_id, id);
CREATE INDEX runs_session ON runs (session_id, id);
-- After runs_session: SQLite breaks ties for the newer index.
CREATE INDEX runs_unfinished ON runs (session_id, lane, number) WHERE finished_at = 0;

CREATE TABLE steps (
    run_id        {{text}} NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    number        BIGINT NOT NULL,
    status        {{text}} NOT NULL,
    generation    BIGINT NOT NULL DEFAULT 0,
    lease_epoch   BIGINT NOT NULL DEFAULT 0,
    sandbox_id    {{text}} NOT NULL DEFAULT '',
    exit_code     BIGINT,
    dispatched_at BIGINT NOT NULL DEFAULT 0,
    finished_at   BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, number)
);

CREATE TABLE run_log (
    run_id   {{text}} NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    seq      BIGINT NOT NULL,
    kind     {{text}} NOT NULL,
    stream   {{text}} NOT NULL DEFAULT '',
    position BIGINT NOT NULL DEFAULT 0, -- of data in its stream, raw bytes
    length   BIGINT NOT NULL DEFAULT 0, -- of data before sealing
    data     {{bytes}},
    meta     {{text}} NOT NULL DEFAULT '',
    at       BIGINT NOT NULL,
    PRIMARY KEY (run_id, seq)
);
CREATE INDEX run_log_stream ON run_log (run_id, stream, position) WHERE stream <> '';

CREATE TABLE changed_files (
    run_id {{text}} NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    path   {{bytes}} NOT NULL, -- a path is bytes: user code need not write UTF-8
    change {{text}} NOT NULL,
    type   {{text}} NOT NULL,
    size   BIGINT NOT NULL,
    sha256 {{text}} NOT NULL DEFAULT '',
    mode   {{text}} NOT NULL DEFAULT '',
    PRIMARY KEY (run_id, path)
);

CREATE TABLE commits (
    id          {{text}} PRIMARY KEY,
    project_id  {{text}} NOT NULL,
    tenant_id   {{text}} NOT NULL,
    user_id     {{text}} NOT NULL,
    session_id  {{text}} NOT NULL REFERENCES sessions(id),
    parent_id   {{text}} NOT NULL DEFAULT '',
    number      BIGINT NOT NULL,
    root        {{text}} NOT NULL,
    generation  BIGINT NOT NULL,
    run_ids     {{text}} NOT NULL DEFAULT '[]',
    exclusive   BIGINT NOT NULL,
    files       BIGINT NOT NULL,
    bytes       BIGINT NOT NULL,
    manifest_id {{text}} NOT NULL,
    created_at  BIGINT NOT NULL,
    UNIQUE (session_id, number)
);

CREATE TABLE artifacts (
    id           {{text}} PRIMARY KEY,
    project_id   {{text}} NOT NULL,
    tenant_id    {{text}} NOT NULL,
    user_id      {{text}} NOT NULL,
    session_id   {{text}} NOT NULL REFERENCES sessions(id),
    run_id       {{text}} NOT NULL DEFAULT '',
    revision     BIGINT NOT NULL,
    generation   BIGINT NOT NULL,
    lease_epoch  BIGINT NOT NULL DEFAULT 0, -- of the engine that saves it; 0: an upload
    state        {{text}} NOT NULL, -- pending, ready, deleted, expired
    name         {{text}} NOT NULL,
    path         {{text}} NOT NULL,
    mime_type    {{text}} NOT NULL DEFAULT '',
    size         BIGINT NOT NULL, -- reserved while pending
    sha256       {{text}} NOT NULL DEFAULT '',
    origin       {{text}} NOT NULL,
    derived_from {{text}} NOT NULL DEFAULT '[]',
    dependencies {{text}} NOT NULL DEFAULT '[]',
    blob_id      {{text}} NOT NULL DEFAULT '',
    preview      {{bytes}},
    created_at   BIGINT NOT NULL,
    expires_at   BIGINT NOT NULL,
    gone_at      BIGINT NOT NULL DEFAULT 0 -- deleted or expired
);
CREATE INDEX artifacts_session ON artifacts (session_id, id);
CREATE INDEX artifacts_run ON artifacts (run_id) WHERE run_id <> '';
CREATE INDEX artifacts_deadline ON artifacts (expires_at) WHERE state = 'ready';
CREATE INDEX artifacts_pending ON artifacts (created_at) WHERE state = 'pending';

CREATE TABLE blobs (
    id         {{text}} PRIMARY KEY,
    tenant_id  {{text}} NOT NULL,
    size       BIGINT NOT NULL,
    noted_at   BIGINT NOT NULL, -- last time a writer announced it
    dropping   BIGINT NOT NULL DEFAULT 0 -- 1: the sweeper is deleting its bytes
);
CREATE INDEX blobs_noted ON blobs (noted_at);

-- Blobs small enough to be written with the commit that made them.
CREATE TABLE inline_blobs (
    blob_id {{text}} PRIMARY KEY REFERENCES blobs(id) ON DELETE CASCADE,
    data    {{bytes}} NOT NULL
);

CREATE TABLE blob_refs (
    owner   {{text}} NOT NULL,
    blob_id {{text}} NOT NULL REFERENCES blobs(id),
    PRIMARY KEY (owner, blob_id)
);
CREATE INDEX blob_refs_blob ON blob_refs (blob_id);

CREATE TABLE engines (
    id            {{text}} PRIMARY KEY,
    instance      {{text}} NOT NULL,
    registered_at BIGINT NOT NULL,
    seen_at       BIGINT NOT NULL
);

CREATE TABLE audit (
    id         {{text}} PRIMARY KEY,
    at         BIGINT NOT NULL,
    project_id {{text}} NOT NULL DEFAULT '',
    tenant_id  {{text}} NOT NULL DEFAULT '',
    user_id    {{text}} NOT NULL DEFAULT '',
    key_id     {{text}} NOT NULL DEFAULT '',
    action     {{text}} NOT NULL,
    target     {{text}} NOT NULL DEFAULT '',
    outcome    {{text}} NOT NULL,
    address    {{text}} NOT NULL DEFAULT '',
    request_id {{text}} NOT NULL DEFAULT '',
    detail     {{text}} NOT NULL DEFAULT ''
);
CREATE INDEX audit_project ON audit (project_id, id);
CREATE INDEX audit_target ON audit (target, id);

{{if postgres}}
CREATE FUNCTION audit_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit trail is append only';
END
$$;
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION audit_append_only();
{{else}}
CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit trail is append only'); END;
CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit trail is append only'); END;
-- INSERT OR REPLACE would delete without the trigger above.
CREATE TRIGGER audit_no_replace BEFORE INSERT ON audit WHEN EXISTS (SELECT 1 FROM audit WHERE id = NEW.id)
BEGIN SELECT RAISE(ABORT, 'the audit trail is append only'); END;
{{end}}
