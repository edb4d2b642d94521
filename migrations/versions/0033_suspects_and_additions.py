"""The rows whose labels a job finds suspect, and what classes are added with"""

from __future__ import annotations

from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

_NEW = ("suspects_digest", "addition_digest", "examples_digest")
_OF_USE = ("tenant", "state", "student_bytes", "row_bytes", "preparation_digest", "teacher_digest",
           "labels_digest", "encoder_digest", "profile_digest", "rows_digest")  # fmt: skip


def upgrade() -> None:
    for column in _NEW:
        # In one statement that both databases know: SQLite would make the table anew for a key of its own.
        op.execute(
            f"ALTER TABLE jobs ADD COLUMN {column} VARCHAR(64)"
            f" CONSTRAINT fk_jobs_{column} REFERENCES blobs (digest)"
        )
        op.create_index(op.f(f"ix_jobs_{column}"), "jobs", [column])
    op.drop_index("ix_jobs_tenant_use", "jobs")
    op.create_index("ix_jobs_tenant_use", "jobs", [*_OF_USE, *_NEW])
