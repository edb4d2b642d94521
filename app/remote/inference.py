"""Scores from a model server by the Open Inference Protocol, version 2, over HTTP with JSON.

Triton, KServe and MLServer speak it: ``GET /v2/models/m`` says what the model takes and gives, and
``POST /v2/models/m/infer`` asks it. Nothing in an answer is believed: sizes, datatype, shape and values are
checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import prod
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.domain.remote_teacher import RemoteScores
from app.remote.connection import RemoteConnection
from app.remote.errors import RemoteFailed, RemoteUnavailable

T = TypeVar("T")
TensorT = TypeVar("TensorT", bound="_Tensor")

Waiting: TypeAlias = Callable[[str], None]
"""Called before a pause with the reason for it."""

_RETRIED: Final = frozenset({408, 425, 429})
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_MAX_METADATA_BYTES: Final = 2**20
_BYTES_PER_SCORE: Final = 64
"""A float64 has at most 25 characters in JSON; servers may put white space around it."""
_MARKS_BESIDE_SCORES: Final = 16_384
"""Most objects, and most further elements of lists, that an answer may have beside its scores."""
_SCORES: Final = frozenset({"FP16", "FP32", "FP64"})
_ROWS: Final[dict[str, Any]] = {"FP32": np.float32, "FP64": np.float64}


class _Tensor(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]


class _Metadata(msgspec.Struct):
    inputs: list[_Tensor] = msgspec.field(default_factory=list)
    outputs: list[_Tensor] = msgspec.field(default_factory=list)


class _Output(_Tensor):
    data: msgspec.Raw


class _Outputs(msgspec.Struct):
    outputs: list[_Output]


class _Error(msgspec.Struct):
    error: str


@dataclass(frozen=True, slots=True)
class _Input:
    """The model's input: its datatype, and its shape without the rows; None if the server does not say."""

    name: str
    datatype: str
    shape: tuple[int, ...] | None


@dataclass(slots=True)
class RemoteModel:
    """One model of a server, which scores rows.

    width: columns of its scores. waits: called before each pause. pause: waits for seconds.
    """

    teacher: RemoteScores
    connection: RemoteConnection
    width: int
    waits: Waiting
    pause: Callable[[float], None] = time.sleep
    _input: _Input | None = field(default=None, init=False)
    _output: str | None = field(default=None, init=False)

    def scores(self, rows: NDArray[np.floating]) -> NDArray[np.float64]:
        """Scores (n, width) of rows (n, d), finite. Raises RemoteFailed."""
        if self._input is None:
            self._input = self._read_metadata(rows.shape[1])
        given = self._input
        shape = [len(rows), *(given.shape or rows.shape[1:])]
        values = rows.astype(_ROWS[given.datatype], copy=False).ravel().tolist()
        body: dict[str, object] = {
            "inputs": [{"name": given.name, "datatype": given.datatype, "shape": shape, "data": values}]
        }
        if self._output is not None:
            body["outputs"] = [{"name": self._output}]
        limit = _BYTES_PER_SCORE * len(rows) * self.width + _MAX_METADATA_BYTES
        answer = self._ask("POST", "/infer", msgspec.json.encode(body), limit)
        return self._read_scores(answer, len(rows))

    def _read_metadata(self, columns: int) -> _Input:
        found = _decoded(self._ask("GET", "", None, _MAX_METADATA_BYTES), _Metadata, "the model's metadata")
        output = _chosen(found.outputs, self.teacher.output_name, "output")
        self._output = self.teacher.output_name if output is None else output.name
        if output is not None:
            self._check_output(output, None)
        tensor = _chosen(found.inputs, self.teacher.input_name, "input")
        if tensor is None:
            return _Input(self.teacher.input_name or "input-0", "FP64", None)
        if tensor.datatype not in _ROWS:
            message = f"The input {tensor.name!r:.200} is {tensor.datatype!r:.20}; rows are FP32 or FP64."
            raise RemoteFailed(message, code="remote_wrong_datatype")
        inner = tuple(tensor.shape[1:])
        if not inner or inner == (-1,):
            return _Input(tensor.name, tensor.datatype, None)
        if min(inner) < 1 or prod(inner) != columns:
            message = (
                f"The input {tensor.name!r:.200} has shape {tensor.shape!s:.200}, which rows of {columns}"
                " columns do not fit."
            )
            raise RemoteFailed(message, code="remote_wrong_shape")
        return _Input(tensor.name, tensor.datatype, inner)

    def _read_scores(self, body: bytes, n: int) -> NDArray[np.float64]:
        _check_elements(body, n, self.width)
        output = _chosen(_decoded(body, _Outputs, "the answer").outputs, self._output, "output")
        if output is None:
            raise RemoteFailed("The remote teacher answers without outputs.", code="remote_bad_answer")
        self._check_output(output, n)
        expected = n * self.width
        # Flat or nested, numbers have commas between them; they are counted before they become objects.
        count = bytes(output.data).count(b",") + 1
        values = _numbers(output.data) if count <= expected else None
        if values is None or values.shape not in {(expected,), (n, self.width)}:
            count = count if values is None else values.size
            message = f"The remote teacher says shape {output.shape!s:.100} and sends {count} numbers."
            raise RemoteFailed(message, code="remote_wrong_shape")
        scores = values.reshape(n, self.width)
        if not np.isfinite(scores).all():
            message = "The remote teacher answers with scores that are not finite."
            raise RemoteFailed(message, code="remote_not_finite")
        return scores

    def _check_output(self, output: _Tensor, n: int | None) -> None:
        """n: rows that were asked for; None where the server only announces the output."""
        if output.datatype not in _SCORES:
            message = (
                f"The output {output.name!r:.200} is {output.datatype!r:.20}; scores are"
                f" {', '.join(sorted(_SCORES))}. Name another one in teacher.output_name."
            )
            raise RemoteFailed(message, code="remote_wrong_datatype")
        if n is None:
            fits = len(output.shape) < 2 or (len(output.shape) == 2 and output.shape[1] in {self.width, -1})
        else:
            fits = output.shape == [n, self.width]
        if not fits:
            rows = "rows" if n is None else str(n)
            message = (
                f"The output {output.name!r:.200} has shape {output.shape!s:.100}; scores of {rows} ×"
                f" {self.width} are needed, a column for each class."
            )
            raise RemoteFailed(message, code="remote_wrong_shape")

    def _ask(self, method: str, end: str, body: bytes | None, max_bytes: int) -> bytes:
        """The body of an answer with status 200, after as many repetitions as are allowed."""
        version = "" if self.teacher.version is None else f"/versions/{self.teacher.version}"
        path = f"/v2/models/{self.teacher.model}{version}{end}"
        for attempt in count(1):
            try:
                answer = self.connection.request(method, path, body, max_bytes)
                if answer.status == 200:
                    return answer.body
                problem = f"status {answer.status}{_error_text(answer.body)}"
                if answer.status < 500 and answer.status not in _RETRIED:
                    code = "remote_no_model" if answer.status == 404 else "remote_refused"
                    raise RemoteFailed(f"The remote teacher refuses {path}: {problem}.", code=code)
                raise RemoteUnavailable(problem, answer.wait)
            except RemoteUnavailable as fault:
                if attempt > self.teacher.retries:
                    message = f"The remote teacher gave no scores in {attempt} attempts. The last: {fault}."
                    raise RemoteFailed(message, code="remote_unavailable") from fault
                asked = min(_FIRST_PAUSE * 2.0 ** (attempt - 1), _LONGEST_PAUSE)
                seconds = asked if fault.wait is None else max(asked, fault.wait)
                self.waits(f"attempt {attempt} failed ({fault}); the next in {seconds:g} s")
                self.pause(seconds)
        raise AssertionError("the attempts never end without a result")


