"""The profile of the columns of records in training, and counts of the inputs of queries"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_OF_USE = {
    "jobs": ("tenant", "state", "student_bytes", "row_bytes", "preparation_digest", "teacher_digest",
             "labels_digest", "encoder_digest"),
    "model_versions": ("tenant", "row_bytes", "teacher_digest", "class_table", "encoder_digest"),
}  # fmt: skip
_VERSION = ["tenant", "model", "version"]


def upgrade() -> None:
    for table, columns in _OF_USE.items():
        # As in 0023.
        op.execute(
            f"ALTER TABLE {table} ADD COLUMN profile_digest VARCHAR(64)"
            f" CONSTRAINT fk_{table}_profile_digest REFERENCES blobs (digest)"
        )
        op.create_index(op.f(f"ix_{table}_profile_digest"), table, ["profile_digest"])
        op.drop_index(f"ix_{table}_tenant_use", table)
        op.create_index(f"ix_{table}_tenant_use", table, [*columns, "profile_digest"])
    op.create_table(
        "input_counts",
        sa.Column("tenant", sa.String(100), nullable=False),
        sa.Column("model", sa.String(100), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("hour", sa.Integer(), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("sampled", sa.BigInteger(), nullable=False),
        sa.Column("counts", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            _VERSION,
            [f"model_versions.{column}" for column in _VERSION],
            name="fk_input_counts_tenant_model_version",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(*_VERSION, "hour", name="pk_input_counts"),
    )
    op.create_index(op.f("ix_input_counts_hour"), "input_counts", ["hour"])


def downgrade() -> None:
    op.drop_table("input_counts")
    for table, columns in _OF_USE.items():
        op.drop_index(f"ix_{table}_tenant_use", table)
        op.create_index(f"ix_{table}_tenant_use", table, list(columns))
        op.drop_index(op.f(f"ix_{table}_profile_digest"), table)
        op.drop_column(table, "profile_digest")
