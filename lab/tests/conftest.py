"""What the tests of the laboratory share with those of the product, whose `conftest` says what each does."""

from __future__ import annotations

import pytest

from tests.conftest import _common_settings, _same_umask, pytest_configure

__all__ = ["_common_settings", "_same_umask", "pytest_configure"]

HEAVY = ("lab/tests/benchmarks", "lab/tests/verification")
"""Folders that take longest. They start first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(HEAVY))
