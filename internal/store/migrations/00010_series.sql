{{/* Reusable runs. A version is a run that succeeded: its row, its log and the
commit that it began with are what is run again. */}}
ALTER TABLE runs ADD COLUMN reuse {{text}} NOT NULL DEFAULT ''; -- JSON, as it was admitted: workbench.MarshalReuse
ALTER TABLE runs ADD COLUMN series_id {{text}} NOT NULL DEFAULT ''; -- of the version that it is
ALTER TABLE runs ADD COLUMN series_version BIGINT NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN series_kept BIGINT NOT NULL DEFAULT 0; -- when it was first published: it stays, and so does its session's history
CREATE UNIQUE INDEX runs_series ON runs (series_id, series_version) WHERE series_id <> '';
CREATE INDEX runs_kept ON runs (session_id) WHERE series_kept <> 0;

CREATE TABLE series (
    id         {{text}} PRIMARY KEY,
    project_id {{text}} NOT NULL,
    tenant_id  {{text}} NOT NULL,
    user_id    {{text}} NOT NULL,
    session_id {{text}} NOT NULL, -- of its first version
    versions   BIGINT NOT NULL,   -- labels given so far
    published  BIGINT NOT NULL DEFAULT 0,
    created_at BIGINT NOT NULL
);
CREATE INDEX series_owner ON series (project_id, tenant_id, user_id, id);

CREATE TABLE publications (
    series_id {{text}} NOT NULL REFERENCES series(id) ON DELETE CASCADE,
    number    BIGINT NOT NULL, -- from 1
    version   BIGINT NOT NULL,
    previous  BIGINT NOT NULL,
    restored  BIGINT NOT NULL, -- 1: it had been published before
    replay_id {{text}} NOT NULL,
    by_user   {{text}} NOT NULL,
    at        BIGINT NOT NULL,
    PRIMARY KEY (series_id, number)
);

CREATE TABLE replays (
    id         {{text}} PRIMARY KEY,
    project_id {{text}} NOT NULL,
    tenant_id  {{text}} NOT NULL,
    user_id    {{text}} NOT NULL,
    session_id {{text}} NOT NULL, -- of the replay, which has it for itself
    series_id  {{text}} NOT NULL REFERENCES series(id) ON DELETE CASCADE,
    version    BIGINT NOT NULL,
    run_id     {{text}} NOT NULL UNIQUE,
    tools      {{text}} NOT NULL,
    verdict    {{text}} NOT NULL DEFAULT '',
    differs    {{text}} NOT NULL DEFAULT '[]',
    created_at BIGINT NOT NULL,
    judged_at  BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX replays_series ON replays (series_id, version, id);
