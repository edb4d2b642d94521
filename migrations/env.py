"""Alembic environment: runs on the connection that `app.store.migrate` opened, inside its transaction."""

from __future__ import annotations

from alembic import context

import app.store.evaluation_tables
import app.store.live_tables
import app.store.monitor_tables  # noqa: F401 - its tables belong to the metadata, too
from app.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
