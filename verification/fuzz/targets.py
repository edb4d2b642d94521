"""What is fuzzed: for each parser of bytes a function that calls it, and small valid inputs to start from.

A parser may raise only its documented errors; `ALLOWED` lists them.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import ipc, parquet
from safetensors.numpy import save

from app.api.multipart import FormReader
from app.domain.entities import Json, ModelVersion
from app.domain.errors import ServiceError
from app.domain.file_formats import FileFormat
from app.encoders import features, pixels
from app.encoders.checks import check_picture
from app.encoders.faults import PictureFault
from app.http.types import Body
from app.ingest import dataset_format, formats, linear_head
from app.ingest.raw import DatasetLimits
from app.ingest.validate import summarise, validate
from app.serving import row_decoder
from app.serving.columns.encoded import Encoded
from app.serving.columns.faults import example_of
from app.serving.columns.of_version import columns_of as columns_of_version
from app.serving.columns.reading import Records
from app.serving.columns.tally import SAMPLED, InputTally
from app.serving.open_inference.paths import parse_path
from app.serving.open_inference.requests import parse_inference
from app.serving.query.negotiation import OF_CLASSES, OF_ONE_CLASS, negotiate
from app.serving.query.paths import parse_query_path
from app.serving.query.requests import parse_class, parse_classes
from app.serving.work import RequestLimits
from core.data.column_kinds import infer_schema
from core.data.dataset import validate_rows
from core.data.schema import Kind, KindSpec
from core.data.table import NumberCells, Table, TextCells, VectorCells
from core.encoding.fit import fit_encoder, fit_terms
from core.encoding.profile import fit_profile
from core.errors import InvalidPackage, InvalidProblem
from core.packed import LinearForm, PackedHead, PackedLabels, PackedStudent
from core.packed.codec import encode_front
from core.packed.encoder import Encoder
from core.packed.head import head_header, head_shapes
from core.packed.input_profile import InputProfile
from core.packed.maps import LinearBasis
from core.packed.single_text import SingleTexts
from core.packed.term_table import TermTable, term_entries
from core.packed.terms import FAMILIES
from core.packed.trees import TreesBasis
from tests.made_pictures import members, packed
from tests.pictures import good as good_pictures
from tests.reference.random_students import FORMS, MAPS, random_student
from verification.fuzz import known_heads as fuzz_known_heads
from verification.fuzz import relay as fuzz_relay
from verification.fuzz.costs import FACTOR, QUESTIONS, nanoseconds
from verification.fuzz.heads import HEADS, compare_heads

ALLOWED: Final = (ServiceError, InvalidProblem, InvalidPackage, PictureFault)
MAX_BYTES: Final = 8192
"""Longest input."""
_ROWS, _COLUMNS, _ARRAY_BYTES = 10_000, 2_000, 32 * 1024**2
_LIMITS: Final = RequestLimits(max_bytes=1024**2, max_rows=1000)
_PIXELS: Final = 4_000_000
_HEAD: Final = linear_head.HeadLimits(1000, 200, 1024**2)
_CSR: Final = ("X_data", "X_indices", "X_indptr", "X_shape")
_MEMBERS: Final = ("X", "y", "X_test", "y_test", "class_names", "feature_names", *_CSR)
_HEAD_MEMBERS: Final = ("weights", "labels", "bias", "threshold")
_MARK: Final = b"\x93NUMPY"
_LABELS: Final = PackedLabels.of(["a", "b", "犬"])
_INFERENCE: Final = (parse_path(b"/v2/models/m:a/infer"), parse_path(b"/v2/models/m/infer"))
_HEADERS: Final = (
    {},
    {b"content-encoding": b"gzip"},
    {b"content-type": b"application/x-npy"},
    {b"content-type": b"application/x-npy", b"content-encoding": b"deflate"},
    {b"content-type": b"application/octet-stream", b"x-tensor-dtype": b"float32", b"x-tensor-shape": b"2,2"},
)
_VERSION: Final = ModelVersion("m", 1, "", "", "", ("a", "b"), 2, "", {}, 0.0)
_NUMBERS: Final = tuple(
    columns_of_version(replace(_VERSION, metrics={"inputs": known}))
    for known in ({}, {"columns": ["a", "b"], "label_column": "kind"}, {"index_base": 1})
)


@dataclass(frozen=True, slots=True)
class Target:
    """run: calls the parser with an input, and a folder for files. seeds: valid inputs."""

    run: Callable[[bytes, Path], None]
    seeds: Callable[[], list[bytes]]


def _read(kind: FileFormat) -> Callable[[bytes, Path], None]:
    def run(data: bytes, folder: Path) -> None:
        path = folder / "input"
        path.write_bytes(data)
        formats.detect(path, declared=kind.value, filename=None)
        raw = formats.read(path, kind, DatasetLimits(_ROWS, _COLUMNS, _ARRAY_BYTES, folder), None)
        train, test = validate(raw)
        summarise(raw, train, test)
        for _ in dataset_format.encode(train, test):
            continue

    return run


def _packed(members: tuple[str, ...], run: Callable[[bytes, Path], None]) -> Callable[[bytes, Path], None]:
    """Pack .npy arrays into an archive, whose checksums a mutation of its bytes would not keep."""

    def pack(data: bytes, folder: Path) -> None:
        out = io.BytesIO()
        first, *rest = data.split(_MARK)
        with zipfile.ZipFile(out, "w") as archive:
            for position, content in enumerate(rest[: len(members)]):
                name = members[(first[position] if position < len(first) else position) % len(members)]
                archive.writestr(f"{name}.npy", _MARK + content)
        run(out.getvalue(), folder)

    return pack


def _read_head(data: bytes, folder: Path) -> None:
    path = folder / "input"
    path.write_bytes(data)
    with linear_head.head_file(path, _HEAD) as head:
        PackedLabels.of(head.labels)
        for _ in head.blocks():
            continue


def _read_package(data: bytes, _folder: Path) -> None:
    # A copy, because numbers must be aligned in memory.
    package = bytes(data[1:])
    if data[:1] == b"L":
        labels = PackedLabels.from_bytes(package)
        labels.find("a")
        list(labels[:10])
    else:
        PackedHead.from_bytes(package, _LABELS)


def _score_student(data: bytes, _folder: Path) -> None:
    student = PackedStudent.from_bytes(bytes(data), maps={_basis().digest: _basis()})
    if student.map.n_columns <= _COLUMNS:
        rows = np.linspace(-2.0, 2.0, 3 * student.map.n_columns).reshape(3, -1)
        scores, alone = student.scores(rows), np.array([student.score(row) for row in rows])
        # BLAS adds the products of a row alone in another order.
        if student.map.kind == "trees" and scores.tobytes() != alone.tobytes():
            raise ValueError(f"Rows alone have the scores {alone}, and {scores} in a table.")


@cache
def _usual_nanoseconds() -> Mapping[str, float]:
    """The median time of a counted multiply-add for each question."""
    rng = np.random.default_rng(0)
    students = [random_student(rng, kind, form, 3e5) for kind in MAPS for form in FORMS]
    return {
        name: float(np.median([nanoseconds(ask, student) for student in students]))
        for name, ask in QUESTIONS.items()
    }


def _cost(data: bytes, _folder: Path) -> None:
    """A random student answers every question in the time that is counted."""
    choices = np.frombuffer(data.ljust(4, b"\0"), np.uint8)
    kind, form = MAPS[choices[0] % len(MAPS)], FORMS[choices[1] % len(FORMS)]
    size = 3e5 * 3 ** (choices[2] / 255)
    student = random_student(np.random.default_rng(choices[3:]), kind, form, size)
    for name, ask in QUESTIONS.items():
        time = nanoseconds(ask, student)
        if time > FACTOR * _usual_nanoseconds()[name]:
            raise AssertionError(f"{name}: {time:.2g} ns for a multiply-add of a {form} student, {kind} map.")


def _query(data: bytes, _folder: Path) -> None:
    format_ = negotiate(_HEADERS[data[0] % len(_HEADERS)], b"")
    question = (parse_classes if data[0] & 64 else parse_class)(bytearray(data[1:]), format_, _LIMITS)
    rows = question.given.of(_NUMBERS[data[0] // 8 % len(_NUMBERS)], _LIMITS.max_rows)
    for _, table in rows.blocks():
        validate_rows(table, 2, field="rows")


def _address(data: bytes, _folder: Path) -> None:
    target, _, rest = data[1:].partition(b"\n")
    path, _, query = target.partition(b"?")
    parse_query_path(path) if data[0] & 1 else parse_path(path)
    headers = dict(line.split(b":", 1) for line in rest.splitlines() if b":" in line)
    negotiate(headers, query, OF_CLASSES if data[0] & 2 else OF_ONE_CLASS)


def _record(data: bytes, _folder: Path) -> None:
    """A body of records: they are read and encoded."""
    columns = _encoded()[data[0] % 2]
    parse = (parse_class, parse_classes)[data[0] // 2 % 2]
    rows = parse(bytearray(data[1:]), negotiate({}, b""), _LIMITS).given.of(columns, _LIMITS.max_rows)
    for _, table in rows.blocks():
        validate_rows(table, columns.records.encoder.layout.columns, field="rows")


def _encoder(data: bytes, _folder: Path) -> None:
    """The package of an encoder, and a record that it should take."""
    # A copy, because numbers must be aligned in memory.
    records = Records(Encoder.from_bytes(bytes(data)))
    record = {column.name: example_of(column) for column in records.rows.columns}
    values, faults = records.reader.read_cells(record, "record", None)
    if not faults:
        validate_rows(records.full_row(values)[np.newaxis], records.encoder.layout.columns, field="rows")
        records.note(values)


def _profile(data: bytes, _folder: Path) -> None:
    """The package of a profile, and the bins of a record."""
    rows = _encoded()[0].records.rows
    tally = InputTally(rows, InputProfile.from_bytes(data, rows.encoder))
    tally.add([[example_of(column), None] * SAMPLED for column in rows.columns])


def _named_inputs(data: bytes, _folder: Path) -> None:
    length, _, body = data[1:].partition(b"\n")
    inference = parse_inference(bytearray(body), length or None, _INFERENCE[0])
    for _ in inference.rows(_encoded()[data[0] % 2], 1000).blocks():
        pass


def _inference(data: bytes, _folder: Path) -> None:
    length, _, body = data[1:].partition(b"\n")
    content: Body = bytearray(body)
    inference = parse_inference(content, length or None, _INFERENCE[data[0] % 2])
    for _ in inference.rows(_NUMBERS[1], 1000).blocks():
        pass


def _form(data: bytes, _folder: Path) -> None:
    written = bytearray()
    form = FormReader(b"b", ("name", "format"), written.extend)
    half = len(data) // 2
    form.feed(data[:half])
    form.feed(data[half:])
    form.finish()


def _picture(data: bytes, _folder: Path) -> None:
    """The header of a picture, and its pixels if they are few: children have a second for many."""
    header = check_picture(data)
    if header.width * header.height * header.scans < _PIXELS:
        features.rnd(pixels.decode(data, features.RND_SIDE))


def _npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, np.asarray(array))
    return out.getvalue()


def _npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def _parquet(**options: Any) -> bytes:
    columns = {"a": [1.0, 2.0, 3.0, 4.0], "b": [1, 2, 3, 4], "label": ["x", "y", "x", "y"]}
    out = io.BytesIO()
    parquet.write_table(pa.table(columns), out, store_schema=False, **options)
    return out.getvalue()


def _arrow(make: Callable[..., Any]) -> bytes:
    columns = {
        "a": [1.0, None, 3.0, 4.0],
        "b": pa.array(["u", "v", None, "u"]).dictionary_encode(),
        "v": [[1.0, 2.0]] * 4,
        "label": ["x", "y", "x", "y"],
    }
    out, table = io.BytesIO(), pa.table(columns)
    with make(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


_X: Final = np.array([[0.0, 1.0], [1.0, 0.5], [2.0, 0.0], [3.0, 4.0]])
_Y: Final = np.array([0, 1, 0, 1])


def _npy_members() -> list[bytes]:
    x, y, names = _npy(_X), _npy(_Y), _npy(np.array(["a", "b"]))
    integers = [_npy(np.array(part, np.int64)) for part in ([0, 1, 0, 1], [0, 1, 2, 3, 4], [4, 2])]
    sparse = b"\6\7\10\11\1" + _npy(_X[:, 0]) + b"".join(integers) + y
    return [b"\0\1" + x + y, b"\0\1\2\3\4\5" + x + y + x + y + names + names, sparse]


def _heads() -> list[bytes]:
    arrays = {"weights": _X.astype(np.float32), "bias": np.zeros(4), "threshold": np.ones(4)}
    labels = np.frombuffer(b"a\0b\0c\0d\0", np.uint8).reshape(4, 2)
    return [
        save(arrays, {"labels": json.dumps(list("abcd"))}),
        save({**arrays, "labels": labels}),
        save({"weight": _X, "labels": np.arange(4)}),
    ]


def _packages() -> list[bytes]:
    weights = np.ones((3, 2), np.float32)
    shapes = head_shapes(3, 2, weights.dtype, False)
    front, places = encode_front(head_header("head"), shapes)
    arrays = {"weights": weights, "bias": np.zeros(3)}
    return [b"L" + _LABELS.to_bytes(), b"H" + front + b"".join(arrays[name].tobytes() for name in places)]


@cache
def _basis() -> TreesBasis:
    """A map of trees, which packages may name."""
    return TreesBasis(
        columns=2,
        sums=1,
        feature=np.array([0, 0, 1]),
        threshold=np.array([-1.0, 0.5, 0.0]),
        roots=np.array([0, 2, -1]),
        test=np.array([0, 2, 1]),
        children=np.array([[1, -1], [-2, -3], [-3, -1]]),
        share=np.array([0.5, 0.25, 0.75]),
        values=np.array([[0.0], [1.0], [-0.5]]),
        output=np.zeros(3, dtype=int),
        divisor=3.0,
    )


def _students() -> list[bytes]:
    """Students of trees: their nodes refer to each other, and to rows of other arrays."""
    one = np.ones(1)
    forms = (LinearForm(one, 0.0, one, 0.0), LinearForm(-one, 0.5, one, -1.0))
    packed = [PackedStudent(_basis(), form, 0.0, "a") for form in forms]
    packed.append(PackedStudent(_basis(), forms[0], 0.0, "a", shares_map=True))
    packed.append(PackedStudent(LinearBasis(2), LinearForm(np.ones(2), 0.0, np.ones(2), 0.0), 0.0, "a"))
    return [student.to_bytes() for student in packed]


def _queries() -> list[bytes]:
    texts = (
        {"x": [1, 2.5]},
        {"x": {"indices": [0, 1], "values": [1, 2]}},
        {"rows": [[1, 2], {"indices": [1], "values": [3]}], "explain": True},
        {"x": [1, 2], "classes": ["a", "b"]},
        {"x": {"b": 1, "kind": 2, "a": 2.5}},
        {"rows": [{"a": 1, "b": 2}], "explain": True},
        {"columns": ["b", "a"], "rows": [[1, 2]]},
    )
    bodies = [json.dumps(text).encode() for text in texts]
    gzip = zlib.compressobj(wbits=31)
    packed = gzip.compress(bodies[0]) + gzip.flush()
    tensor = _X[:2].astype(np.float32).tobytes()
    return [
        *(b"\0" + body for body in bodies[:3]),
        b"A" + bodies[3],
        *(b"\x0a" + body for body in bodies[4:]),
        b"\1" + packed,
        b"\2" + _npy(_X),
        b"\3" + zlib.compress(_npy(_X)),
        b"\4" + tensor,
    ]


_WORDS: Final = ("my card", "my lost card", "a card")


@cache
def _table() -> Table:
    """Columns of every kind."""
    days = ["2020-01-02", "2021-03-04T05:06Z", "2020-05-06"]
    number, job = NumberCells(np.array([1.0, 2.0, np.nan] * 8)), TextCells.of(["a", "b", None] * 8)
    member = NumberCells(np.array([0.0, 1.0, 1.0] * 8), is_truth=True)
    place = VectorCells(np.ones((24, 2)))
    cells = (number, member, job, TextCells.of(days * 8), TextCells.of(_WORDS * 8), place)
    return Table(tuple(_RECORD), cells)


@cache
def _encoded() -> tuple[Encoded, Encoded]:
    """Of columns of every kind, and of one column of texts."""
    table = _table()
    schema = infer_schema(table, {"note": KindSpec(Kind.TEXT)})
    texts = Table(("note",), (TextCells.of(_WORDS * 8),))
    of_text = fit_encoder(texts, infer_schema(texts, {"note": KindSpec(Kind.TEXT)}))
    of_table = fit_encoder(table, schema, None, ["kind"])
    return Encoded(_VERSION, None, of_table), Encoded(_VERSION, None, of_text)


_RECORD: Final[Json] = {
    "age": 1.5,
    "member": True,
    "job": "a",
    "since": "2020-01-02",
    "note": "my card",
    "place": [1, 2],
}


def _row_lists(data: bytes, _folder: Path) -> None:
    """Compiled code must give what Python gives."""
    choice, text = data[0] if data else 0, data[1:]
    n, start = choice % 8 + 1, choice // 8
    if row_decoder.decode_list(text, start, n) != row_decoder.decode_list_in_python(text, start, n):
        raise AssertionError("The lists differ.")
    for body in (text, b'{"x":' + text + b"}"):
        if row_decoder.decode_row(body, n) != row_decoder.decode_row_in_python(body, n):
            raise AssertionError("The rows differ.")


@cache
def _tables() -> tuple[Sequence[TermTable], SingleTexts]:
    """The known terms of a column of texts, of all families, and what finds them."""
    known = fit_terms(TextCells.of(_WORDS * 8), FAMILIES)
    return known, SingleTexts(known)


def _text_terms(data: bytes, _folder: Path) -> None:
    """Compiled code must give what NumPy gives for many texts."""
    text = data.decode("utf-8", "surrogateescape")
    known, texts = _tables()
    found, (_, *expected) = texts.find(text), term_entries(known, [text])
    if [part.tobytes() for part in found] != [part.tobytes() for part in expected]:
        raise AssertionError("The terms differ.")


def _record_bodies() -> list[bytes]:
    lists = {name: [value, value] for name, value in _RECORD.items()}
    bodies = (
        {"record": _RECORD},
        {"record": _RECORD | {"kind": {"a": [1]}}, "explain": True},
        {"records": [_RECORD, {**_RECORD, "age": None}]},
        {"columns": lists},
        {"columns": lists, "classes": ["a"]},
    )
    texts = ({"text": "my card"}, {"texts": ["my", ""]}, {"record": {"note": "card"}})
    return [
        *(b"\0" + json.dumps(body).encode() for body in bodies[:4]),
        b"\2" + json.dumps(bodies[4]).encode(),
        *(b"\1" + json.dumps(body).encode() for body in texts),
    ]


def _record_inputs() -> list[bytes]:
    kinds = {bool: "BOOL", float: "FP32", str: "BYTES", list: "FP64"}
    inputs = [
        {
            "name": name,
            "datatype": kinds[type(value)],
            "shape": [2, 2] if isinstance(value, list) else [2],
            "data": [value, value] if name != "age" else [value, None],
        }
        for name, value in _RECORD.items()
    ]
    raw = b"\2\0\0\0my\1\0\0\0a"
    note = {"name": "note", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": len(raw)}}
    binary = json.dumps({"inputs": [note]}).encode()
    return [b"0\n" + json.dumps({"inputs": inputs}).encode(), b"1%d\n" % len(binary) + binary + raw]


def _inferences() -> list[bytes]:
    numbers = {"name": "rows", "shape": [1, 2], "datatype": "FP64"}
    target = {"name": "class", "shape": [1], "datatype": "BYTES", "data": ["a"]}
    plain = {"id": "1", "inputs": [{**numbers, "data": [1, 2]}], "outputs": [{"name": "score"}]}
    nested = {"inputs": [{**numbers, "datatype": "INT32", "data": [[1, 2]]}, target]}
    column = {"shape": [2, 1], "datatype": "INT64", "data": [1, 2]}
    named = {"inputs": [{"name": name, **column} for name in ("b", "a")]}
    binary = json.dumps({"inputs": [{**numbers, "parameters": {"binary_data_size": 16}}]}).encode()
    return [
        b"0\n" + json.dumps(plain).encode(),
        b"1\n" + json.dumps(nested).encode(),
        b"0\n" + json.dumps(named).encode(),
        b"0%d\n" % len(binary) + binary + _X[0].tobytes(),
        b"00\n" + _X.tobytes(),
    ]


_ROW_LISTS: Final = (
    b"\2[0.1, -2, 3e-5]",
    b"\1[ 123456789012345678 ,0.12345678901234567890123]",
    b'\11{"x": [1, 2.5]}',
)
_CSVS: Final = (
    b"a,b,label\n1,2,x\n3,4,y\n5,6,x\n7,8,y\n",
    b'1;"2";"x y"\r\n3;4;y\r\n5;6;"x y"\r\n7;8e-3;y\r\n',
    b"\xef\xbb\xbfa\tlabel\n1\t0\n2\t1\n3\t0\n4\t1\n",
    (
        b'size,hue,note,seen,label\n1.5,red,"a, b",2024-05-06,x\n?,blue,"c\nd",,y\n'
        b"007,NA,e,2024-01-01,x\n,,,,y\n"
    ),
)
_JSON_LINES: Final = (
    b'{"a": 1, "b": "red", "label": "x"}\n{"a": null, "b": "x y", "label": "y"}\n' * 2,
    b'{"v": [1, 2.5], "t": true, "label": 0}\n\n{"v": [3, 4], "label": 1}\n' * 2,
)
_ARFF: Final = (
    b"% c\n@relation r\n@attribute a real\n@attribute 'b c' {x,'y z'}\n@attribute d date yyyy-MM-dd\n"
    b"@attribute class {p,q}\n@data\n1,x,2024-05-06,p\n?,'y z',?,q\n2,x,2024-05-07,p\n3,?,?,q\n"
)
_SVMLIGHTS: Final = (b"1 1:2 3:4.5 # c\n-1 2:1e3\n1 1:1\n-1 3:1\n", b"# x\na 0:1 7:2\nb 1:1\na 2:1\nb 0:3\n")
_ADDRESSES: Final = (
    b"1/v1/models/m/classes/a%20b:query?explain=true\ncontent-type: application/json\naccept: */*\n",
    b"0/v2/models/m:a/versions/2/infer\ncontent-type:application/octet-stream\nx-tensor-shape:2, 3\n",
    b"3/v1/models/m:query?class=%C3%A9\ncontent-encoding:gzip\nx-tensor-dtype:float32\n",
)
_FORM: Final = (
    b'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\ntext\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\nContent-Type: text/csv\r\n\r\n'
    b"1,2,x\n\r\n--b--\r\n"
)
_read_npz: Final = _read(FileFormat.NPZ)
_PICTURES: Final = b"file_name,label\ncross/000.jpeg,a\ncross/001.jpeg,a\ndisc/000.jpeg,b\ndisc/001.jpeg,b\n"

TARGETS: Final[Mapping[str, Target]] = {
    "request_head": Target(compare_heads, lambda: list(HEADS)),
    "known_heads": Target(fuzz_known_heads.compare_connections, fuzz_known_heads.seeds),
    "relay_response": Target(fuzz_relay.read_response, fuzz_relay.response_seeds),
    "relay_requests": Target(fuzz_relay.relay_requests, fuzz_relay.request_seeds),
    "address": Target(_address, lambda: list(_ADDRESSES)),
    "query": Target(_query, _queries),
    "inference": Target(_inference, _inferences),
    "row_lists": Target(_row_lists, lambda: list(_ROW_LISTS)),
    "text_terms": Target(_text_terms, lambda: [text.encode() for text in _WORDS]),
    "record": Target(_record, _record_bodies),
    "named_inputs": Target(_named_inputs, _record_inputs),
    "profile": Target(_profile, lambda: [fit_profile(_table(), _encoded()[0].records.encoder).to_bytes()]),
    "encoder": Target(_encoder, lambda: [columns.records.encoder.to_bytes() for columns in _encoded()]),
    "form": Target(_form, lambda: [_FORM]),
    "picture": Target(_picture, lambda: list(good_pictures().values())),
    "npz": Target(_read_npz, lambda: [_npz(X=_X, y=_Y), _npz(X=_X, y=_Y, class_names=["a", "b"])]),
    "zip": Target(
        _read(FileFormat.ZIP), lambda: [packed(members(2)), packed({**members(2), "metadata.csv": _PICTURES})]
    ),
    "npz_arrays": Target(_packed(_MEMBERS, _read_npz), _npy_members),
    "npy": Target(
        _read(FileFormat.NPY), lambda: [_npy(np.c_[_X, _Y]), _npy(np.asfortranarray(np.c_[_X, _Y]))]
    ),
    "csv": Target(_read(FileFormat.CSV), lambda: list(_CSVS)),
    "svmlight": Target(_read(FileFormat.SVMLIGHT), lambda: list(_SVMLIGHTS)),
    "parquet": Target(
        _read(FileFormat.PARQUET),
        lambda: [_parquet(), _parquet(compression="none", use_dictionary=False), _parquet(version="1.0")],
    ),
    "jsonl": Target(_read(FileFormat.JSONL), lambda: list(_JSON_LINES)),
    "arff": Target(_read(FileFormat.ARFF), lambda: [_ARFF]),
    "arrow": Target(_read(FileFormat.ARROW), lambda: [_arrow(ipc.new_file), _arrow(ipc.new_stream)]),
    "safetensors": Target(
        _read(FileFormat.SAFETENSORS),
        lambda: [save({"X": _X, "y": _Y}), save({"X": _X, "y": _Y}, {"class_names": '["a", "b"]'})],
    ),
    "safetensors_head": Target(_read_head, _heads),
    "npz_head": Target(
        _packed(_HEAD_MEMBERS, _read_head),
        lambda: [
            b"\0\1\2\3" + _npy(_X.astype("f4")) + _npy(list("abcd")) + _npy(np.zeros(4)) + _npy(np.zeros(4)),
            b"\0\1" + _npy(_X) + _npy(np.array([b"a", b"b", b"c", b"d"])),
        ],
    ),
    "package": Target(_read_package, _packages),
    "student": Target(_score_student, _students),
    "cost": Target(
        _cost, lambda: [bytes([kind, form, 99, 1]) for kind in range(len(MAPS)) for form in range(3)]
    ),
}
