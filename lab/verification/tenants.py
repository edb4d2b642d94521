"""Whether many keys of a tenant delay another one more than one key does; the last line is JSON.

``python -m lab.verification.tenants``: sixteen connections of one tenant ask as soon as they have an
answer, first all with one key, then each with a key of its own. Meanwhile the key of another tenant asks for
less in the same way: a query of rows for a thread, a prediction, an inference over HTTP or gRPC, or a large
body of JSON. The claim: half of its requests beside sixteen keys take at most twice as long as beside one key
or, where that is longer, alone.

A way that seems to break the claim is measured twice more, and the median of the three ratios counts. All
failures count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any, Final

import grpc
import numpy as np

from app.services.keys import create_key
from app.store.unit_of_work import Store
from core.packed import LinearForm, PackedStudent, PackedTeacher
from core.packed.maps import FourierBasis
from lab.verification.crowds import Crowd, Target
from lab.verification.fairness import crowd
from lab.verification.prober import Connection
from lab.verification.tenant_ways import (
    CALL_SECONDS,
    COLUMNS,
    GRPC,
    INFER,
    MODEL,
    MODULE,
    OWN_CONNECTION,
    ROWS,
    WAYS,
    message,
    metadata,
    request_bytes,
)
from tests.system.deployment import Deployment
from tests.system.processes import free_port
from tests.system.published import publish

MAX_RATIO: Final = 2.0
KEYS: Final = 16
_FEWER: Final = 4
"""The other tenant asks for one part of this many, which must be too much for the event loop."""
_FEATURES: Final = 4000
_CLASSES: Final = ("cat", "dog")
_SETTLE_SECONDS: Final = 1.0
_LEAST: Final = 7
"""Requests of a window at least."""
_EXPECTED: Final = {"large_body": 404}
"""Status of a response if it is not 200."""


def main() -> int:
    """0 if the claim holds."""
    parser = argparse.ArgumentParser(prog="python -m lab.verification.tenants", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter windows")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="only these")
    arguments = parser.parse_args()
    seconds = 1.0 if arguments.quick else 4.0
    figures: dict[str, Any] = {}
    with service() as (target, keys):
        for way in arguments.ways:
            results = [measure(target, keys, way, seconds)]
            if results[0]["ratio"] > MAX_RATIO:
                results += [measure(target, keys, way, seconds) for _ in range(2)]
            median = sorted(results, key=lambda each: float(each["ratio"]))[len(results) // 2]
            figures[way] = median | {"failed": sum(each["failed"] for each in results)}
            print(f"{way}: {figures[way]}", flush=True)
    failed = sum(each["failed"] for each in figures.values())
    ratio = max(each["ratio"] for each in figures.values())
    print(json.dumps({"tenants_failed": failed, "tenants_p50_ratio": ratio, "tenants_ways": figures}))
    return int(failed > 0 or ratio > MAX_RATIO)


def measure(target: Target, keys: Sequence[str], way: str, seconds: float) -> dict[str, Any]:
    """The p50 of the other tenant's requests in ms: alone, and beside one key and all keys of the crowd.

    target: with the key of the other tenant. answers: responses to the crowd with all keys, by status.
    """
    alone = _window(target, way, seconds)
    with crowd(replace(target, keys=(keys[0],) * len(keys)), way, MODULE):
        time.sleep(_SETTLE_SECONDS)
        beside_one = _window(target, way, seconds)
    with crowd(replace(target, keys=tuple(keys)), way, MODULE) as answers:
        time.sleep(_SETTLE_SECONDS)
        beside_all = _window(target, way, seconds)
    windows = {"alone": alone, "beside_one": beside_one, "beside_all": beside_all}
    p50 = {name: 1e3 * statistics.median(times) for name, (times, _) in windows.items()}
    return {
        "failed": sum(failed for _, failed in windows.values()),
        "ratio": round(p50["beside_all"] / max(p50["beside_one"], p50["alone"]), 2),
        **{f"{name}_p50_ms": round(value, 1) for name, value in p50.items()},
        "answers": answers,
    }


def _window(target: Target, way: str, seconds: float) -> tuple[list[float], int]:
    """Times of requests one after another in seconds, also of those that failed, and the number of these."""
    times, failed, began = list[float](), 0, time.monotonic()
    with _asking(target, way) as ask:
        while len(times) < _LEAST or time.monotonic() - began < seconds:
            started = time.monotonic()
            failed += not ask()
            times.append(time.monotonic() - started)
    return times, failed


@contextmanager
def _asking(target: Target, way: str) -> Iterator[Callable[[], bool]]:
    """A function that asks once, over one connection, and returns whether the answer was as expected."""
    rows = ROWS // _FEWER
    with ExitStack() as stack:
        if way == GRPC:
            address = f"{target.host}:{target.grpc_port}"
            channel = stack.enter_context(grpc.insecure_channel(address, OWN_CONNECTION))
            call, data = channel.unary_unary(INFER), message(rows)

            def ask() -> bool:
                try:
                    call(data, metadata=metadata(target.key), timeout=CALL_SECONDS)
                except grpc.RpcError:
                    return False
                return True
        else:
            connection = stack.enter_context(closing(Connection(target.port, CALL_SECONDS)))
            request = request_bytes(Crowd(target), way, target.key, rows)

            def ask() -> bool:
                connection.send(request)
                return connection.receive() == _EXPECTED.get(way, 200)

        yield ask


@contextmanager
def service() -> Iterator[tuple[Target, list[str]]]:
    """A service with a model of each tenant: what the other tenant asks, and the keys of the crowd."""
    port, keys, other = free_port(), list[str](), list[str]()

    def prepare(store: Store) -> None:
        crowd_store = store.of_tenant("crowd")
        for each in (store, crowd_store):
            _publish(each)
        other.append(create_key(store, "other", {"train"})[1])
        keys.extend(create_key(crowd_store, f"crowd {number}", {"train"})[1] for number in range(KEYS))

    settings = {"STMS_GRPC_PORT": str(port), "STMS_LOG_LEVEL": "WARNING", "OPENBLAS_NUM_THREADS": "1"}
    with Deployment(api=1, prepare=prepare, settings=settings) as running:
        target = Target("127.0.0.1", running.port, other[0], MODEL, COLUMNS, "", "", grpc_port=port)
        yield target, keys


def _publish(store: Store) -> None:
    """A model whose rows take a thread some time."""
    random = np.random.default_rng(0)
    basis = FourierBasis(random.standard_normal((_FEATURES, COLUMNS)), random.standard_normal(_FEATURES))
    students = {
        label: PackedStudent(
            map=basis,
            form=LinearForm(random.standard_normal(_FEATURES), 0.0, np.zeros(_FEATURES), 0.0),
            threshold=0.0,
            label=label,
        )
        for label in _CLASSES
    }
    weights = random.standard_normal((len(_CLASSES), _FEATURES))
    publish(store, MODEL, students, PackedTeacher(basis, weights, np.zeros(len(_CLASSES)), _CLASSES))


if __name__ == "__main__":
    sys.exit(main())
