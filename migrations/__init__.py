"""Alembic scripts: the schema history, the same for SQLite and PostgreSQL."""
