"""Which cases of a parametrised test `make test` runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_short(values: Iterable[Any], n: int) -> list[Any]:
    """``values``, of which `make test` runs the first ``n`` and `make test-all` all."""
    cases = list(values)
    return cases[:n] + [pytest.param(value, marks=pytest.mark.long) for value in cases[n:]]
