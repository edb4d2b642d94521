"""A server with its defaults, for tests that need no other."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.app.server.wire import RunningServer, running


@pytest.fixture
async def up() -> AsyncIterator[RunningServer]:
    async with running() as server:
        yield server
