{{/* Metering: what was used, once written down for good, and the key that a run was
submitted with. Usage before this schema is not in the ledger. */}}
ALTER TABLE runs ADD COLUMN key_id {{text}} NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN charge_rest BIGINT NOT NULL DEFAULT 0; -- of charges, below a millionth: workbench.Charge

CREATE TABLE usage_ledger (
    id            {{text}} PRIMARY KEY,
    at            BIGINT NOT NULL,
    project_id    {{text}} NOT NULL,
    tenant_id     {{text}} NOT NULL,
    user_id       {{text}} NOT NULL,
    session_id    {{text}} NOT NULL,
    run_id        {{text}} NOT NULL DEFAULT '', -- '': an upload's
    key_id        {{text}} NOT NULL DEFAULT '',
    kind          {{text}} NOT NULL, -- active, tokens, retained
    size          {{text}} NOT NULL DEFAULT '',
    us            BIGINT NOT NULL DEFAULT 0,
    micros        BIGINT NOT NULL DEFAULT 0,
    rate          BIGINT NOT NULL DEFAULT 0, -- millionths a second
    rate_version  {{text}} NOT NULL DEFAULT '',
    input_tokens  BIGINT NOT NULL DEFAULT 0,
    output_tokens BIGINT NOT NULL DEFAULT 0,
    bytes         BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX usage_project ON usage_ledger (project_id, at);
CREATE INDEX usage_user ON usage_ledger (project_id, tenant_id, user_id, at);
CREATE INDEX usage_session ON usage_ledger (session_id, at);
{{if postgres}}
CREATE FUNCTION usage_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'the usage ledger is append only'; END $$;
CREATE TRIGGER usage_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON usage_ledger
    FOR EACH STATEMENT EXECUTE FUNCTION usage_append_only();
{{else}}
CREATE TRIGGER usage_no_update BEFORE UPDATE ON usage_ledger
BEGIN SELECT RAISE(ABORT, 'the usage ledger is append only'); END;
CREATE TRIGGER usage_no_delete BEFORE DELETE ON usage_ledger
BEGIN SELECT RAISE(ABORT, 'the usage ledger is append only'); END;
CREATE TRIGGER usage_no_replace BEFORE INSERT ON usage_ledger WHEN EXISTS (SELECT 1 FROM usage_ledger WHERE id = NEW.id)
BEGIN SELECT RAISE(ABORT, 'the usage ledger is append only'); END;
{{end}}
