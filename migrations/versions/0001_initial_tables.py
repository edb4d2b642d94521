"""Initial tables"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_keys_and_workers()
    _create_blobs()
    _create_datasets()
    _create_jobs()
    _create_job_rows()
    _create_models()


def downgrade() -> None:
    op.drop_table("aliases")
    op.drop_table("model_versions")
    op.drop_table("job_students")
    op.drop_table("job_events")
    op.drop_table("jobs")
    op.drop_table("datasets")
    op.drop_table("blob_chunks")
    op.drop_table("workers")
    op.drop_table("registry_clock")
    op.drop_table("idempotency_keys")
    op.drop_table("blobs")
    op.drop_table("api_keys")


def _create_keys_and_workers() -> None:
    """API keys, workers, and the registry revision."""
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("models", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
    op.create_table(
        "workers",
        sa.Column("executor_id", sa.String(length=64), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("beat_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("executor_id", name=op.f("pk_workers")),
    )
    op.create_table(
        "registry_clock",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_registry_clock_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_registry_clock")),
    )
    op.execute("INSERT INTO registry_clock (id, revision) VALUES (1, 0)")


def _create_blobs() -> None:
    """Content-addressed blobs."""
    op.create_table(
        "blobs",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_blobs")),
    )
    op.create_table(
        "blob_chunks",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["digest"], ["blobs.digest"], name=op.f("fk_blob_chunks_digest"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("digest", "position", name=op.f("pk_blob_chunks")),
    )


def _create_datasets() -> None:
    """Data sets."""
    op.create_table(
        "datasets",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("source_format", sa.String(length=20), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("blob_digest", sa.String(length=64), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("test_rows", sa.BigInteger(), nullable=False),
        sa.Column("columns", sa.BigInteger(), nullable=False),
        sa.Column("classes", sa.JSON(), nullable=False),
        sa.Column("summary", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.ForeignKeyConstraint(["blob_digest"], ["blobs.digest"], name=op.f("fk_datasets_blob_digest")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_datasets")),
        sa.UniqueConstraint("digest", name=op.f("uq_datasets_digest")),
    )
    op.create_index(op.f("ix_datasets_blob_digest"), "datasets", ["blob_digest"])


def _create_jobs() -> None:
    """Training jobs and their Idempotency-Keys."""
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("dataset_id", sa.String(length=40), nullable=False),
        sa.Column("model", sa.String(length=100), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=24), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("stage", sa.String(length=24), nullable=False),
        sa.Column("progress_done", sa.Integer(), nullable=False),
        sa.Column("progress_total", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("error_code", sa.String(length=64), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("provenance", sa.JSON(), nullable=False),
        sa.Column("preparation_digest", sa.String(length=64), nullable=True),
        sa.Column("teacher_digest", sa.String(length=64), nullable=True),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["preparation_digest"], ["blobs.digest"], name=op.f("fk_jobs_preparation_digest")
        ),
        sa.ForeignKeyConstraint(["teacher_digest"], ["blobs.digest"], name=op.f("fk_jobs_teacher_digest")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_dataset_id"), "jobs", ["dataset_id"])
    op.create_index(op.f("ix_jobs_preparation_digest"), "jobs", ["preparation_digest"])
    op.create_index(op.f("ix_jobs_state"), "jobs", ["state"])
    op.create_index(op.f("ix_jobs_teacher_digest"), "jobs", ["teacher_digest"])
    op.create_table(
        "idempotency_keys",
        sa.Column("owner", sa.String(length=100), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("body_digest", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "key", name=op.f("pk_idempotency_keys")),
    )


def _create_job_rows() -> None:
    """Events and students of jobs."""
    op.create_table(
        "job_events",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("type", sa.String(length=40), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_job_events_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "seq", name=op.f("pk_job_events")),
    )
    op.create_table(
        "job_students",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("class_index", sa.Integer(), nullable=False),
        sa.Column("method", sa.String(length=16), nullable=False),
        sa.Column("label", sa.String(length=400), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("objective", sa.Double(), nullable=True),
        sa.Column("gap", sa.Double(), nullable=True),
        sa.Column("iterations", sa.BigInteger(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("status", sa.String(length=24), nullable=True),
        sa.Column("threshold", sa.Double(), nullable=True),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["digest"], ["blobs.digest"], name=op.f("fk_job_students_digest")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_job_students_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "class_index", "method", name=op.f("pk_job_students")),
    )
    op.create_index(op.f("ix_job_students_digest"), "job_students", ["digest"])
    op.create_index(op.f("ix_job_students_job_id_label"), "job_students", ["job_id", "label"])


def _create_models() -> None:
    """Published versions and their aliases."""
    op.create_table(
        "model_versions",
        sa.Column("model", sa.String(length=100), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("dataset_digest", sa.String(length=64), nullable=False),
        sa.Column("method", sa.String(length=16), nullable=False),
        sa.Column("classes", sa.JSON(), nullable=False),
        sa.Column("columns", sa.BigInteger(), nullable=False),
        sa.Column("teacher_digest", sa.String(length=64), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_model_versions_job_id")),
        sa.ForeignKeyConstraint(
            ["teacher_digest"], ["blobs.digest"], name=op.f("fk_model_versions_teacher_digest")
        ),
        sa.PrimaryKeyConstraint("model", "version", name=op.f("pk_model_versions")),
        sa.UniqueConstraint("job_id", name=op.f("uq_model_versions_job_id")),
    )
    op.create_index(op.f("ix_model_versions_teacher_digest"), "model_versions", ["teacher_digest"])
    op.create_table(
        "aliases",
        sa.Column("model", sa.String(length=100), nullable=False),
        sa.Column("alias", sa.String(length=100), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["model", "version"],
            ["model_versions.model", "model_versions.version"],
            name=op.f("fk_aliases_model_version"),
        ),
        sa.PrimaryKeyConstraint("model", "alias", name=op.f("pk_aliases")),
    )
