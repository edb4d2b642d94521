"""Partial indices of unfinished jobs"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_UNFINISHED = sa.text("state IN ('queued', 'running', 'cancelling')")
_INDICES = {"ix_jobs_unfinished": ["id"], "ix_jobs_unfinished_owner": ["tenant", "created_by"]}


def upgrade() -> None:
    for name, columns in _INDICES.items():
        op.create_index(name, "jobs", columns, sqlite_where=_UNFINISHED, postgresql_where=_UNFINISHED)


def downgrade() -> None:
    for name in _INDICES:
        op.drop_index(name, "jobs")
