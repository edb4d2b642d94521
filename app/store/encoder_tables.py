"""The tables of encoders: own ones of tenants, and the vectors that encoders have made of pictures."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Double, ForeignKey, Integer, LargeBinary, String, Table

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

# Vectors that an encoder has made of the pictures of a data set: float32, little endian, (pictures, width).
# One row for each portion of the different pictures of a column.
picture_vectors = Table(
    "picture_vectors",
    metadata,
    Column("dataset_id", String(40), ForeignKey("datasets.id", ondelete="CASCADE"), primary_key=True),
    # "train" or "test".
    Column("part", String(8), primary_key=True),
    # Number of the column.
    Column("number", Integer, primary_key=True),
    # Digest of the encoder, which the version of the pixels is a part of.
    Column("encoder", String(64), primary_key=True),
    # Number of the portion's first picture.
    Column("first", BigInteger, primary_key=True),
    Column("pictures", BigInteger, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
)
