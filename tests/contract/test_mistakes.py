"""Every cell of the table of mistakes and ways of asking, asked of one server in this process."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.http.problem import Problem
from app.services.keys import create_key
from app.serving.pipeline import QueryPipeline
from app.settings import Settings
from app.store.engine import open_engine
from app.store.unit_of_work import Store
from core.data.column_kinds import infer_schema
from core.data.table import NumberCells, Table, TextCells
from core.encoding.fit import fit_encoder
from core.packed.encoder import Encoder
from stms_client.errors import InvalidInput
from stms_client.evaluator import Evaluator
from stms_client.results import Package
from tests.app.serving.open_inference.conftest import plain_client
from tests.app.serving.open_inference.test_grpc import Caller, message_classes, trailing
from tests.contract import mistakes as table
from tests.contract.mistakes import MISTAKES, NAMES, Mistake
from tests.system.published import linear_student, linear_teacher, publish

STATUS_OF_CALL = {400: "INVALID_ARGUMENT", 413: "RESOURCE_EXHAUSTED"}
"""Of gRPC by that of HTTP."""


def encoder(*, with_note: bool) -> Encoder:
    """Of three columns of numbers that each row of training had, and of one of texts that it had not."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {name: NumberCells(rng.normal(size=60)) for name in NAMES}
    if with_note:
        columns["note"] = TextCells.of([None if k % 3 == 0 else "ab"[k % 2] for k in range(60)])
    known = Table(tuple(columns), tuple(columns.values()))
    return fit_encoder(known, infer_schema(known), None, ignored=["kind"], answers_gaps=False)


def prepare(store: Store) -> dict[str, Encoder]:
    """Publish the versions; returns the encoders."""
    encoders = {
        table.LISTS: encoder(with_note=False),
        table.RECORDS: encoder(with_note=True),
    }
    for model in table.VERSIONS:
        known = encoders.get(model)
        weights = np.ones((2, 3 if known is None else known.layout.columns))
        students = {
            label: linear_student(label, row) for label, row in zip(("box", "bag"), weights, strict=True)
        }
        inputs = {"columns": list(NAMES), "label_column": "kind"} if model == table.NUMBERS else None
        publish(store, model, students, linear_teacher(["box", "bag"], weights), inputs=inputs, encoder=known)
    return encoders


