"""The embedded service for `benchmarks.safety.power`, and what its clients do while it is recorded."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
from sklearn.datasets import load_iris

from app.services.keys import create_key
from app.store.engine import open_engine
from app.store.migrate import upgrade
from app.store.unit_of_work import Store
from benchmarks.processes import free_port
from stms_client import Client

SET_UP: Final = (
    "import sys, pathlib; from benchmarks.safety.power_service import set_up;"
    " print(set_up(pathlib.Path(sys.argv[1])))"
)
"""Program for another process, whose writes are recorded from the first one on."""

JOB_SECONDS: Final = 300.0
_START_SECONDS: Final = 240.0
_ROOT: Final = Path(__file__).parents[2]


def environ(data: Path) -> dict[str, str]:
    """Environment of a service on a data folder, without the caller's own settings."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("STMS_")}
    own = {"STMS_DATA_DIR": str(data), "STMS_SOLVER_THREADS": "1", "STMS_SPARE_SOLVER": "false"}
    return inherited | own | {"PYTHONPATH": str(_ROOT), "STMS_SOLVER_NICENESS": "0"}


def set_up(data: Path) -> str:
    """Create the tables and the first key; returns it."""
    address = f"sqlite:///{data / 'stms.sqlite'}"
    upgrade(address)
    store = Store(open_engine(address))
    try:
        return create_key(store, "power", {"admin", "train"})[1]
    finally:
        store.dispose()


class Service:
    """`stms serve` on a data folder, as a context manager. url: its address. more: environment variables."""

    def __init__(self, data: Path, more: Mapping[str, str]) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-P", "-m", "app.cli", "serve", "--port", str(port)]
        self._log = data.with_suffix(".log")
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                command, env=environ(data) | dict(more), stdout=output, stderr=output, cwd=data.parent
            )

    def __enter__(self) -> Service:
        deadline = time.monotonic() + _START_SECONDS
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise RuntimeError(self._log.read_text(errors="replace")[-3000:])
            time.sleep(0.2)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5).is_success
        except httpx.TransportError:
            return False


def use(url: str, key: str, told: Callable[[dict[str, Any]], None], folder: Path, jobs: int) -> None:
    """Make the clients' calls. told: called with every fact that an answer has promised."""
    X, y = load_iris(return_X_y=True)
    file = folder / "iris.npz"
    np.savez(file, X_train=X, y_train=y)
    headers = {"Authorization": f"Bearer {key}"}
    with (
        Client(url, key, timeout=30) as client,
        httpx.Client(base_url=url, headers=headers, timeout=30) as raw,
    ):
        dataset = client.upload_dataset(file, name="iris")["id"]
        told({"kind": "dataset", "id": dataset})
        submitted = []
        for number in range(jobs):
            spec = {"automatic": False, "seed": number, "alias": None}
            submitted.append(client.submit_job(dataset, f"model-{number % 2}", spec)["id"])
            told({"kind": "job", "id": submitted[-1]})
        pointed: dict[str, int] = {}
        for job in submitted:
            _follow(client, raw, told, job, pointed)


def _follow(
    client: Client,
    raw: httpx.Client,
    told: Callable[[dict[str, Any]], None],
    job: str,
    pointed: dict[str, int],
) -> None:
    """Wait for a job, revoke a key, move the alias to its version, and delete the one that the alias left.

    Jobs end in any order, so the version with the number before may belong to a job that is followed later.
    pointed: the version of the alias, by model; it is updated. Raises JobNotSucceeded.
    """
    answer = raw.post("/v1/keys", json={"name": "temporary", "scopes": ["query"]}).raise_for_status()
    made = answer.json()["details"]
    told({"kind": "key", "id": made["id"]})
    ended = client.wait_for_job(job, patience=JOB_SECONDS)
    model, version = ended["model"], ended["version"]
    told({"kind": "version", "model": model, "version": version, "job": job})
    raw.delete(f"/v1/keys/{made['id']}").raise_for_status()
    told({"kind": "revoked", "id": made["id"]})
    alias = client.point_alias(model, "stable", version)
    told({"kind": "alias", "model": model, "version": version, "revision": alias["revision"]})
    left = pointed.get(model)
    pointed[model] = version
    if left is not None:
        client.delete_version(model, left)
        told({"kind": "deleted", "model": model, "version": left})
