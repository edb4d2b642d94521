"""A rollout on this machine: the containers of the rendered pods as processes, and SIGTERM under queries."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from app.services.first_key import FIRST_KEY_ID
from app.services.keys import new_text
from tests.deploy.rendered import Object, committed, environment, pods
from tests.rollout import LATE_SECONDS, assert_nothing_was_lost, import_faces, roll_out
from tests.system.processes import Process, free_port

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

STMS = Path(sys.executable).with_name("stms")


class Node:
    """Runs containers of the committed objects as processes, with folders in the place of their volumes."""

    def __init__(self, folder: Path) -> None:
        self.objects = committed()
        self._folder = folder
        self._inherited = {name: value for name, value in os.environ.items() if not name.startswith("STMS_")}
        (folder / "secrets").mkdir()
        self.key = new_text(FIRST_KEY_ID)
        self._write("STMS_DATABASE_URL", f"sqlite:///{folder / 'shared.sqlite'}")
        self._write("first.key", self.key)

    def run(self, container: Object) -> None:
        """Run a container to its end, which must be successful."""
        command = [STMS, *container["args"]]
        subprocess.run(command, env=self._environment(container, "none"), check=True, timeout=120)

    @contextmanager
    def serving(self, name: str) -> Iterator[tuple[Process, int]]:
        """Run a pod of the API, init containers first, with a data folder and a port of its own."""
        pod, port = pods(self.objects)["api"], free_port()
        for container in pod["initContainers"]:
            self.run(container)
        [container] = pod["containers"]
        own = {"STMS_HOST": "127.0.0.1", "STMS_PORT": str(port)}
        url = f"http://127.0.0.1:{port}/readyz/queries"
        environ = self._environment(container, name) | own
        with Process(name, [STMS, *container["args"]], self._folder, environ, url=url) as process:
            yield process, port

    def _write(self, name: str, text: str) -> None:
        path = self._folder / "secrets" / name
        path.write_text(f"{text}\n", encoding="utf-8")
        path.chmod(0o400)

    def _environment(self, container: Object, pod: str) -> dict[str, str]:
        folders = {"/data": self._folder / pod, "/secrets": self._folder / "secrets"}
        given = environment(self.objects, container)
        for mounted, folder in folders.items():
            given = {key: value.replace(mounted, str(folder), 1) for key, value in given.items()}
        return self._inherited | given


def test_a_rollout_refuses_no_query_and_ends_in_time(tmp_path: Path):
    node = Node(tmp_path)
    [migrate] = pods(node.objects)["migrate"]["containers"]
    node.run(migrate)
    with ExitStack() as stack:
        old, old_port = stack.enter_context(node.serving("old"))
        _, new_port = stack.enter_context(node.serving("new"))
        import_faces(new_port, {"Authorization": f"Bearer {node.key}"})
        found = roll_out(old, old_port, new_port, node.key)
    assert_nothing_was_lost(found)
    assert LATE_SECONDS < found.ended_after < pods(node.objects)["api"]["terminationGracePeriodSeconds"]
