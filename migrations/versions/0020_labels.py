"""The labels that a job finds for the rows of its data set"""

from __future__ import annotations

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # In one statement that both databases know: SQLite would make the table anew for a key of its own.
    op.execute(
        "ALTER TABLE jobs ADD COLUMN labels_digest VARCHAR(64)"
        " CONSTRAINT fk_jobs_labels_digest REFERENCES blobs (digest)"
    )
    op.create_index(op.f("ix_jobs_labels_digest"), "jobs", ["labels_digest"])


def downgrade() -> None:
    op.drop_index(op.f("ix_jobs_labels_digest"), "jobs")
    op.drop_column("jobs", "labels_digest")
