"""The encoder of records of a job and its version"""

from __future__ import annotations

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

_OF_USE = {
    "jobs": ("tenant", "state", "student_bytes", "row_bytes", "preparation_digest", "teacher_digest",
             "labels_digest"),
    "model_versions": ("tenant", "row_bytes", "teacher_digest", "class_table"),
}  # fmt: skip


def upgrade() -> None:
    for table, columns in _OF_USE.items():
        # In one statement that both databases know: SQLite would make the table anew for a key of its own.
        op.execute(
            f"ALTER TABLE {table} ADD COLUMN encoder_digest VARCHAR(64)"
            f" CONSTRAINT fk_{table}_encoder_digest REFERENCES blobs (digest)"
        )
        op.create_index(op.f(f"ix_{table}_encoder_digest"), table, ["encoder_digest"])
        op.drop_index(f"ix_{table}_tenant_use", table)
        op.create_index(f"ix_{table}_tenant_use", table, [*columns, "encoder_digest"])


def downgrade() -> None:
    for table, columns in _OF_USE.items():
        op.drop_index(f"ix_{table}_tenant_use", table)
        op.create_index(f"ix_{table}_tenant_use", table, list(columns))
        op.drop_index(op.f(f"ix_{table}_encoder_digest"), table)
        op.drop_column(table, "encoder_digest")
