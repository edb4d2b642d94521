"""The map of students as a blob of its own

Packages of before hold their maps, and are read as they are.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("job_students") as students:
        students.add_column(sa.Column("map_digest", sa.String(64)))
        students.create_foreign_key("fk_job_students_map_digest", "blobs", ["map_digest"], ["digest"])
        students.create_index("ix_job_students_map_digest", ["map_digest", "job_id"])
