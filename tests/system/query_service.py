"""Our server as it runs in earnest: `stms api` on its own database, with API keys, limits and metrics."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from typing import Any

import numpy as np

from app.store.unit_of_work import Store
from tests.system.deployment import Deployment
from tests.system.published import publish_linear

FEATURES = 64
CLASSES = 10


class Service(Deployment):
    """A service with a key that may query and one that may everything, and with help to ask it."""

    def __init__(self, *, processes: int = 1, **options: Any) -> None:
        """processes: query processes of a server. options: of `Deployment`; by default one `stms api`."""
        keys = {"query": {"query"}, "admin": {"admin"}}
        servers = 0 if options.get("serve") else 1
        super().__init__(api=servers, arguments=["--api-processes", processes], keys=keys, **options)

    def query(self, model: str, label: str, *, action: str = ":query") -> str:
        """Where to ask one class; without a label the model."""
        return f"{self.url}/v1/models/{model}" + (f"/classes/{label}" if label else "") + action

    def headers(self, **more: str) -> dict[str, str]:
        """Of a query in JSON; more: others, with _ for -."""
        given = {name.replace("_", "-"): value for name, value in more.items()}
        return {
            "Authorization": f"Bearer {self.keys['query']}",
            "Content-Type": "application/json",
        } | given

    def ask(self, url: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """One answer. Raises urllib.error.HTTPError unless it is one."""
        request = urllib.request.Request(url, body, dict(headers))
        with urllib.request.urlopen(request, timeout=30) as answer:
            data: bytes = answer.read()
            return data


def digits(store: Store) -> None:
    """A model of ten classes, each one weight vector."""
    publish_linear(store, "digits", np.random.default_rng(0).normal(size=(CLASSES, FEATURES)))


def row(features: int = FEATURES) -> list[float]:
    """One row of numbers with six digits."""
    values: list[float] = np.random.default_rng(1).normal(size=features).round(6).tolist()
    return values
