"""Tables of the processes of the service and their figures; see `app.store.tables` for all others."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Double,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    String,
    Table,
)

from app.domain.answer_counts import PROBABILITY_BINS
from app.store.tables import metadata

# Counters that must not decrease when the counted objects are deleted, see `app.domain.figures`.
tallies = Table(
    "tallies",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("label", String(100), primary_key=True),
    Column("value", Double, nullable=False),
)


# Live figures of groups of server processes, see `app.serving.server_beats`.
servers = Table(
    "servers",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("host", String(255), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("program", String(40), nullable=False),
    Column("started_at", Double, nullable=False),
    Column("beat_at", Double, nullable=False),
    Column("figures", JSON, nullable=False),
)


# Counts of the inputs of queries, in one hour of the epoch: see `app.serving.columns.tally`.
input_counts = Table(
    "input_counts",
    metadata,
    Column("tenant", String(100), primary_key=True),
    Column("model", String(100), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("hour", Integer, primary_key=True, index=True),
    Column("records", BigInteger, nullable=False),
    Column("sampled", BigInteger, nullable=False),
    # uint32, little endian.
    Column("counts", LargeBinary, nullable=False),
    ForeignKeyConstraint(
        ["tenant", "model", "version"],
        ["model_versions.tenant", "model_versions.model", "model_versions.version"],
        ondelete="CASCADE",
    ),
)

ANSWER_BINS: Final = tuple(f"bin_{number}" for number in range(PROBABILITY_BINS))

# The answers of queries to a class, in one hour of the epoch: see `app.domain.answer_counts`.
answer_counts = Table(
    "answer_counts",
    metadata,
    Column("tenant", String(100), primary_key=True),
    Column("model", String(100), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("label", String(400), primary_key=True),
    Column("hour", Integer, primary_key=True, index=True),
    Column("asked", BigInteger, nullable=False),
    Column("yes", BigInteger, nullable=False),
    Column("p", Double, nullable=False),
    Column("p_yes", Double, nullable=False),
    *(Column(name, BigInteger, nullable=False) for name in ANSWER_BINS),
    ForeignKeyConstraint(
        ["tenant", "model", "version"],
        ["model_versions.tenant", "model_versions.model", "model_versions.version"],
        ondelete="CASCADE",
    ),
)


workers = Table(
    "workers",
    metadata,
    Column("executor_id", String(64), primary_key=True),
    Column("host", String(255), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("beat_at", Double, nullable=False),
    Column("slots", Integer, nullable=False, server_default="1"),
    Column("threads", Integer, nullable=False, server_default="1"),
    # Memory limit of one of its solvers; 0 without one.
    Column("solver_bytes", BigInteger, nullable=False, server_default="0"),
    # The units that it runs, as of the last heartbeat.
    Column("units", JSON, nullable=False, server_default="[]"),
    # Set when its peers declare it lost; from then on the worker must not continue under this id.
    Column("lost_at", Double),
)
