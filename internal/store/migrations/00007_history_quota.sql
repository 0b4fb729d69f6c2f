{{/* What the history of workspaces takes: the sizes of the blobs that a session's
commits refer to, each once a session; a tenant's is the sum of its sessions'. */}}
ALTER TABLE sessions ADD COLUMN history_bytes BIGINT NOT NULL DEFAULT 0 CHECK (history_bytes >= 0);
ALTER TABLE tenants ADD COLUMN history_bytes BIGINT NOT NULL DEFAULT 0 CHECK (history_bytes >= 0);

UPDATE sessions SET history_bytes = COALESCE((SELECT SUM(b.size) FROM blob_refs r JOIN blobs b ON b.id = r.blob_id
    WHERE r.owner = 'session:' || sessions.id), 0);
UPDATE tenants SET history_bytes = COALESCE((SELECT SUM(s.history_bytes) FROM sessions s WHERE s.tenant_id = tenants.id), 0);
