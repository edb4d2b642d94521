"""One of two servers gets SIGTERM while queries come through a balancer that notices three seconds late."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rollout import assert_nothing_was_lost, import_faces, roll_out
from tests.system.deployment import Deployment

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.mark.parametrize("count", [1, 2])
def test_no_query_is_lost(tmp_path: Path, count: int):
    deployment = Deployment(tmp_path, settings={"STMS_REQUIRE_KEYS": "false"}, is_clean=True)
    old = deployment.add("api", "--api-processes", count)
    deployment.add("api")
    with deployment:
        old_port, new_port = deployment.ports
        import_faces(new_port)
        found = roll_out(old, old_port, new_port)
    assert_nothing_was_lost(found)
    assert found.ended_after < 30
