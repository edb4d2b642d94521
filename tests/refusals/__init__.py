"""Errors that the statements of a block must raise, with the code or field by which programs know them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def refused_as(
    kind: type[Exception], code: str, *, match: str | None = None
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """An error of the service with this code."""
    with pytest.raises(kind, match=match) as caught:
        yield caught
    assert caught.value.reason == code


@contextmanager
def at_fault(
    kind: type[Exception], code: str | None = None, *, field: str | None = None, match: str | None = None
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """An error whose first fault has this code and is of this field."""
    with pytest.raises(kind, match=match) as caught:
        yield caught
    [fault, *_] = caught.value.faults
    assert code is None or fault.code == code
    assert field is None or fault.field == field
