"""Requests to versions with an encoder: records, and rows of numbers where these are records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np

from app.domain.errors import InvalidRequest, ServiceError
from app.http.types import Body
from app.serving.decision import Explain
from app.serving.inputs import Inputs
from app.serving.query.negotiation import MediaType, RequestFormat
from app.serving.query.record_bodies import (
    CLASS_RECORDS,
    CLASSES_RECORDS,
    ClassesRecords,
    decode_records,
    needs_record,
)
from app.serving.query.requests import (
    CLASS,
    CLASSES,
    QueryRequest,
    check_classes,
    check_named,
    decompressed,
    parse_tensor,
    request_of,
)
from app.serving.query.row_errors import invalid
from app.serving.query.rows import Block, decode
from app.serving.record_sources import RecordSource
from app.serving.records import Records
from app.serving.work import RequestLimits
from core.data.validation import row_blocks
from core.errors import InvalidProblem


@dataclass(frozen=True, slots=True)
class RecordRequest:
    """A parsed request whose records are not yet read."""

    source: RecordSource
    explain: Explain
    classes: tuple[str, ...] = ()
    reports_faults: bool = False

    @property
    def single(self) -> bool:
        """Whether the request has a single record, which is in no list."""
        return self.source.single

    @property
    def n_rows(self) -> int:
        return len(self.source)

    def blocks(self, inputs: Inputs, width: int = 1) -> Iterator[Block]:
        """Tables (block, d) of all records, for whole teachers; see `rows.dense_blocks`."""
        del inputs
        columns = self.source.records.encoder.layout.columns
        for part in row_blocks(self.n_rows, max(columns, width)):
            yield part, np.array(self.source.each(self.source.records.full_row, range(part.start, part.stop)))

    def error(self, error: InvalidProblem, first: int = 0) -> InvalidRequest:
        """The request error for an error of the core in a block that begins at record ``first``."""
        row = None if self.single else first + (error.faults[0].row or 0)
        return invalid([self.source.records.reader.problem_fault(error, self.source.field, row)])


class _Classes(msgspec.Struct):
    classes: list[str] = []


_CLASSES: Final = msgspec.json.Decoder(_Classes)


def classes_of(data: Body, format_: RequestFormat, limits: RequestLimits) -> tuple[str, ...]:
    """The classes that a body or the query string names; none if the body cannot be read."""
    if format_.classes or format_.body is not MediaType.JSON:
        return format_.classes
    try:
        classes = tuple(_CLASSES.decode(decompressed(data, format_, limits)).classes)
        check_classes(classes)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ServiceError):
        return ()
    return classes


def parse_classes_of_records(
    data: Body, format_: RequestFormat, records: Records, limits: RequestLimits
) -> RecordRequest | QueryRequest:
    """Parse a query for several distinct classes. Raises InvalidRequest and TooLarge."""
    request = parse_records(CLASSES_RECORDS, data, format_, records, limits)
    check_classes(request.classes)
    check_named(request.classes, request.n_rows)
    return request


def parse_records(
    decoder: msgspec.json.Decoder[Any],
    data: Body,
    format_: RequestFormat,
    records: Records,
    limits: RequestLimits,
) -> RecordRequest | QueryRequest:
    """Parse a body. decoder: of one of `record_bodies`. Raises InvalidRequest and TooLarge."""
    data = decompressed(data, format_, limits)
    if format_.body is not MediaType.JSON:
        if not records.encoder.takes_numbers:
            raise needs_record(records, "rows")
        return parse_tensor(data, format_, limits)
    form = decode_records(decoder, data, records, limits.max_rows)
    body = form.body
    if form.source is None:
        # Rows of numbers are what they are without an encoder.
        plain: msgspec.json.Decoder[Any] = CLASS if decoder is CLASS_RECORDS else CLASSES
        return request_of(decode(plain, data, limits.max_rows), format_)
    named = body.classes if isinstance(body, ClassesRecords) else None
    classes = format_.classes if named is None else tuple(named)
    explain = body.explain or format_.explain
    return RecordRequest(form.source, explain, classes, body.faulty_rows == "report")
