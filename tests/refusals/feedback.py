"""Attacks on monitors of aliases and on feedback about answers."""

from __future__ import annotations

import json
from typing import Any

from tests.refusals.refusal import Act, Refusal, get, post, refusals

_MONITOR = "/v1/models/pets/aliases/latest/monitor"
_BAD = (422, "invalid_body")


def _monitor(settings: dict[str, Any], *, path: str = _MONITOR, key: str = "train") -> Act:
    return post(path, json.dumps(settings).encode(), method="PUT", key=key)


def monitors() -> list[Refusal]:
    """Settings of monitors that are none, and monitors where there may be none."""
    plain: dict[str, Any] = {"classes": {"*": {}}}
    return refusals(
        "monitors",
        ("of a server that keeps no samples", _monitor(plain), 409, "samples_off"),
        ("of somebody who may only query", _monitor(plain, key="query"), 403, "scope_required"),
        ("that keeps everything", _monitor(plain | {"store": "everything"}), *_BAD),
        ("with an action that there is not", _monitor(plain | {"on_alarm": "explode"}), *_BAD),
        ("of no class", _monitor({"classes": {}}), *_BAD),
        ("of 1001 classes", _monitor({"classes": {f"c{n}": {} for n in range(1001)}}), *_BAD),
        ("that asks about nothing", _monitor(plain | {"ask": {"yes": 0}}), *_BAD),
        ("that asks about more than all", _monitor(plain | {"ask": {"floor": 1.5}}), *_BAD),
        ("that asks about 10^30 a day", _monitor(plain | {"ask": {"per_day": 10**30}}), *_BAD),
        ("with a rate that is none", _monitor({"classes": {"*": {"min_recall": True}}}), *_BAD),
        ("with a rate that was praised", _monitor({"classes": {"*": {"min_recall": "promised"}}}), *_BAD),
        ("with a field that there is not", _monitor(plain | {"secret": 1}), *_BAD),
        ("with NUL in a class", _monitor({"classes": {"a\x00": {}}}), *_BAD),
        ("that is not there", get(_MONITOR), 404, "monitor_not_found"),
        ("of no alias", get("/v1/models/pets/aliases/none/monitor"), 404, "alias_not_found"),
        (
            "whose alarms are acknowledged by a reader",
            post(f"{_MONITOR}:acknowledge", b"{}"),
            403,
            "scope_required",
        ),
        (
            "whose performance is that of 10^9 days",
            get("/v1/models/pets/aliases/latest/performance?days=1000000000"),
            400,
            "invalid_parameter",
        ),
        (
            "whose answers are those of a class up",
            get("/v1/models/pets/versions/1/answers?class=..%2f..%2fetc"),
            404,
            "class_not_found",
        ),
    )


def feedback() -> list[Refusal]:
    """Bodies that are no feedback."""

    def give(*items: Any, key: str = "query") -> Act:
        return post("/v1/feedback", json.dumps({"feedback": items}).encode(), key=key)

    sample = {"sample": "smp_" + "0" * 24, "correct": True}
    return refusals(
        "feedback",
        ("without a key", give(sample, key=""), 401, "key_required"),
        ("on nothing", give(), *_BAD),
        ("on 1001 answers", give(*[sample] * 1001), *_BAD),
        ("on a path", give(sample | {"sample": "../../etc/passwd"}), *_BAD),
        ("on SQL", give(sample | {"sample": "smp_' OR 1=1 --"}), *_BAD),
        ("that says nothing", give({"sample": sample["sample"]}), *_BAD),
        ("that is a number", give(sample | {"correct": 1}), *_BAD),
        ("on a row below 0", give({"request_id": "a", "row": -1, "label": "cat", "correct": True}), *_BAD),
        ("on row 10^30", give({"request_id": "a", "row": 10**30, "label": "cat", "correct": True}), *_BAD),
        ("with NUL in the truth", give(sample | {"truth": "a\x00"}), *_BAD),
        ("with a truth of 401 letters", give(sample | {"truth": "a" * 401}), *_BAD),
        ("with a weight of its own", give(sample | {"q": 1e-9}), *_BAD),
        ("of two megabytes", post("/v1/feedback", b" " * 2_000_000), 413, "body_too_large"),
    )
