"""Bytes of rows in the quota, students by reference, and at most 1000 moves of the aliases of a model"""

# ruff: noqa: S608 - every part of a statement is a constant of this file

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

_MOVES = 1000
_ROW = 200
_UNFINISHED = sa.text("state IN ('queued', 'running', 'cancelling')")
_STUDENTS = ("class_index", "method", "label", "state", "objective", "gap", "iterations", "seconds", "status")
_STUDENTS += ("threshold", "metrics", "digest", "error", "chosen")
_INHERITED = {
    "job_students": _STUDENTS,
    "student_curves": ("class_index", "method", "curve"),
    "student_traces": ("class_index", "method", "trace"),
}
_OF_USE = ("tenant", "state", "student_bytes", "row_bytes", "preparation_digest", "teacher_digest")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("test_dataset_id", sa.String(40), nullable=True))
    op.add_column("jobs", sa.Column("teacher_model", sa.String(201), nullable=True))
    # In one statement that both databases know: SQLite would make the table anew for a key of its own.
    op.execute(
        "ALTER TABLE jobs ADD COLUMN base_job_id VARCHAR(40)"
        " CONSTRAINT fk_jobs_base_job_id REFERENCES jobs (id)"
    )
    for table in ("jobs", "model_versions"):
        op.add_column(table, sa.Column("row_bytes", sa.BigInteger(), nullable=False, server_default="0"))
    _fill()
    op.execute(
        "DELETE FROM alias_moves WHERE id IN (SELECT id FROM (SELECT id, ROW_NUMBER() OVER"
        f" (PARTITION BY tenant, model ORDER BY id DESC) AS n FROM alias_moves) AS ranked WHERE n > {_MOVES})"
    )
    op.create_index("ix_jobs_base_job_id", "jobs", ["base_job_id"])
    op.create_index("ix_jobs_tenant_use", "jobs", [*_OF_USE, "labels_digest"])
    columns = ["state", "stage", "id", "tenant", "created_by", "attempt", "priority"]
    op.create_index(
        "ix_jobs_unfinished_turns", "jobs", columns, sqlite_where=_UNFINISHED, postgresql_where=_UNFINISHED
    )
    columns = ["tenant", "row_bytes", "teacher_digest", "class_table"]
    op.create_index("ix_model_versions_tenant_use", "model_versions", columns)
    op.create_index("ix_alias_moves_tenant_model_id", "alias_moves", ["tenant", "model", "id"])


def downgrade() -> None:
    for table, columns in _INHERITED.items():
        names, values = ", ".join(columns), ", ".join(f"old.{name}" for name in columns)
        op.execute(
            f"INSERT INTO {table} (job_id, {names}) SELECT jobs.id, {values} FROM jobs"
            f" JOIN {table} AS old ON old.job_id = jobs.base_job_id WHERE NOT EXISTS"
            f" (SELECT 1 FROM {table} AS own WHERE own.job_id = jobs.id"
            " AND own.class_index = old.class_index AND own.method = old.method)"
        )
    op.execute("DELETE FROM retired_numbers WHERE model = ''")
    op.drop_index("ix_alias_moves_tenant_model_id", "alias_moves")
    op.drop_index("ix_model_versions_tenant_use", "model_versions")
    op.drop_index("ix_jobs_unfinished_turns", "jobs")
    op.drop_index("ix_jobs_tenant_use", "jobs")
    op.drop_index("ix_jobs_base_job_id", "jobs")
    op.drop_column("model_versions", "row_bytes")
    for name in ("row_bytes", "base_job_id", "teacher_model", "test_dataset_id"):
        op.drop_column("jobs", name)


def _fill() -> None:
    """What the new columns would have, had they always been there; keys of requests are left out."""
    if op.get_bind().dialect.name == "postgresql":
        tested, taught = "spec->'evaluation'->>'dataset_id'", "spec->'teacher'->>'model'"
        binary, text = "OCTET_LENGTH({})", "OCTET_LENGTH(CAST({} AS TEXT))"
    else:
        tested, taught = (
            "json_extract(spec, '$.evaluation.dataset_id')",
            "json_extract(spec, '$.teacher.model')",
        )
        binary = text = "LENGTH(CAST({} AS BLOB))"

    def size(*texts: str, blob: str | None = None) -> str:
        parts = [text.format(name) for name in texts] + ([] if blob is None else [binary.format(blob)])
        return " + ".join([str(_ROW), *(f"COALESCE({part}, 0)" for part in parts)])

    def of_job(table: str, total: str) -> str:
        return f"(SELECT COALESCE(SUM({total}), 0) FROM {table} WHERE {table}.job_id = jobs.id)"

    parts = [
        size("spec", "provenance", "error_message", "teacher_model"),
        of_job("job_students", size("label", "metrics", "error", "chosen")),
        of_job("student_traces", size(blob="trace")),
        of_job("student_curves", size(blob="curve")),
        of_job("job_events", size("data")),
    ]
    op.execute(
        f"UPDATE jobs SET test_dataset_id = {tested},"
        f" teacher_model = CASE WHEN {taught} LIKE '%@%' THEN {taught} END"
    )
    op.execute(f"UPDATE jobs SET row_bytes = {' + '.join(parts)}")
    op.execute(f"UPDATE model_versions SET row_bytes = {size('classes', 'metrics')}")
