"""The service under attack, with keys of three tenants: one that asks, one that attacks, and a neighbour."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import httpx
import numpy as np

from app.processes.os_process import ProcessName
from app.services.keys import create_key
from app.store.unit_of_work import Store
from lab.verification.crowds import Target
from lab.verification.prober import COLUMNS, Prober
from tests.system.deployment import Deployment
from tests.system.postgres import postgres
from tests.system.processes import answers, open_files, process_name
from tests.system.published import publish_linear

_KEYS: Final = {
    "query": ("default", "query"),
    "operator": ("default", "operator"),
    "neighbour": ("neighbour", "train"),
    "attacker": ("attacker", "train"),
    "attacker admin": ("attacker", "admin"),
    **{f"attacker {number}": ("attacker", "query") for number in range(4)},
}
"""Tenant and scope of the keys by name."""
ENDED: Final = ("succeeded", "partially_succeeded", "failed", "cancelled")
"""States of a job that has ended."""
OWN_CLASSES: Final = 600
"""Classes of the attacker's model."""
_OWN_COLUMNS: Final = 8


class Stage(Deployment):
    """The service on all cores of ``cores``, or a part of them, with the models of all tenants.

    quotas: of the attacker's tenant. options: of `Deployment`, such as ``api`` or ``serve``.
    """

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        quotas: Mapping[str, int] | None = None,
        **options: Any,
    ) -> None:
        given = {"STMS_LOG_LEVEL": "WARNING", "OPENBLAS_NUM_THREADS": "1", **(settings or {})}
        super().__init__(settings=given, prepare=self._fill, **options)
        self._quotas = dict(quotas or {})

    def _fill(self, store: Store) -> None:
        random = np.random.default_rng(0)
        publish_linear(store, "other", random.normal(size=(4, COLUMNS)))
        attacker = store.of_tenant("attacker")
        publish_linear(attacker, "own", random.normal(size=(OWN_CLASSES, _OWN_COLUMNS)))
        for name, (tenant, scope) in _KEYS.items():
            self.keys[name] = create_key(store.of_tenant(tenant), name, {scope})[1]
        if self._quotas:
            with store.begin() as uow:
                uow.quotas.set_quotas("attacker", self._quotas)

    def target(self, dataset: str = "") -> Target:
        """What an attack on the service gets."""
        several = tuple(self.keys[f"attacker {number}"] for number in range(4))
        return Target(
            "127.0.0.1", self.port, self.keys["attacker"], "own", _OWN_COLUMNS, "", dataset, several
        )

    def prober(self, **options: Any) -> Prober:
        """Queries of the key ``query``. options: arguments of `Prober`."""
        return Prober(self.port, self.keys["query"], **options)

    def cookie(self, key: str) -> str:
        """The session cookie of a person who signs in with one of `keys`. Raises RuntimeError."""
        answer = httpx.post(
            f"{self.url}/ui/sign-in",
            headers={"sec-fetch-site": "same-origin"},
            data={"key": self.keys[key]},
            trust_env=False,
        )
        if answer.status_code != 303:
            raise RuntimeError(answer.text)
        return answer.headers["set-cookie"].partition(";")[0]

    def process(self, name: ProcessName) -> int:
        """Process id of a process with this name. Raises LookupError without one."""
        return next(pid for pid in self.pids if process_name(pid) == name)

    def files(self, name: ProcessName) -> int:
        """Number of the open files of a process."""
        return len(open_files(self.process(name)))

    def is_alive(self) -> bool:
        """Whether the service runs and is ready."""
        return all(process.is_running and answers(process.url, 10.0) for process in self.processes.values())


def all_cores() -> str:
    """The cores of this process as taskset takes them."""
    return ",".join(map(str, sorted(os.sched_getaffinity(0))))


@contextmanager
def database(cores: str) -> Iterator[str]:
    """The address of a new PostgreSQL database, whose server runs on these cores, unlike this process."""
    pinned = os.sched_getaffinity(0)
    with ExitStack() as stack:
        os.sched_setaffinity(0, set(map(int, cores.split(","))))
        try:
            server = stack.enter_context(postgres())
        finally:
            os.sched_setaffinity(0, pinned)
        yield server.create_database("stms")


def small_csv(number: int, rows: int = 60) -> bytes:
    """A data set of two columns and three classes that depends on ``number``."""
    lines = (f"{row * 7 % 13 + number},{row * row % 7},{row % 3}\n" for row in range(rows))
    return ("a,b,label\n" + "".join(lines)).encode()


def upload(client: httpx.Client, data: bytes, name: str = "small") -> httpx.Response:
    """Upload a CSV file."""
    return client.post(
        "/v1/datasets",
        params={"format": "csv", "name": name},
        content=data,
        headers={"Content-Type": "text/csv"},
    )


def submit(client: httpx.Client, dataset: str, model: str, **hyperparameters: Any) -> httpx.Response:
    """Submit a job; without hyper-parameters a small one."""
    given = hyperparameters or {"automatic": False, "guard": {"kind": "off"}}
    body = {"dataset_id": dataset, "model": model, "hyperparameters": given}
    return client.post(
        "/v1/training-jobs", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
