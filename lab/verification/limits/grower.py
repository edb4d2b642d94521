"""One tenant that stores what it can, in every way: ``python -m lab.verification.limits.grower grow``.

It is run like `lab.verification.crowds`. The target's key has the scope train, and the first of its keys
is an administrator's of the same tenant. Each way is a loop of its own; most requests are refused soon,
because the quotas of the tenant are full.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

import httpx
import numpy as np

from lab.verification.crowds import Crowd, Work, main
from lab.verification.limits.stage import OWN_CLASSES, small_csv
from tests.refusals.archives import safetensors

MODULE: Final = "lab.verification.limits.grower"
CLASSES: Final = 20_000
_PAUSE_SECONDS: Final = 0.1
_JSON: Final = "application/json"


def many_classes(number: int, classes: int = CLASSES) -> bytes:
    """A data set of so many classes, with two rows each, that depends on ``number``."""
    rows = (f"{row % 97},label-of-class-{row // 2:07d}-{number}\n" for row in range(2 * classes))
    return ("a,label\n" + "".join(rows)).encode()


class Grower:
    """The tenant's requests. crowd: counts the responses by status."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._dataset = crowd.target.dataset
        self._train = self._client(crowd.target.key)
        self._admin = self._client(crowd.target.keys[0])

    async def grow(self, step: Callable[[int], Awaitable[None]]) -> None:
        """Repeat a step until it is cancelled."""
        number = 0
        while True:
            try:
                await step(number)
            except httpx.HTTPError:
                self._crowd.responses[0] += 1
            number += 1
            await asyncio.sleep(_PAUSE_SECONDS)

    async def close(self) -> None:
        """Close the connections."""
        await self._train.aclose()
        await self._admin.aclose()

    def steps(self) -> Iterator[Callable[[int], Awaitable[None]]]:
        """Every way to store something."""
        yield from (self._selections, self._repeated_classes, self._thresholds, self._aliases, self._keys)
        yield from (self._failing_uploads, self._datasets, self._idempotency_keys, self._denials)
        yield from (self._heads, self._sign_ins)

    async def _send(self, method: str, path: str, *, admin: bool = False, **options: Any) -> httpx.Response:
        client = self._admin if admin else self._train
        response = await client.request(method, path, **options)
        self._crowd.responses[response.status_code] += 1
        return response

    async def _submit(self, hyperparameters: Mapping[str, Any], **headers: str) -> httpx.Response:
        body = {"dataset_id": self._dataset, "model": "grown", "hyperparameters": hyperparameters}
        return await self._send("POST", "/v1/training-jobs", json=body, headers=headers)

    async def _selections(self, number: int) -> None:
        """A specification with as many classes as are accepted; the job is then cancelled and deleted."""
        for count in (20_000, 5000, 1000, 100):
            labels = [f"label-of-class-{(number + k) % CLASSES:07d}-0" for k in range(count)]
            response = await self._submit({"classes": labels})
            if response.status_code == 202:
                await self._remove(response, number)
                return

    async def _repeated_classes(self, number: int) -> None:
        response = await self._submit({"classes": ["label-of-class-0000000-0"] * 35_000})
        if response.status_code == 202:
            await self._remove(response, number)

    async def _remove(self, response: httpx.Response, number: int) -> None:
        """Keep every second job until it ends; cancel and delete the others."""
        if number % 2:
            job = f"/v1/training-jobs/{response.json()['id']}"
            await self._send("POST", f"{job}/cancel")
            await self._send("DELETE", job)

    async def _thresholds(self, number: int) -> None:
        """A version with other thresholds, which is deleted again."""
        body = {"base": "1", "thresholds": {str(number % OWN_CLASSES): 0.001 * (number + 1)}}
        response = await self._send("POST", "/v1/models/own/versions", json=body)
        if response.status_code == 201:
            await self._send("DELETE", f"/v1/models/own/versions/{response.json()['version']}")

    async def _aliases(self, number: int) -> None:
        """A new alias, and a move of one that exists."""
        name = f"alias-{number:06d}-{'x' * 60}"
        await self._send("PUT", f"/v1/models/own/aliases/{name}", json={"version": 1})
        found = await self._send("GET", "/v1/models/own/aliases/latest")
        condition = {"If-Match": found.headers.get("etag", '"1"')}
        await self._send("PUT", "/v1/models/own/aliases/latest", json={"version": 1}, headers=condition)

    async def _keys(self, number: int) -> None:
        """A key with many names of models, which is revoked again."""
        for count in (1000, 100, 10):
            models = [f"m{name:05d}-{'x' * 90}" for name in range(count)]
            body = {"name": f"k{number}", "scopes": ["query"], "models": models}
            response = await self._send("POST", "/v1/keys", admin=True, json=body)
            if response.status_code == 201:
                await self._send("DELETE", f"/v1/keys/{response.json()['details']['id']}", admin=True)
                return

    async def _upload(self, data: bytes) -> httpx.Response:
        parameters = {"format": "csv", "name": "x" * 200}
        kind = {"Content-Type": "text/csv"}
        return await self._send("POST", "/v1/datasets", params=parameters, content=data, headers=kind)

    async def _failing_uploads(self, number: int) -> None:
        await self._upload(small_csv(number, 1000) + b"1,x,a\n")

    async def _datasets(self, number: int) -> None:
        """A data set of many classes; every second one is deleted again."""
        response = await self._upload(many_classes(number + 1))
        if response.status_code == 201 and number % 2:
            await self._send("DELETE", f"/v1/datasets/{response.json()['id']}")

    async def _idempotency_keys(self, number: int) -> None:
        """A job with an idempotency key of its own, which is cancelled and deleted."""
        response = await self._submit({"seed": number}, **{"Idempotency-Key": uuid.uuid4().hex * 7})
        if response.status_code == 202:
            await self._remove(response, 1)

    async def _denials(self, number: int) -> None:
        await self._send("GET", f"/v1/keys?after=key_{number}")
        await self._send("PATCH", "/v1/quotas?tenant=attacker", json={"stored_bytes": 2**40})

    async def _heads(self, number: int) -> None:
        """An imported head of 1000 long labels, which is deleted."""
        kind = {"Content-Type": "application/octet-stream"}
        response = await self._send("POST", "/v1/teachers?model=head", content=head(number), headers=kind)
        if response.status_code == 201:
            await self._send("DELETE", f"/v1/models/head/versions/{response.json()['version']}")

    async def _sign_ins(self, _number: int) -> None:
        form = {"key": self._crowd.target.key, "next": "/ui/"}
        await self._send("POST", "/ui/sign-in", data=form, headers={"Sec-Fetch-Site": "same-origin"})

    def _client(self, key: str) -> httpx.AsyncClient:
        target = self._crowd.target
        return httpx.AsyncClient(
            base_url=f"http://{target.host}:{target.port}",
            headers={"Authorization": f"Bearer {key}"},
            trust_env=False,
            timeout=60,
        )


def head(number: int, labels: int = 1000, letters: int = 250) -> bytes:
    """A linear head with long labels, that depends on ``number``."""
    names = [f"{label:06d}-{number}-".ljust(letters, "x") for label in range(labels)]
    described = {"dtype": "F32", "shape": [labels, 1], "data_offsets": [0, 4 * labels]}
    header = {"__metadata__": {"labels": json.dumps(names)}, "weights": described}
    return safetensors(header, np.full(labels, number + 1, np.float32).tobytes())


def _grow(crowd: Crowd) -> Work:
    grower = Grower(crowd)
    return [grower.grow(step) for step in grower.steps()]


if __name__ == "__main__":
    main({"grow": _grow}, niceness=10)