class Asker:
    """Asks in each way. problems: those that the server has found since the last question."""

    def __init__(self, caller: Caller, encoders: dict[str, Encoder]) -> None:
        self._caller, self._encoders = caller, encoders
        self.problems: list[Problem] = []

    def ask(self, mistake: Mistake, way: str, version: str) -> tuple[Any, Problem | None]:
        """The status of the answer, and the problem. Of local evaluation the status is None."""
        self.problems.clear()
        if way == table.LOCAL:
            return None, self._ask_locally(mistake, version)
        if way in (table.GRPC, table.GRPC_TYPED, table.GRPC_TABLE):
            error = self._caller.refused("ModelInfer", self._message(mistake, way, version))
            assert trailing(error)["stms-code"] == self.problems[-1].code
            return error.code().name, self.problems[-1]
        path, body, headers = self._request(mistake, way, version)
        own = {"authorization": f"Bearer {self._caller.key}"}
        response = self._caller.client.post(path, content=body, headers=headers | own)
        problem = self.problems[-1] if self.problems else None
        if problem is None and response.status_code >= 400:
            # Of the teacher, whose errors take another way.
            document = response.json()
            problem = Problem(response.status_code, document["code"], document["detail"])
        return response.status_code, problem

    def _ask_locally(self, mistake: Mistake, version: str) -> Problem | None:
        known = self._encoders[version]
        student = linear_student("box", np.ones(known.layout.columns)).to_bytes()
        packed = known.to_bytes()
        tag = f'"1-{hashlib.sha256(student).hexdigest()}"'
        package = Package(student, tag, version, 1, hashlib.sha256(packed).hexdigest(), None)
        record = {name: json.loads(text) for name, text in mistake.pairs}
        try:
            Evaluator({"box": package}, packed).decision("box", record, None)
        except InvalidInput as error:
            return Problem(400, error.code, str(error))
        return None

    def _request(self, mistake: Mistake, way: str, version: str) -> tuple[str, bytes, dict[str, str]]:
        one, several = f"/v1/models/{version}/classes/box:query", f"/v1/models/{version}:query"
        infer = f"/v2/models/{version}:box/infer"
        path = {table.PREDICTED: f"/v1/models/{version}:predict", table.CLASSES: several}.get(way, one)
        path = infer if way in (table.V2, table.V2_BINARY, table.V2_TABLE) else path
        body = mistake.bodies.get(way)
        if body is not None:
            return path, body.encode(), {}
        if way in table.IN_ORDER:
            return path, *self._in_order(mistake, way)
        if way in table.BY_INPUTS:
            return path, *inputs_of(mistake, way)
        row = "{" + ", ".join(f'"{name}": {value}' for name, value in mistake.pairs) + "}"
        good = "{" + ", ".join(f'"{name}": {value}' for name, value in table.GOOD) + "}"
        lists = ", ".join(f'"{name}": [{good_value(name)}, {value}]' for name, value in mistake.pairs)
        text = {
            table.RECORD: f'{{"record": {row}}}',
            table.PREDICTED: f'{{"record": {row}}}',
            table.MANY: f'{{"records": [{good}, {row}]}}',
            table.CLASSES: f'{{"classes": ["bag", "box"], "records": [{good}, {row}]}}',
            table.NAMED_X: f'{{"x": {row}}}',
            table.NAMED_ROWS: f'{{"rows": [{good}, {row}]}}',
            table.COLUMNS: f'{{"columns": {{{lists}}}}}',
        }[way]
        return path, text.encode(), {}

    def _in_order(self, mistake: Mistake, way: str) -> tuple[bytes, dict[str, str]]:
        values = ", ".join(mistake.values)
        if way == table.LIST:
            return f'{{"x": [{values}]}}'.encode(), {}
        if way == table.LISTED:
            good = "[1, 2, 3], " if mistake.code not in ("wrong_columns", "needs_record") else ""
            return f'{{"rows": [{good}[{values}]]}}'.encode(), {}
        if way == table.V2_TABLE:
            shape = f'"shape": [1, {len(mistake.values)}], "datatype": "FP64"'
            return f'{{"inputs": [{{"name": "x", {shape}, "data": [{values}]}}]}}'.encode(), {}
        row = np.array([[json.loads(value) for value in mistake.values]])
        if way == table.TENSOR:
            shape = ",".join(map(str, row.shape))
            headers = {"x-tensor-shape": shape, "x-tensor-dtype": "float64"}
            return row.tobytes(), {"content-type": "application/octet-stream", **headers}
        out = io.BytesIO()
        np.save(out, row)
        return out.getvalue(), {"content-type": "application/x-npy"}

    def _message(self, mistake: Mistake, way: str, version: str) -> Any:
        request = message_classes()["ModelInferRequest"](model_name=f"{version}:box")
        if way == table.GRPC_TABLE:
            row = np.array([[json.loads(value) for value in mistake.values]])
            request.inputs.add(name="x", datatype="FP64", shape=list(row.shape))
            request.raw_input_contents.append(row.tobytes())
            return request
        for name, kind, values in tensors_of(mistake):
            tensor = request.inputs.add(name=name, datatype=kind, shape=[len(values), 1])
            if way == table.GRPC:
                request.raw_input_contents.append(as_bytes(kind, values))
            elif kind == "BYTES":
                tensor.contents.bytes_contents.extend(value.encode() for value in values)
            else:
                tensor.contents.fp64_contents.extend(values)
        return request


def good_value(name: str) -> str:
    return dict(table.GOOD).get(name, "1")


def tensors_of(mistake: Mistake) -> list[tuple[str, str, list[Any]]]:
    """Name, datatype and values of an input for each pair. A value of … stands for two."""
    tensors = []
    for name, text in mistake.pairs:
        values = json.loads(f"[{'1, 2' if text == '…' else text}]")
        kind = "BYTES" if any(isinstance(value, str) for value in values) else "FP64"
        tensors.append((name, kind, values))
    return tensors


