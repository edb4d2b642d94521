"""How often a unit of work was started without a result, and the memory of workers' solvers"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("job_units", sa.Column("starts", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("workers", sa.Column("solver_bytes", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    for table, column in (("job_units", "starts"), ("workers", "solver_bytes")):
        with op.batch_alter_table(table) as changed:
            changed.drop_column(column)