def _chosen(tensors: Sequence[TensorT], name: str | None, kind: str) -> TensorT | None:
    """The tensor of that name, or the only one; None if there are none. Raises RemoteFailed."""
    if name is None and len(tensors) <= 1:
        return next(iter(tensors), None)
    for tensor in tensors:
        if tensor.name == name:
            return tensor
    if not tensors:
        return None
    names = ", ".join(tensor.name for tensor in tensors)
    which = f"no {kind} {name!r:.200}" if name is not None else f"{len(tensors)} {kind}s"
    message = f"The remote teacher has {which}. Name one of these in teacher.{kind}_name: {names:.300}."
    raise RemoteFailed(message, code=f"remote_{kind}")


def _decoded(body: bytes, kind: type[T], what: str) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise RemoteFailed(
            f"The remote teacher: {what} cannot be read: {error}.", code="remote_bad_answer"
        ) from error


def _check_elements(body: bytes, n: int, width: int) -> None:
    """Raise RemoteFailed for an answer with more elements than scores (n, width) need.

    The elements are counted by their marks before they become objects, of which each takes many times its
    bytes. Twice as many as expected are allowed: a server may send another output as well.
    """
    for mark, most in ((b",", 2 * n * width), (b"[", 2 * n), (b"{", 0)):
        if body.count(mark) > most + _MARKS_BESIDE_SCORES:
            message = f"The remote teacher's answer has more elements than {n} × {width} scores need."
            raise RemoteFailed(message, code="remote_bad_answer")


def _numbers(data: msgspec.Raw) -> NDArray[np.float64]:
    """A list of numbers, or of rows of numbers of one length; texts, NaN and true are none."""
    problem = ""
    for kind in (list[float], list[list[float]]):
        try:
            return np.array(msgspec.json.decode(data, type=kind), dtype=np.float64)
        except ValueError as error:
            problem = str(error)
    message = f"The data of the remote teacher's answer are not numbers: {problem}."
    raise RemoteFailed(message, code="remote_bad_answer")


def _error_text(body: bytes) -> str:
    """What the server says is wrong, if it says so in the form of the protocol; at most 200 characters."""
    if len(body) > _MAX_METADATA_BYTES:
        return ""
    try:
        text = msgspec.json.decode(body, type=_Error).error
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        return ""
    shown = "".join(character if character.isprintable() else " " for character in text[:200])
    return f", {shown}"