def as_bytes(kind: str, values: list[Any]) -> bytes:
    if kind == "BYTES":
        return b"".join(len(text).to_bytes(4, "little") + text.encode() for text in values)
    return np.array(values, "<f8").tobytes()


def inputs_of(mistake: Mistake, way: str) -> tuple[bytes, dict[str, str]]:
    """A request of the Open Inference Protocol with one input a column."""
    given, rest = [], b""
    for name, kind, values in tensors_of(mistake):
        tensor: dict[str, Any] = {"name": name, "datatype": kind, "shape": [len(values), 1]}
        if way == table.V2_BINARY:
            data = as_bytes(kind, values)
            tensor["parameters"] = {"binary_data_size": len(data)}
            rest += data
        else:
            tensor["data"] = values
        given.append(tensor)
    head = json.dumps({"inputs": given}).encode()
    headers = {"inference-header-content-length": str(len(head))} if way == table.V2_BINARY else {}
    return head + rest, headers


@pytest.fixture(scope="module")
def asker(_sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    folder = tmp_path_factory.mktemp("mistakes")
    shutil.copy(_sqlite_template, folder / "stms.sqlite")
    settings = Settings(data_dir=folder, require_keys=True, max_query_rows=table.MAX_ROWS)
    store = Store(open_engine(settings.app_database_url))
    encoders = prepare(store)
    key = create_key(store, "tests", {"query"}, set())[1]
    store.dispose()
    client = plain_client(settings)
    caller = Caller(client, key)
    made = Asker(caller, encoders)
    record_error = QueryPipeline.record_error

    def remembering(self: QueryPipeline, exchange: Any, problem: Problem, **more: Any) -> None:
        made.problems.append(problem)
        record_error(self, exchange, problem, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QueryPipeline, "record_error", remembering)
        yield made
    caller.close()
    client.close()


CELLS = [
    pytest.param(mistake, way, version, id=f"{mistake.name} | {way} | {version}")
    for mistake in MISTAKES
    for way, version in mistake.cells()
    if way != table.LOCAL or version in (table.LISTS, table.RECORDS)
]


@pytest.mark.parametrize(("mistake", "way", "version"), CELLS)
def test_a_mistake_has_one_answer(asker: Asker, mistake: Mistake, way: str, version: str):
    status, problem = asker.ask(mistake, way, version)
    assert problem is not None, "it was answered"
    assert (problem.code, problem.status) == (mistake.code, mistake.status), problem.detail
    expected = STATUS_OF_CALL[mistake.status] if way.startswith("gRPC") else mistake.status
    assert status in (None, expected)
    if way in table.BY_NAMES and mistake.column != (None, None) and problem.faults:
        [fault] = problem.faults
        assert (fault.column, fault.name, fault.code) == (*mistake.column, mistake.code)
        assert fault.field.endswith(f".{mistake.column[1]}")
        if way != table.COLUMNS:
            assert fault.row == (1 if way in (table.MANY, table.NAMED_ROWS, table.CLASSES) else 0)


def test_good_rows_are_answered_in_every_way(asker: Asker):
    """Otherwise the table would hold of a server that refuses everything."""
    good = Mistake("none", "", pairs=table.GOOD, values=("1", "2", "3"))
    for version in table.NAMED:
        ways = [*table.BY_NAMES, table.V2, table.V2_BINARY]
        ways += () if version == table.RECORDS else (table.LIST, table.LISTED, table.TENSOR, table.V2_TABLE)
        for way in ways:
            assert asker.ask(good, way, version)[0] == 200, (way, version)


def test_the_table_names_each_mistake_once():
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES)
    assert all(
        way in (*table.BY_NAMES, *table.BY_INPUTS, *table.IN_ORDER, table.LOCAL)
        for mistake in MISTAKES
        for way, _ in mistake.cells()
    )
