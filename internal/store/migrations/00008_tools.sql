{{/* Governed tools: where they come from, the credentials they are asked with,
the rules, and a receipt of every call; and the chain of the audit trail. Rows
of the trail from before have no place in the chain (seq 0). */}}
CREATE TABLE apps (
    project_id       {{text}} NOT NULL REFERENCES projects(id),
    name             {{text}} NOT NULL,
    kind             {{text}} NOT NULL,
    config           {{text}} NOT NULL,
    provider         {{text}} NOT NULL,
    needs_connection BIGINT NOT NULL DEFAULT 0,
    version          BIGINT NOT NULL DEFAULT 1, -- grows with every change
    error            {{text}} NOT NULL DEFAULT '',
    created_at       BIGINT NOT NULL,
    imported_at      BIGINT NOT NULL DEFAULT 0,
    removed_at       BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (project_id, name)
);

-- A version is never deleted, so that its label is never given again.
CREATE TABLE tools (
    project_id    {{text}} NOT NULL,
    name          {{text}} NOT NULL,
    version       BIGINT NOT NULL,
    app           {{text}} NOT NULL,
    state         {{text}} NOT NULL,
    description   {{text}} NOT NULL,
    input_schema  {{text}} NOT NULL,
    output_schema {{text}} NOT NULL DEFAULT '',
    annotations   {{text}} NOT NULL,
    digest        {{text}} NOT NULL,
    binding       {{text}} NOT NULL,
    created_at    BIGINT NOT NULL,
    PRIMARY KEY (project_id, name, version),
    UNIQUE (project_id, name, digest),
    FOREIGN KEY (project_id, app) REFERENCES apps(project_id, name)
);
CREATE INDEX tools_app ON tools (project_id, app);

CREATE TABLE connections (
    id           {{text}} PRIMARY KEY,
    project_id   {{text}} NOT NULL REFERENCES projects(id),
    tenant_id    {{text}} NOT NULL DEFAULT '', -- '': every tenant's
    group_id     {{text}} NOT NULL DEFAULT '',
    user_id      {{text}} NOT NULL DEFAULT '',
    alias        {{text}} NOT NULL,
    provider     {{text}} NOT NULL,
    auth         {{text}} NOT NULL,
    hosts        {{text}} NOT NULL DEFAULT '[]',
    version      BIGINT NOT NULL,
    sealed       {{bytes}},
    created_at   BIGINT NOT NULL,
    created_by   {{text}} NOT NULL DEFAULT '',
    rotated_at   BIGINT NOT NULL DEFAULT 0,
    revoked_at   BIGINT NOT NULL DEFAULT 0,
    last_used_at BIGINT NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX connections_alias ON connections (project_id, tenant_id, group_id, user_id, alias) WHERE revoked_at = 0;
CREATE INDEX connections_project ON connections (project_id, id);

CREATE TABLE rules (
    project_id {{text}} NOT NULL REFERENCES projects(id),
    name       {{text}} NOT NULL,
    text       {{text}} NOT NULL,
    version    BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by {{text}} NOT NULL DEFAULT '',
    PRIMARY KEY (project_id, name)
);
-- Grows with every change of the project's rules: what was decided under
-- another number was not decided by the current ones.
ALTER TABLE projects ADD COLUMN rules_version BIGINT NOT NULL DEFAULT 0;

-- Tool calls that the run has made, refused ones included.
ALTER TABLE runs ADD COLUMN tool_calls BIGINT NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN service_use {{text}} NOT NULL DEFAULT '{}'; -- by service

-- What a run that somebody has to approve waits for, and what was decided.
ALTER TABLE runs ADD COLUMN approval {{text}} NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN approval_expires BIGINT NOT NULL DEFAULT 0;
CREATE INDEX runs_held ON runs (approval_expires) WHERE status = 'awaiting_approval';

CREATE TABLE tool_calls (
    id               {{text}} PRIMARY KEY,
    project_id       {{text}} NOT NULL,
    tenant_id        {{text}} NOT NULL,
    user_id          {{text}} NOT NULL,
    session_id       {{text}} NOT NULL REFERENCES sessions(id),
    run_id           {{text}} NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    revision         BIGINT NOT NULL,
    number           BIGINT NOT NULL,
    tool             {{text}} NOT NULL,
    version          {{text}} NOT NULL,
    tool_digest      {{text}} NOT NULL DEFAULT '',
    alias            {{text}} NOT NULL DEFAULT '',
    connection_id    {{text}} NOT NULL DEFAULT '',
    args_digest      {{text}} NOT NULL,
    status           {{text}} NOT NULL,
    rules            {{text}} NOT NULL DEFAULT '[]',
    error            {{text}} NOT NULL DEFAULT '',
    artifact_id      {{text}} NOT NULL DEFAULT '',
    result_bytes     BIGINT NOT NULL DEFAULT 0,
    sealed_args      {{bytes}},
    sealed_result    {{bytes}},
    approval         {{text}} NOT NULL DEFAULT '',
    approval_expires BIGINT NOT NULL DEFAULT 0,
    engine_id        {{text}} NOT NULL DEFAULT '',
    notify_at        BIGINT NOT NULL DEFAULT 0, -- when to tell who decides; 0: never, or told
    notify_tries     BIGINT NOT NULL DEFAULT 0,
    created_at       BIGINT NOT NULL,
    started_at       BIGINT NOT NULL DEFAULT 0,
    finished_at      BIGINT NOT NULL DEFAULT 0,
    duration_ms      BIGINT NOT NULL DEFAULT 0,
    UNIQUE (run_id, number)
);
CREATE INDEX tool_calls_project ON tool_calls (project_id, id);
CREATE INDEX tool_calls_user ON tool_calls (user_id, id);
CREATE INDEX tool_calls_session ON tool_calls (session_id, id);
CREATE INDEX tool_calls_pending ON tool_calls (approval_expires) WHERE status = 'pending_approval';
CREATE INDEX tool_calls_notify ON tool_calls (notify_at) WHERE notify_at > 0;
CREATE INDEX tool_calls_executing ON tool_calls (engine_id) WHERE status = 'executing';

-- What a session may have learned from: everything that it makes depends on it.
CREATE TABLE session_dependencies (
    session_id    {{text}} NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    tool          {{text}} NOT NULL,
    version       {{text}} NOT NULL,
    alias         {{text}} NOT NULL,
    connection_id {{text}} NOT NULL,
    at            BIGINT NOT NULL,
    PRIMARY KEY (session_id, tool, version, alias, connection_id)
);

ALTER TABLE audit ADD COLUMN seq BIGINT NOT NULL DEFAULT 0;
ALTER TABLE audit ADD COLUMN hash {{text}} NOT NULL DEFAULT '';
CREATE UNIQUE INDEX audit_chain ON audit (project_id, seq) WHERE seq > 0;
-- The end of each project's chain; of '' that of rows which are no project's.
CREATE TABLE audit_heads (
    project_id {{text}} PRIMARY KEY,
    seq        BIGINT NOT NULL,
    hash       {{text}} NOT NULL
);
