"""Queries in which some rows can be answered and others cannot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from app.domain.errors import InputFault, InvalidRequest
from app.http.problem import faults_as_json

MOST_FAULTY_ROWS: Final = 1000
"""Of more faulty rows all are refused."""


@dataclass(slots=True)
class FaultyRows:
    """numbers: rising numbers of the rows that can be answered. faults: the first fault of each other row."""

    numbers: list[int] = field(default_factory=list)
    faults: list[InputFault] = field(default_factory=list)

    def add(self, number: int, error: InvalidRequest) -> None:
        """Count a row as faulty. Raises the error again if it is of the whole query, or of too many rows."""
        fault = error.faults[0] if error.faults else None
        if fault is None or fault.row != number or len(self.faults) >= MOST_FAULTY_ROWS:
            raise error
        self.faults.append(fault)

    def check(self) -> None:
        """Raise InvalidRequest if no row can be answered."""
        if not self.numbers:
            first = self.faults[0]
            raise InvalidRequest(first.message, code=first.code, faults=self.faults)

    @property
    def errors(self) -> bytes:
        """The faults as JSON, as a problem document lists them."""
        return faults_as_json(self.faults)

    def spread(self, results: list[bytes], absent: bytes = b"null") -> list[bytes]:
        """A text for every row of the query, given the texts of the rows that were answered."""
        if not self.faults:
            return results
        of_rows = [absent] * (len(self.numbers) + len(self.faults))
        for number, result in zip(self.numbers, results, strict=True):
            of_rows[number] = result
        return of_rows
