"""The tables of version 1.0.0

Upgrades begin here: an older database is brought to this revision by the release before 1.0.0. The statements
stay as they are when `app/store/tables.py` changes; a change of the tables is a revision after this one.
"""

from __future__ import annotations

import re

from alembic import op

revision = "0028"
down_revision = None
branch_labels = None
depends_on = None

_ON_POSTGRESQL = {"BLOB": "BYTEA", "BOOLEAN DEFAULT 1": "BOOLEAN DEFAULT true", "DOUBLE": "DOUBLE PRECISION"}
_WORDS = re.compile(rf"\b({'|'.join(_ON_POSTGRESQL)})\b")


def upgrade() -> None:
    tables = _TABLES
    if op.get_bind().dialect.name == "postgresql":
        # Weights do not compress, so trying costs more than storing them uncompressed.
        tables = _WORDS.sub(lambda word: _ON_POSTGRESQL[word[0]], tables) + (
            "ALTER TABLE blob_chunks ALTER COLUMN data SET STORAGE EXTERNAL;\n"
        )
    for statement in tables.split(";\n")[:-1]:
        op.execute(statement)


_TABLES = """
CREATE TABLE blobs (
    digest VARCHAR(64) NOT NULL, size BIGINT NOT NULL, created_at DOUBLE NOT NULL,
    complete BOOLEAN DEFAULT 1 NOT NULL,
    CONSTRAINT pk_blobs PRIMARY KEY (digest)
);

CREATE TABLE blob_chunks (
    digest VARCHAR(64) NOT NULL, position INTEGER NOT NULL, data BLOB NOT NULL,
    CONSTRAINT pk_blob_chunks PRIMARY KEY (digest, position),
    CONSTRAINT fk_blob_chunks_digest FOREIGN KEY (digest) REFERENCES blobs (digest) ON DELETE CASCADE
);

CREATE TABLE datasets (
    id VARCHAR(40) NOT NULL, digest VARCHAR(64) NOT NULL, name VARCHAR(200) NOT NULL,
    source_format VARCHAR(20) NOT NULL, size_bytes BIGINT NOT NULL, blob_digest VARCHAR(64) NOT NULL,
    rows BIGINT NOT NULL, test_rows BIGINT NOT NULL, columns BIGINT NOT NULL, summary JSON NOT NULL,
    created_at DOUBLE NOT NULL, created_by VARCHAR(100) NOT NULL,
    tenant VARCHAR(100) DEFAULT 'default' NOT NULL, class_count INTEGER DEFAULT '0' NOT NULL,
    row_bytes BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT pk_datasets PRIMARY KEY (id),
    CONSTRAINT fk_datasets_blob_digest FOREIGN KEY (blob_digest) REFERENCES blobs (digest),
    CONSTRAINT uq_datasets_tenant_digest UNIQUE (tenant, digest)
);
CREATE INDEX ix_datasets_blob_digest ON datasets (blob_digest);
CREATE INDEX ix_datasets_tenant_id ON datasets (tenant, id, row_bytes);

CREATE TABLE dataset_classes (
    dataset_id VARCHAR(40) NOT NULL, first INTEGER NOT NULL, labels JSON NOT NULL,
    CONSTRAINT pk_dataset_classes PRIMARY KEY (dataset_id, first),
    CONSTRAINT fk_dataset_classes_dataset_id_datasets FOREIGN KEY (dataset_id)
        REFERENCES datasets (id) ON DELETE CASCADE
);

CREATE TABLE jobs (
    id VARCHAR(40) NOT NULL, dataset_id VARCHAR(40) NOT NULL, model VARCHAR(100) NOT NULL,
    spec JSON NOT NULL, state VARCHAR(24) NOT NULL, attempt INTEGER NOT NULL, stage VARCHAR(24) NOT NULL,
    progress_done INTEGER NOT NULL, progress_total INTEGER NOT NULL, created_at DOUBLE NOT NULL,
    created_by VARCHAR(100) NOT NULL, started_at DOUBLE, finished_at DOUBLE, error_code VARCHAR(64),
    error_message TEXT, provenance JSON NOT NULL, preparation_digest VARCHAR(64),
    teacher_digest VARCHAR(64), version INTEGER, revision INTEGER NOT NULL,
    priority VARCHAR(8) DEFAULT 'normal' NOT NULL, tenant VARCHAR(100) DEFAULT 'default' NOT NULL,
    alias_revision INTEGER DEFAULT '0' NOT NULL, student_bytes BIGINT DEFAULT '0' NOT NULL,
    queued_at DOUBLE, traceparent VARCHAR(55), labels_digest VARCHAR(64), test_dataset_id VARCHAR(40),
    teacher_model VARCHAR(201), base_job_id VARCHAR(40), row_bytes BIGINT DEFAULT '0' NOT NULL,
    encoder_digest VARCHAR(64), profile_digest VARCHAR(64),
    CONSTRAINT pk_jobs PRIMARY KEY (id),
    CONSTRAINT fk_jobs_preparation_digest FOREIGN KEY (preparation_digest) REFERENCES blobs (digest),
    CONSTRAINT fk_jobs_teacher_digest FOREIGN KEY (teacher_digest) REFERENCES blobs (digest),
    CONSTRAINT fk_jobs_labels_digest FOREIGN KEY (labels_digest) REFERENCES blobs (digest),
    CONSTRAINT fk_jobs_base_job_id FOREIGN KEY (base_job_id) REFERENCES jobs (id),
    CONSTRAINT fk_jobs_encoder_digest FOREIGN KEY (encoder_digest) REFERENCES blobs (digest),
    CONSTRAINT fk_jobs_profile_digest FOREIGN KEY (profile_digest) REFERENCES blobs (digest)
);
CREATE INDEX ix_jobs_base_job_id ON jobs (base_job_id);
CREATE INDEX ix_jobs_dataset_id ON jobs (dataset_id);
CREATE INDEX ix_jobs_encoder_digest ON jobs (encoder_digest);
CREATE INDEX ix_jobs_labels_digest ON jobs (labels_digest);
CREATE INDEX ix_jobs_preparation_digest ON jobs (preparation_digest);
CREATE INDEX ix_jobs_profile_digest ON jobs (profile_digest);
CREATE INDEX ix_jobs_state ON jobs (state);
CREATE INDEX ix_jobs_teacher_digest ON jobs (teacher_digest);
CREATE INDEX ix_jobs_tenant_id ON jobs (tenant, id);
CREATE INDEX ix_jobs_tenant_use ON jobs (tenant, state, student_bytes, row_bytes, preparation_digest,
    teacher_digest, labels_digest, encoder_digest, profile_digest);
CREATE INDEX ix_jobs_unfinished ON jobs (id) WHERE state IN ('queued', 'running', 'cancelling');
CREATE INDEX ix_jobs_unfinished_owner ON jobs (tenant, created_by)
    WHERE state IN ('queued', 'running', 'cancelling');
CREATE INDEX ix_jobs_unfinished_turns ON jobs (state, stage, id, tenant, created_by, attempt, priority)
    WHERE state IN ('queued', 'running', 'cancelling');

CREATE TABLE idempotency_keys (
    owner VARCHAR(100) NOT NULL, "key" VARCHAR(255) NOT NULL, body_digest VARCHAR(64) NOT NULL,
    job_id VARCHAR(40) NOT NULL, created_at DOUBLE NOT NULL, tenant VARCHAR(100) DEFAULT 'default' NOT NULL,
    CONSTRAINT pk_idempotency_keys PRIMARY KEY (tenant, owner, "key")
);

CREATE TABLE job_events (
    job_id VARCHAR(40) NOT NULL, seq INTEGER NOT NULL, at DOUBLE NOT NULL, type VARCHAR(40) NOT NULL,
    data JSON NOT NULL,
    CONSTRAINT pk_job_events PRIMARY KEY (job_id, seq),
    CONSTRAINT fk_job_events_job_id FOREIGN KEY (job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

CREATE TABLE job_units (
    job_id VARCHAR(40) NOT NULL, attempt INTEGER NOT NULL, number INTEGER NOT NULL,
    tenant VARCHAR(100) NOT NULL, level INTEGER NOT NULL, turn INTEGER NOT NULL, executor_id VARCHAR(64),
    started_at DOUBLE, owner VARCHAR(100) DEFAULT '' NOT NULL, starts INTEGER DEFAULT '0' NOT NULL,
    CONSTRAINT pk_job_units PRIMARY KEY (job_id, attempt, number),
    CONSTRAINT fk_job_units_job_id FOREIGN KEY (job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE INDEX ix_job_units_tenant ON job_units (tenant);

CREATE TABLE job_students (
    job_id VARCHAR(40) NOT NULL, class_index INTEGER NOT NULL, method VARCHAR(16) NOT NULL,
    label VARCHAR(400) NOT NULL, state VARCHAR(16) NOT NULL, objective DOUBLE, gap DOUBLE,
    iterations BIGINT, seconds DOUBLE, status VARCHAR(24), threshold DOUBLE, metrics JSON NOT NULL,
    digest VARCHAR(64), error TEXT, chosen JSON,
    CONSTRAINT pk_job_students PRIMARY KEY (job_id, class_index, method),
    CONSTRAINT fk_job_students_digest FOREIGN KEY (digest) REFERENCES blobs (digest),
    CONSTRAINT fk_job_students_job_id FOREIGN KEY (job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE INDEX ix_job_students_digest ON job_students (digest);
CREATE INDEX ix_job_students_job_id_label ON job_students (job_id, label);

CREATE TABLE student_traces (
    job_id VARCHAR(40) NOT NULL, class_index INTEGER NOT NULL, method VARCHAR(16) NOT NULL,
    trace BLOB NOT NULL,
    CONSTRAINT pk_student_traces PRIMARY KEY (job_id, class_index, method),
    CONSTRAINT fk_student_traces_job_id FOREIGN KEY (job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

CREATE TABLE student_curves (
    job_id VARCHAR(40) NOT NULL, class_index INTEGER NOT NULL, method VARCHAR(16) NOT NULL,
    curve BLOB NOT NULL,
    CONSTRAINT pk_student_curves PRIMARY KEY (job_id, class_index, method),
    CONSTRAINT fk_student_curves_job_id FOREIGN KEY (job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

CREATE TABLE remote_scores (
    job_id VARCHAR(40) NOT NULL, part INTEGER NOT NULL, first BIGINT NOT NULL, size BIGINT NOT NULL,
    data BLOB NOT NULL,
    CONSTRAINT pk_remote_scores PRIMARY KEY (job_id, part, first),
    CONSTRAINT fk_remote_scores_job_id FOREIGN KEY (job_id) REFERENCES jobs (id) ON DELETE CASCADE
);

CREATE TABLE model_versions (
    model VARCHAR(100) NOT NULL, version INTEGER NOT NULL, job_id VARCHAR(40), dataset_digest VARCHAR(64),
    method VARCHAR(16) NOT NULL, classes JSON NOT NULL, columns BIGINT NOT NULL, teacher_digest VARCHAR(64),
    metrics JSON NOT NULL, created_at DOUBLE NOT NULL, class_count INTEGER NOT NULL,
    class_table VARCHAR(64), tenant VARCHAR(100) DEFAULT 'default' NOT NULL,
    row_bytes BIGINT DEFAULT '0' NOT NULL, encoder_digest VARCHAR(64), profile_digest VARCHAR(64),
    input_bytes BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT pk_model_versions PRIMARY KEY (tenant, model, version),
    CONSTRAINT uq_model_versions_job_id UNIQUE (job_id),
    CONSTRAINT fk_model_versions_job_id FOREIGN KEY (job_id) REFERENCES jobs (id),
    CONSTRAINT fk_model_versions_class_table FOREIGN KEY (class_table) REFERENCES blobs (digest),
    CONSTRAINT fk_model_versions_teacher_digest FOREIGN KEY (teacher_digest) REFERENCES blobs (digest),
    CONSTRAINT fk_model_versions_encoder_digest FOREIGN KEY (encoder_digest) REFERENCES blobs (digest),
    CONSTRAINT fk_model_versions_profile_digest FOREIGN KEY (profile_digest) REFERENCES blobs (digest)
);
CREATE INDEX ix_model_versions_class_table ON model_versions (class_table);
CREATE INDEX ix_model_versions_encoder_digest ON model_versions (encoder_digest);
CREATE INDEX ix_model_versions_profile_digest ON model_versions (profile_digest);
CREATE INDEX ix_model_versions_teacher_digest ON model_versions (teacher_digest);
CREATE INDEX ix_model_versions_tenant_use ON model_versions (tenant, row_bytes, input_bytes,
    teacher_digest, class_table, encoder_digest, profile_digest);

CREATE TABLE aliases (
    model VARCHAR(100) NOT NULL, alias VARCHAR(100) NOT NULL, version INTEGER NOT NULL,
    revision INTEGER NOT NULL, updated_at DOUBLE NOT NULL, tenant VARCHAR(100) DEFAULT 'default' NOT NULL,
    manual_revision INTEGER DEFAULT '0' NOT NULL,
    CONSTRAINT pk_aliases PRIMARY KEY (tenant, model, alias),
    CONSTRAINT fk_aliases_tenant_model_version FOREIGN KEY (tenant, model, version)
        REFERENCES model_versions (tenant, model, version)
);

CREATE TABLE alias_moves (
    id VARCHAR(40) NOT NULL, tenant VARCHAR(100) DEFAULT 'default' NOT NULL, model VARCHAR(100) NOT NULL,
    alias VARCHAR(100) NOT NULL, at DOUBLE NOT NULL, version INTEGER, previous INTEGER,
    actor VARCHAR(100) NOT NULL, actor_name VARCHAR(100) NOT NULL,
    CONSTRAINT pk_alias_moves PRIMARY KEY (id)
);
CREATE INDEX ix_alias_moves_tenant_model_alias_id ON alias_moves (tenant, model, alias, id);
CREATE INDEX ix_alias_moves_tenant_model_id ON alias_moves (tenant, model, id);

CREATE TABLE retired_numbers (
    model VARCHAR(100) NOT NULL, version INTEGER NOT NULL, revision INTEGER NOT NULL,
    tenant VARCHAR(100) DEFAULT 'default' NOT NULL,
    CONSTRAINT pk_retired_numbers PRIMARY KEY (tenant, model)
);

CREATE TABLE input_counts (
    tenant VARCHAR(100) NOT NULL, model VARCHAR(100) NOT NULL, version INTEGER NOT NULL,
    hour INTEGER NOT NULL, records BIGINT NOT NULL, sampled BIGINT NOT NULL, counts BLOB NOT NULL,
    CONSTRAINT pk_input_counts PRIMARY KEY (tenant, model, version, hour),
    CONSTRAINT fk_input_counts_tenant_model_version FOREIGN KEY (tenant, model, version)
        REFERENCES model_versions (tenant, model, version) ON DELETE CASCADE
);
CREATE INDEX ix_input_counts_hour ON input_counts (hour);

CREATE TABLE api_keys (
    id VARCHAR(40) NOT NULL, name VARCHAR(100) NOT NULL, digest VARCHAR(64) NOT NULL, scopes JSON NOT NULL,
    models JSON NOT NULL, created_at DOUBLE NOT NULL, revoked_at DOUBLE, expires_at DOUBLE,
    rate_limit DOUBLE, rate_burst INTEGER, previous_digest VARCHAR(64), previous_until DOUBLE,
    rotated_at DOUBLE, last_used_at DOUBLE, tenant VARCHAR(100) DEFAULT 'default' NOT NULL, cell INTEGER,
    row_bytes BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT pk_api_keys PRIMARY KEY (id)
);
CREATE UNIQUE INDEX ix_api_keys_cell ON api_keys (cell);
CREATE INDEX ix_api_keys_revoked_at ON api_keys (revoked_at, expires_at);
CREATE INDEX ix_api_keys_tenant_id ON api_keys (tenant, id, row_bytes);
CREATE INDEX ix_api_keys_tenant_revoked_at ON api_keys (tenant, revoked_at, expires_at);

CREATE TABLE sessions (
    id VARCHAR(40) NOT NULL, key_id VARCHAR(40) NOT NULL, digest VARCHAR(64) NOT NULL,
    created_at DOUBLE NOT NULL, expires_at DOUBLE NOT NULL,
    CONSTRAINT pk_sessions PRIMARY KEY (id),
    CONSTRAINT fk_sessions_key_id FOREIGN KEY (key_id) REFERENCES api_keys (id) ON DELETE CASCADE
);
CREATE INDEX ix_sessions_expires_at ON sessions (expires_at);
CREATE INDEX ix_sessions_key_id ON sessions (key_id);

CREATE TABLE token_revocations (
    id VARCHAR(40) NOT NULL, tenant VARCHAR(100) DEFAULT 'default' NOT NULL, issuer VARCHAR(200) NOT NULL,
    sub VARCHAR(255), jti VARCHAR(255), reason VARCHAR(200) NOT NULL, created_by VARCHAR(100) NOT NULL,
    created_at DOUBLE NOT NULL, expires_at DOUBLE NOT NULL,
    CONSTRAINT pk_token_revocations PRIMARY KEY (id)
);
CREATE INDEX ix_token_revocations_expires_at ON token_revocations (expires_at);
CREATE INDEX ix_token_revocations_tenant_id ON token_revocations (tenant, id);

CREATE TABLE webhooks (
    id VARCHAR(40) NOT NULL, tenant VARCHAR(100) DEFAULT 'default' NOT NULL, name VARCHAR(100) NOT NULL,
    url TEXT NOT NULL, events JSON NOT NULL, models JSON NOT NULL, form VARCHAR(16) NOT NULL,
    created_at DOUBLE NOT NULL, created_by VARCHAR(100) NOT NULL, secret_check VARCHAR(16) NOT NULL,
    disabled_reason VARCHAR(16), dead_in_row INTEGER DEFAULT '0' NOT NULL,
    row_bytes BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT pk_webhooks PRIMARY KEY (id)
);
CREATE INDEX ix_webhooks_tenant_id ON webhooks (tenant, id, row_bytes);

CREATE TABLE webhook_deliveries (
    id VARCHAR(40) NOT NULL, tenant VARCHAR(100) DEFAULT 'default' NOT NULL,
    webhook_id VARCHAR(40) NOT NULL, event_id VARCHAR(40) NOT NULL, type VARCHAR(40) NOT NULL,
    subject TEXT NOT NULL, at DOUBLE NOT NULL, data JSON NOT NULL, state VARCHAR(16) NOT NULL,
    attempts INTEGER NOT NULL, due_at DOUBLE, status INTEGER, error VARCHAR(300), ended_at DOUBLE,
    row_bytes BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT pk_webhook_deliveries PRIMARY KEY (id),
    CONSTRAINT fk_webhook_deliveries_webhook_id FOREIGN KEY (webhook_id)
        REFERENCES webhooks (id) ON DELETE CASCADE,
    CONSTRAINT uq_webhook_deliveries_webhook_id_event_id UNIQUE (webhook_id, event_id)
);
CREATE INDEX ix_webhook_deliveries_due_at ON webhook_deliveries (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX ix_webhook_deliveries_tenant_id ON webhook_deliveries (tenant, id, row_bytes);
CREATE INDEX ix_webhook_deliveries_webhook_id_due_at ON webhook_deliveries (webhook_id, due_at)
    WHERE due_at IS NOT NULL;
CREATE INDEX ix_webhook_deliveries_webhook_id_id ON webhook_deliveries (webhook_id, id, state);

CREATE TABLE tenant_quotas (
    tenant VARCHAR(100) NOT NULL, stored_bytes BIGINT, datasets BIGINT, versions BIGINT,
    unfinished_jobs BIGINT, keys BIGINT,
    CONSTRAINT pk_tenant_quotas PRIMARY KEY (tenant)
);

CREATE TABLE audit_log (
    id VARCHAR(40) NOT NULL, at DOUBLE NOT NULL, actor VARCHAR(100) NOT NULL,
    actor_name VARCHAR(100) NOT NULL, scope VARCHAR(40) NOT NULL, action VARCHAR(60) NOT NULL,
    object VARCHAR(500) NOT NULL, outcome VARCHAR(64) NOT NULL, request_id VARCHAR(128),
    address VARCHAR(64), details JSON NOT NULL, tenant VARCHAR(100) DEFAULT 'default' NOT NULL,
    CONSTRAINT pk_audit_log PRIMARY KEY (id)
);
CREATE INDEX ix_audit_log_action_id ON audit_log (action, id);
CREATE INDEX ix_audit_log_actor_id ON audit_log (actor, id);
CREATE INDEX ix_audit_log_object_id ON audit_log (object, id);
CREATE INDEX ix_audit_log_tenant_id ON audit_log (tenant, id);

CREATE TABLE registry_clock (
    id INTEGER NOT NULL, revision BIGINT NOT NULL,
    CONSTRAINT pk_registry_clock PRIMARY KEY (id),
    CONSTRAINT ck_registry_clock_one_row CHECK (id = 1)
);

CREATE TABLE registry_changes (
    revision BIGINT NOT NULL, kind VARCHAR(8) NOT NULL, name VARCHAR(201) NOT NULL,
    CONSTRAINT pk_registry_changes PRIMARY KEY (revision)
);

CREATE TABLE tallies (
    name VARCHAR(40) NOT NULL, label VARCHAR(100) NOT NULL, value DOUBLE NOT NULL,
    CONSTRAINT pk_tallies PRIMARY KEY (name, label)
);

CREATE TABLE servers (
    id VARCHAR(40) NOT NULL, host VARCHAR(255) NOT NULL, pid INTEGER NOT NULL, program VARCHAR(40) NOT NULL,
    started_at DOUBLE NOT NULL, beat_at DOUBLE NOT NULL, figures JSON NOT NULL,
    CONSTRAINT pk_servers PRIMARY KEY (id)
);

CREATE TABLE workers (
    executor_id VARCHAR(64) NOT NULL, host VARCHAR(255) NOT NULL, pid INTEGER NOT NULL,
    started_at DOUBLE NOT NULL, beat_at DOUBLE NOT NULL, slots INTEGER DEFAULT '1' NOT NULL,
    threads INTEGER DEFAULT '1' NOT NULL, units JSON DEFAULT '[]' NOT NULL, lost_at DOUBLE,
    solver_bytes BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT pk_workers PRIMARY KEY (executor_id)
);
INSERT INTO registry_clock (id, revision) VALUES (1, 0);
"""
"""In the dialect of SQLite."""
