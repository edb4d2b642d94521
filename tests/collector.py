"""A collector of traces as a fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.collector import Collector


@pytest.fixture
def collector() -> Iterator[Collector]:
    opened = Collector()
    yield opened
    opened.close()
