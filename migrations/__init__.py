"""Alembic's scripts: the history of the tables, the same on SQLite and PostgreSQL."""
