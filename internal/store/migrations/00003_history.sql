{{/* The history of workspaces: what a session was forked from, what a commit
restored, and what is left of commits that are gone. */}}
ALTER TABLE sessions ADD COLUMN fork_session {{text}} NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN fork_run {{text}} NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN fork_commit {{text}} NOT NULL DEFAULT '';

ALTER TABLE commits ADD COLUMN restored_from {{text}} NOT NULL DEFAULT '';
CREATE INDEX commits_root ON commits (session_id, root, number);

CREATE TABLE gone_commits (
    id         {{text}} PRIMARY KEY,
    project_id {{text}} NOT NULL,
    tenant_id  {{text}} NOT NULL,
    user_id    {{text}} NOT NULL,
    session_id {{text}} NOT NULL,
    reason     {{text}} NOT NULL,
    gone_at    BIGINT NOT NULL
);
CREATE INDEX gone_commits_time ON gone_commits (gone_at);
