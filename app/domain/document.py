"""What a resource is to everyone: the row of the store, the answer of the API and the type of the client.

A document is a frozen dataclass. The API answers with it as it is, so that no field is told twice; a field
that is the service's own is marked by `OWN`. A computed field of pydantic is in answers, but not in the row.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from pydantic import ConfigDict, Field, PlainSerializer

from app.domain.moments import timestamp

Time: TypeAlias = Annotated[float, PlainSerializer(timestamp, return_type=str)]
"""Seconds since the epoch; RFC 3339 in answers."""
OWN: Final = Field(exclude=True)
"""Marks a field that no answer has."""


class Document:
    """Base of all documents. Answers have every field, also one with its default."""

    __slots__ = ()
    __pydantic_config__ = ConfigDict(json_schema_serialization_defaults_required=True)
