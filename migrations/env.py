"""Alembic environment: runs on the connection that `app.store.migrate` opened, inside its transaction."""

from __future__ import annotations

from alembic import context

from app.store.all_tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
