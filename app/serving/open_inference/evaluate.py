"""Evaluation of inference requests, and encoding of their outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from app.domain.errors import InvalidRequest
from app.serving.columns.base import Rows
from app.serving.decision import Decisions
from app.serving.open_inference.requests import DEFAULT_OUTPUTS, Inference, RequestedOutput
from app.serving.open_inference.tensors import Array, datatype_of, to_bytes
from app.serving.servable import ServableStudent
from app.serving.watch import Noted
from app.serving.work import RequestLimits, check_work

Outputs = dict[str, Array]


def answer(
    inference: Inference,
    rows: Rows,
    students: Mapping[str, ServableStudent],
    limits: RequestLimits,
    noted: Noted | None = None,
) -> tuple[Outputs, list[RequestedOutput]]:
    """The values of all requested outputs, each (n,), and the list of these outputs.

    rows: of the request. students: of its distinct classes. noted: receives the scores to note, if given.
    Raises
    InvalidRequest and TooLarge.
    """
    requested_outputs = _requested_outputs(inference, students)
    names = [requested.name for requested in requested_outputs]
    explain = "gate" in names or "rejection" in names
    per_row = max(served.explained_work if explain else served.work for served in students.values())
    check_work(len(rows), per_row, limits.max_work)
    outputs: Outputs = {}
    for label, some in _groups(inference):
        served = students[label]
        [decisions] = rows.decide([served], explain, limits, some).of_students
        if noted is not None and served.watch.is_on:
            noted.append((served.watch, decisions.scores, some))
        for name in names:
            values = _output(name, decisions, served.student.threshold)
            if name not in outputs:
                outputs[name] = np.empty(len(rows), values.dtype)
            outputs[name][slice(None) if some is None else some] = values
    return outputs, requested_outputs


def encode(
    inference: Inference,
    outputs: Outputs,
    requested_outputs: Sequence[RequestedOutput],
    model_fields: Mapping[str, str],
) -> tuple[bytes, int | None]:
    """The body of the answer, and the length of its JSON part if binary data follow it.

    model_fields: model_name and model_version.
    """
    described: list[dict[str, Any]] = []
    pieces: list[bytes] = []
    for requested in requested_outputs:
        array = outputs[requested.name]
        tensor: dict[str, Any] = {
            "name": requested.name,
            "datatype": datatype_of(array),
            "shape": list(array.shape),
        }
        if requested.binary:
            pieces.append(to_bytes(array))
            tensor["parameters"] = {"binary_data_size": len(pieces[-1])}
        else:
            tensor["data"] = array.tolist()
        described.append(tensor)
    document: dict[str, Any] = dict(model_fields)
    if inference.id is not None:
        document["id"] = inference.id
    document["outputs"] = described
    head = msgspec.json.encode(document)
    return (b"".join((head, *pieces)), len(head)) if pieces else (head, None)


def _requested_outputs(
    inference: Inference, students: Mapping[str, ServableStudent]
) -> list[RequestedOutput]:
    uncalibrated = [label for label, served in students.items() if served.student.calibration is None]
    if inference.requested_outputs is None:
        names = [name for name in DEFAULT_OUTPUTS if name != "probability" or not uncalibrated]
        return [RequestedOutput(name, inference.binary) for name in names]
    if uncalibrated and any(requested.name == "probability" for requested in inference.requested_outputs):
        message = f"The student of class {uncalibrated[0]!r:.100} is not calibrated: it has no probabilities."
        raise InvalidRequest(message, code="not_calibrated")
    return inference.requested_outputs


def _groups(inference: Inference) -> list[tuple[str, Sequence[int] | None]]:
    """Each class with the numbers of its rows; None of all."""
    if len(inference.distinct) == 1:
        return [(inference.labels[0], None)]
    rows: dict[str, list[int]] = {label: [] for label in inference.distinct}
    for i, label in enumerate(inference.labels):
        rows[label].append(i)
    return [*rows.items()]


def _output(name: str, decisions: Decisions, threshold: float) -> Array:
    values: Array | None
    if name == "threshold":
        values = np.full(len(decisions.scores), threshold)
    else:
        values = {
            "match": decisions.match,
            "score": decisions.scores,
            "probability": decisions.probabilities,
            "gate": decisions.gate,
            "rejection": decisions.rejection,
        }[name]
    assert values is not None  # noqa: S101 - `_requested_outputs` and `explain` ensure it
    return values
