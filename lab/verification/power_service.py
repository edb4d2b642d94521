"""The embedded service for `lab.verification.power`, and what its clients do while it is recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
from sklearn.datasets import load_iris

from stms_client import Client
from tests.system.deployment import QUICK_SOLVERS, Deployment, prepare_database

SET_UP: Final = (
    "import sys, pathlib; from lab.verification.power_service import set_up;"
    " print(set_up(pathlib.Path(sys.argv[1])))"
)
"""Program for another process, whose writes are recorded from the first one on."""

JOB_SECONDS: Final = 300.0


def settings(data: Path) -> dict[str, str]:
    """Of a service on a data folder."""
    return {"STMS_DATA_DIR": str(data), **QUICK_SOLVERS}


def set_up(data: Path) -> str:
    """Create the tables and the first key; returns it."""
    return prepare_database(f"sqlite:///{data / 'stms.sqlite'}", {"power": {"admin", "train"}})["power"]


def service(data: Path, more: Mapping[str, str] | None = None) -> Deployment:
    """`stms serve` on a data folder that was set up. more: environment variables."""
    return Deployment(data.parent, serve=True, is_new=False, settings=settings(data) | dict(more or {}))


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
