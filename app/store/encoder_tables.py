"""The table of own encoders of tenants."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Double, ForeignKey, String, Table

from app.store.tables import metadata, tenant_column

own_encoders = Table(
    "own_encoders",
    metadata,
    tenant_column(primary_key=True),
    Column("name", String(100), primary_key=True),
    # Of its file.
    Column("digest", String(64), ForeignKey("blobs.digest"), nullable=False, index=True),
    Column("kind", String(8), nullable=False),
    Column("width", BigInteger, nullable=False),
    Column("size", BigInteger, nullable=False),
    # See `app.encoders.specification.EncoderSpecification`.
    Column("specification", JSON, nullable=False),
    Column("licence", String(200), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("created_by", String(100), nullable=False),
)
