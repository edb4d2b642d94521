"""Evaluation of inference requests, and encoding of their outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.domain.errors import InvalidRequest
from app.serving.decision import Decisions, decide
from app.serving.inputs import Inputs
from app.serving.open_inference.requests import DEFAULT_OUTPUTS, ROWS, Inference, RequestedOutput
from app.serving.open_inference.tensors import Array, datatype_of, to_bytes
from app.serving.record_decisions import decide_records
from app.serving.servable import ServableStudent
from app.serving.work import check_work
from core.data.validation import value_fault
from core.errors import InvalidProblem

Outputs = dict[str, Array]
Rows = NDArray[np.intp] | slice


def answer(
    inference: Inference, students: Mapping[str, ServableStudent], max_work: int
) -> tuple[Outputs, list[RequestedOutput]]:
    """The values of all requested outputs, each (n,), and the list of these outputs.

    students: of the distinct classes of the request. max_work: multiply-adds of a request with several rows.
    Raises InvalidRequest, TooLarge, and Unprocessable for names that are not those of the columns.
    """
    source = inference.source
    table = inference.rows
    if source is None:
        table = _in_order(inference, next(iter(students.values())).inputs)
    requested_outputs = _requested_outputs(inference, students)
    names = [requested.name for requested in requested_outputs]
    explain = "gate" in names or "rejection" in names
    per_row = max(served.explained_work if explain else served.work for served in students.values())
    check_work(len(inference.rows), per_row, max_work)
    outputs: Outputs = {}
    for label, rows in _groups(inference):
        served = students[label]
        if source is None:
            decisions = _decide(served, table, rows, explain=explain)
        else:
            some = None if isinstance(rows, slice) else rows.tolist()
            [decisions] = decide_records([served], source, explain=explain, rows=some).of_students
        for name in names:
            values = _output(name, decisions, served.student.threshold)
            if name not in outputs:
                outputs[name] = np.empty(len(inference.rows), values.dtype)
            outputs[name][rows] = values
    return outputs, requested_outputs


def _in_order(inference: Inference, inputs: Inputs) -> Array:
    """The rows with their columns in the order of the model."""
    if inference.columns is None:
        return inference.rows
    for name in inference.texts:
        if name != inputs.label:
            message = f"Input {name!r:.100} holds BYTES where numbers are needed."
            raise InvalidRequest(message, code="bad_tensor")
    return inference.rows[:, inputs.order(inference.columns, "inputs")]


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


def _groups(inference: Inference) -> list[tuple[str, Rows]]:
    """Each class with the indices of its rows."""
    if len(inference.distinct) == 1:
        return [(inference.labels[0], slice(0, len(inference.rows)))]
    rows: dict[str, list[int]] = {label: [] for label in inference.distinct}
    for i, label in enumerate(inference.labels):
        rows[label].append(i)
    return [(label, np.array(places)) for label, places in rows.items()]


def _decide(served: ServableStudent, table: Array, rows: Rows, *, explain: bool) -> Decisions:
    expected = served.student.map.n_columns
    if table.shape[1] != expected:
        message = f"The rows have {table.shape[1]} columns; the model's have {expected}."
        raise InvalidRequest(message, code="wrong_columns")
    try:
        return decide(served.student, table[rows], explain=explain)
    except InvalidProblem as error:
        fault = error.faults[0]
        place = fault.row or 0
        row = place if isinstance(rows, slice) else int(rows[place])
        message = f"Row {row} (counted from 0) has values so large that no finite score exists."
        if fault.column is not None:
            message = value_fault(
                float(table[row, fault.column]), ROWS, row, fault.column, served.inputs.names
            ).message
        raise InvalidRequest(message, code=fault.code) from error


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
