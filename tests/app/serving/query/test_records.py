"""Records: what is answered and what is refused, natively and as named inputs; the same bits in each form."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.errors import InvalidRequest, ServiceError, TooLarge
from app.http.problem import problem_of
from app.serving.open_inference.evaluate import answer as answer_inference
from app.serving.open_inference.paths import parse_path
from app.serving.open_inference.requests import parse_inference
from app.serving.query.evaluate import answer_class
from app.serving.query.negotiation import DEFAULT_FORMAT, OF_ONE_CLASS, negotiate
from app.serving.servable import ServableStudent
from app.serving.work import RequestLimits
from core.encoding.fit import matrix_of
from core.packed import SigmoidCalibration
from tests.app.serving.written_records import (
    RECORD,
    columns_of,
    encoder,
    numbers_encoder,
    people,
    records_of,
    refusing_encoder,
    served,
    text_encoder,
)

LIMITS = RequestLimits(max_bytes=1 << 24, max_rows=1000)
PEOPLE = served(encoder())
STUDENTS = {
    "linear": PEOPLE,
    "linear polytope": served(encoder(), faces=3),
    "rbf": served(encoder(), "rbf"),
    "rbf polytope": served(encoder(), "rbf", faces=3),
    "linear with words": served(encoder(with_note=True)),
    "rbf with words": served(encoder(with_note=True), "rbf"),
    "polytope with words": served(encoder(with_note=True), "rbf", faces=3),
    "calibrated": served(encoder(), calibration=SigmoidCalibration(2.0, 0.5)),
}
PATH = parse_path(b"/v2/models/people:a/infer")
FP = (int, float)


def ask(student: ServableStudent, body: bytes | Mapping[str, Any]) -> Any:
    """The answer to a native query."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return json.loads(answer_class(student, data, DEFAULT_FORMAT, LIMITS)[0])


def score(student: ServableStudent, record: Mapping[str, Any]) -> float:
    return float(ask(student, {"record": record})["score"])


def scores(student: ServableStudent, body: Mapping[str, Any]) -> list[float]:
    return [one["score"] for one in ask(student, body)["results"]]


def inputs_of(*records: Mapping[str, Any]) -> dict[str, Any]:
    """A request of the inference protocol with one input for each column."""
    inputs = []
    for name, cells in columns_of(*records).items():
        known = [cell for cell in cells if cell is not None]
        first = known[0] if known else 0.0
        datatype, shape = "BYTES", [len(cells)]
        if isinstance(first, bool):
            datatype = "BOOL"
        elif isinstance(first, FP):
            datatype = "FP64" if all(isinstance(cell, FP) for cell in known) else "BYTES"
        elif isinstance(first, list):
            datatype, shape = "FP64", [len(cells), len(first)]
        inputs.append({"name": name, "datatype": datatype, "shape": shape, "data": cells})
    return {"inputs": inputs}


def infer(student: ServableStudent, request: bytes | Mapping[str, Any]) -> list[float]:
    """The scores of a request of the inference protocol."""
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    parsed = parse_inference(body, None, PATH)
    rows = parsed.rows(student.columns, LIMITS.max_rows)
    outputs, _ = answer_inference(parsed, rows, {"a": student}, LIMITS)
    return list(map(float, outputs["score"]))


@dataclass(frozen=True)
class Case:
    """One row of the table. change: of the usual record; None removes nothing, `GONE` does.

    raw: JSON in place of the record. code, text: of the error, or None if it is answered. name: of the
    column. like: a change that has the same answer. of: the student. v2: whether the protocol can say it.
    """

    change: Mapping[str, Any] = field(default_factory=dict)
    code: str | None = None
    text: str = ""
    name: str | None = None
    raw: str | None = None
    like: Mapping[str, Any] | None = None
    of: Callable[[], ServableStudent] = lambda: PEOPLE
    v2: bool = True


GONE = object()
MISSING = "'hours' has no value, and had one in every training row."
TABLE = {
    "a required column is absent": Case({"hours": GONE}, "missing_value", MISSING, "hours"),
    "a required column is null": Case({"hours": None}, "missing_value", MISSING, "hours"),
    "a column with gaps is absent": Case({"age": GONE, "job": GONE}, like={"age": None, "job": None}),
    "a column with gaps is null": Case({"age": None}, like={"age": GONE}),
    "an unknown key": Case(
        {"hour": 3}, "unknown_column", "has no column 'hour'; did you mean 'hours'?", "hour"
    ),
    "a key like no other": Case(
        {"zzz": 3}, "unknown_column", "has no column 'zzz'; its columns are 'age', 'hours'", "zzz"
    ),
    "the label and unused columns": Case({"kind": "a", "id": 7}, like={}),
    "a text for a number": Case({"age": "39"}, "wrong_type", "'age' must be a number, not a text.", "age"),
    "true for a number": Case(
        {"age": True}, "wrong_type", "must be a number, not true or false", "age", v2=False
    ),
    "a number for a truth value": Case({"member": 2}, "wrong_type", "must be true or false", "member"),
    "a list for a category": Case(
        {"job": ["a"]}, "wrong_type", "must be a text or a number", "job", v2=False
    ),
    "an object for a number": Case({"age": {}}, "wrong_type", "not an object", "age", v2=False),
    "a vector of another length": Case(
        {"place": [1.0]}, "wrong_type", "a list of 2 numbers", "place", v2=False
    ),
    "a whole number": Case({"hours": 40}, like={"hours": 40.0}),
    "a category as a whole number": Case({"grade": 3}, like={"grade": "3"}),
    "a category as a float": Case({"grade": 3.0}, like={"grade": "3"}),
    "a category with blanks": Case({"job": " clerk "}, like={"job": "clerk"}),
    "NaN": Case(raw='{"age": NaN}', code="not_finite", text="'age' is NaN", name="age", v2=False),
    "Infinity": Case(raw='{"age": -Infinity}', code="not_finite", text="infinite", name="age", v2=False),
    "NaN for a category": Case(
        raw='{"job": NaN}', code="not_finite", text="'job' is NaN", name="job", v2=False
    ),
    "1e400": Case(raw='{"age": 1e400}', code="too_large", text="range of float64", name="age", v2=False),
    "a number that is too large": Case({"age": 1e101}, "too_large", "beyond ±1e+100", "age"),
    "an unseen category": Case({"job": "pilot"}, like={"job": "judge"}),
    "an unseen category without rare ones": Case({"grade": "9"}, like={"grade": "another"}),
    "an unseen category that is refused": Case(
        {"job": "pilot"}, "unknown_value", "'job' is 'pilot'", "job", of=lambda: served(refusing_encoder())
    ),
    "no such day": Case(
        {"since": "2024-02-30"},
        "bad_date",
        "is not a date like 2024-05-06 or 2024-05-06T07:08:09+02:00.",
        "since",
    ),
    "a day in another form": Case({"since": "03/04/24"}, "bad_date", "is not a date like", "since"),
    "a time without an offset": Case({"since": "2021-05-06T22:00"}, like={"since": "2021-05-06T22:00Z"}),
    "a time with an offset": Case({"since": "2021-05-06T22:00+02:00"}, like={"since": "2021-05-06T20:00Z"}),
    "an empty category": Case({"job": ""}, like={"job": None}),
    "a category like a gap of files": Case({"job": " ? "}, like={"job": None}),
    "an empty required category": Case({"grade": ""}, "missing_value", "'grade' has no value", "grade"),
    "a duplicate key": Case(
        raw='{"age": 1, "age": 39.5}',
        code="duplicate_key",
        text="has the key 'age' twice",
        name="age",
        v2=False,
    ),
}


def changed(change: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in (RECORD | change).items() if value is not GONE}


def refusal(work: Callable[[], object], code: str, text: str) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        work()
    assert caught.value.reason == code, caught.value.message
    assert text in caught.value.message
    problem_of(caught.value).body("id", "/")
    return caught.value


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE)
def test_the_table_of_answers(case: Case):
    student, record = case.of(), changed(case.change)
    if case.raw is not None:
        rest = {name: value for name, value in RECORD.items() if f'"{name}"' not in case.raw}
        body = f'{{"record": {case.raw[:-1]}, {json.dumps(rest)[1:]}}}'.encode()
    else:
        body = json.dumps({"record": record}).encode()
    if case.code is None:
        assert case.like is not None
        expected = score(student, changed(case.like))
        assert ask(student, body)["score"] == expected
        assert scores(student, {"records": [RECORD, record]})[1] == expected
        assert scores(student, {"columns": columns_of(record, record)})[1] == expected
        if case.v2:
            assert infer(student, inputs_of(record, record))[1] == expected
        return
    error = refusal(lambda: ask(student, body), case.code, case.text)
    assert error.message.startswith("record")
    fault = error.faults[0]
    assert (fault.field, fault.name) == (f"record.{case.name}", case.name)
    if case.raw is None:
        of_many = refusal(lambda: ask(student, {"records": [RECORD, record]}), case.code, case.text)
        assert (of_many.faults[0].row, of_many.faults[0].name) == (1, case.name)
        refusal(lambda: ask(student, {"columns": columns_of(record, record)}), case.code, case.text)
    if case.v2:
        refusal(lambda: infer(student, inputs_of(record, record)), case.code, case.text)


def test_keys_in_any_order_have_the_same_answer():
    names = list(RECORD)
    answers = set()
    for seed in range(10):
        random.Random(seed).shuffle(names)
        body = json.dumps({"record": {name: RECORD[name] for name in names}}).encode()
        answers.add(answer_class(PEOPLE, body, DEFAULT_FORMAT, LIMITS)[0])
    assert len(answers) == 1


@pytest.mark.parametrize("student", STUDENTS.values(), ids=STUDENTS)
def test_scores_are_those_of_the_encoded_rows(student: ServableStudent):
    records = records_of(student)
    with_note = "note" in records.encoder.names
    table = people(with_note=with_note)
    X = matrix_of(records.encoder.encode(table), records.encoder)
    dense = X if isinstance(X, np.ndarray) else X.toarray()
    rows = [table.record(i) for i in range(0, table.n, 7)]
    found = np.array(scores(student, {"records": rows}))
    np.testing.assert_allclose(found, student.student.scores(dense[::7]), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("student", STUDENTS.values(), ids=STUDENTS)
@pytest.mark.parametrize("explain", [False, True])
def test_one_record_has_the_same_bits_in_every_form(student: ServableStudent, explain: bool):
    records = records_of(student)
    table = people(with_note="note" in records.encoder.names)
    rows = [table.record(i) for i in range(40)]
    more = {"explain": True} if explain else {}
    single = [ask(student, {"record": row} | more) for row in rows]
    alone = [one["score"] for one in single]
    many = ask(student, {"records": rows} | more)["results"]
    by_columns = ask(student, {"columns": columns_of(*rows)} | more)["results"]
    assert [one["score"] for one in many] == alone
    assert many == by_columns
    assert infer(student, inputs_of(*rows)) == alone
    if explain:
        assert [one["gate"] for one in single] == [one["gate"] for one in many]
        assert single[0].keys() >= {"gate", "rejection", "outside", "unseen"}
        assert alone == [score(student, row) for row in rows]


VALUES = st.fixed_dictionaries(
    {
        "age": st.none() | st.floats(-1e6, 1e6) | st.integers(-100, 100),
        "hours": st.floats(-1e6, 1e6) | st.integers(-100, 100),
        "member": st.booleans(),
        "job": st.none() | st.sampled_from(["clerk", "cook", "judge", "pilot", "", "é", "e\u0301", 3, True]),
        "grade": st.sampled_from([1, 2.0, "3", 3, 3.0, "9", 2**60, 1e20]),
        "since": st.dates().map(str) | st.sampled_from(["2021-01-02T03:04:05+01:00", "2021-01-02 03:04"]),
        "place": st.lists(st.floats(-10, 10), min_size=2, max_size=2),
    }
)


@pytest.mark.long
@given(st.lists(VALUES, min_size=1, max_size=6), st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_record_has_the_same_bits_in_every_form(rows: list[dict[str, Any]], shuffled: Any, rbf: bool):
    student = STUDENTS["rbf" if rbf else "linear"]
    alone = [score(student, row) for row in rows]
    turned = []
    for row in rows:
        names = list(row)
        shuffled.shuffle(names)
        # An absent key is a gap.
        turned.append({name: row[name] for name in names if row[name] is not None or shuffled.random() < 0.5})
    assert scores(student, {"records": turned}) == alone
    assert scores(student, {"columns": columns_of(*rows)}) == alone
    same = {1: "1", 2.0: 2, 3: 3.0, "3": 3}
    respelled = [row | {"grade": same.get(row["grade"], row["grade"])} for row in rows]
    assert [score(student, row) for row in respelled] == alone


def test_numbers_in_order_are_records_where_each_column_needs_a_number():
    student = served(numbers_encoder())
    rows = [[0.5, -1.0], [3, 4]]
    records = [dict(zip("pq", row, strict=True)) for row in rows]
    expected = [score(student, record) for record in records]
    assert [ask(student, {"x": row})["score"] for row in rows] == expected
    assert scores(student, {"records": records}) == expected
    assert scores(student, {"rows": rows}) == pytest.approx(expected)
    assert ask(student, {"x": {"q": -1.0, "p": 0.5}})["score"] == expected[0]
    assert scores(student, {"rows": records}) == pytest.approx(expected)
    assert score(student, {"q": -1.0, "p": 0.5, "kind": "a"}) == expected[0]
    assert infer(student, {"inputs": [{"name": "x", "datatype": "FP64", "shape": [2, 2], "data": rows}]}) == (
        pytest.approx(expected)
    )
    assert infer(student, inputs_of(*records)) == expected
    tensor = np.array(rows[0]).tobytes()
    format_ = negotiate({b"content-type": b"application/octet-stream", b"x-tensor-shape": b"2",
                         b"x-tensor-dtype": b"float64"}, b"", OF_ONE_CLASS)  # fmt: skip
    body = answer_class(student, tensor, format_, LIMITS)[0]
    assert json.loads(body)["score"] == expected[0]


def test_numbers_in_order_are_refused_where_columns_have_gaps_or_texts():
    for form in ({"x": [1, 2]}, {"rows": [[1, 2]]}, {"columns": ["age"], "rows": [[1]]}):
        error = refusal(
            lambda form=form: ask(PEOPLE, form), "needs_record", "columns 'age', 'hours', 'member'"
        )
        assert '{"record": {"age": ' in error.message
    format_ = negotiate({b"content-type": b"application/octet-stream", b"x-tensor-shape": b"2",
                         b"x-tensor-dtype": b"float64"}, b"", OF_ONE_CLASS)  # fmt: skip
    refusal(lambda: answer_class(PEOPLE, bytes(16), format_, LIMITS), "needs_record", "'age'")
    one = {"inputs": [{"name": "x", "datatype": "FP64", "shape": [1, 2], "data": [1, 2]}]}
    refusal(lambda: infer(PEOPLE, one), "needs_record", "Each column is an input: 'age'")


def test_texts_of_models_of_texts():
    student = served(text_encoder())
    texts = ["my card is lost", "", "Ärger über nichts", "zz yy", "my 'card': \"lost\" {again}"]
    alone = [ask(student, {"text": text})["score"] for text in texts]
    assert scores(student, {"texts": texts}) == alone
    assert scores(student, {"records": [{"text": text} for text in texts]}) == alone
    assert scores(student, {"columns": {"text": texts}}) == alone
    assert infer(student, inputs_of(*({"text": text} for text in texts))) == alone
    assert alone[1] == alone[3] == pytest.approx(0.25)
    explained = ask(student, {"text": "my card zz", "explain": True})
    assert (explained["known_terms"], explained["cut"]) == ({"text": 2}, [])
    long = ask(student, {"text": "card " * 20_000, "explain": True})
    assert long["cut"] == ["text"]
    assert long["score"] == ask(student, {"text": ("card " * 20_000)[:65_536]})["score"]
    refusal(lambda: ask(student, {"text": 3}), "wrong_type", "'text' must be a text, not a number")
    refusal(lambda: ask(student, {"text": None}), "missing_value", "'text' has no value")
    refusal(lambda: ask(student, b'{"text": "a", "text": "b"}'), "duplicate_key", "twice")
    error = refusal(lambda: ask(student, {"rows": [[1]]}), "needs_record", '{"text": "some words"}')
    assert error.faults[0].field == "rows"


OTHERS = [
    {"instances": [[1]]},
    {"dataframe_split": {"columns": [], "data": []}},
    {"inputs": []},
    {"data": [[1]]},
    {"signature_name": "serving_default"},
]


@pytest.mark.parametrize("body", OTHERS, ids=lambda body: next(iter(body)))
def test_bodies_of_other_servers_are_shown_the_right_one(body: dict[str, Any]):
    error = refusal(lambda: ask(PEOPLE, body), "wrong_body", "only x, rows, record, records, columns")
    text = error.message.partition("For example: ")[2]
    shown = json.loads(text.replace(", …", ""))
    assert RECORD.keys() >= shown["record"].keys()
    rest = {name: value for name, value in RECORD.items() if name not in shown["record"]}
    assert ask(PEOPLE, {"record": shown["record"] | rest})["match"] in (True, False)


WRONG = {
    "two forms": (
        {"record": RECORD, "records": [RECORD]},
        "wrong_body",
        "in one of x, rows, record, records, columns",
    ),
    "no form": ({"explain": True}, "wrong_body", "This one has none of them"),
    "a text": ({"text": "a"}, "wrong_body", "whose only column is one of texts"),
    "a list": ([1], "wrong_body", "Expected `object`, got `array`"),
    "no rows": ({"records": []}, "empty", "records is empty"),
    "empty columns": ({"columns": columns_of(RECORD) | {"age": []}}, "wrong_length", "'hours' has 1 values"),
    "columns that are no lists": (
        {"columns": columns_of(RECORD) | {"age": 3}},
        "wrong_type",
        "must be a list",
    ),
    "names of columns": ({"columns": ["age"]}, "wrong_body", "must be an object of lists"),
    "a record that is a list": ({"record": [1]}, "wrong_type", "must be an object of values"),
    "a flag that is none": (
        {"record": RECORD, "explain": 3},
        "wrong_type",
        "explain: Expected",
    ),
}


@pytest.mark.parametrize(("body", "code", "text"), WRONG.values(), ids=WRONG)
def test_bodies_of_no_form(body: Any, code: str, text: str):
    refusal(lambda: ask(PEOPLE, json.dumps(body).encode()), code, text)


@pytest.mark.parametrize(
    "body", [b"", b" ", b"{", b'{"record": {"age": 1', b'{"record": "\xff"}', b"[" * 10_000]
)
def test_bodies_that_are_no_json(body: bytes):
    with pytest.raises(InvalidRequest):
        ask(PEOPLE, body)


def test_all_columns_at_fault_are_named_at_most_ten():
    error = refusal(lambda: ask(PEOPLE, {"record": {}}), "missing_value", MISSING)
    assert [fault.name for fault in error.faults] == ["hours", "member", "grade", "since", "place"]
    many = refusal(lambda: ask(PEOPLE, {"records": [{}] * 9}), "missing_value", "row 0")
    assert len(many.faults) == 10
    assert {fault.row for fault in many.faults} == {0, 1}


def test_duplicate_keys_are_found_beside_texts_with_colons_and_quotes():
    times = RECORD | {"since": "2021-05-06T07:08:09+02:00"}
    assert ask(PEOPLE, {"record": times})["score"] == score(PEOPLE, times)
    text = json.dumps(times)[:-1]
    for more in (', "job": "clerk"}', ', "since": "2021-05-06"}', ', "job": "a\\"b:c"}'):
        for body in (f'{{"record": {text}{more}}}', f'{{"records": [{json.dumps(RECORD)}, {text}{more}]}}'):
            refusal(lambda body=body: ask(PEOPLE, body.encode()), "duplicate_key", "twice")
    missing = json.dumps({name: value for name, value in RECORD.items() if name != "age"})[:-1]
    refusal(
        lambda: ask(PEOPLE, f'{{"record": {missing}, "job": "cook"}}}}'.encode()), "duplicate_key", "'job'"
    )
    lists = json.dumps(columns_of(RECORD))[:-1]
    refusal(lambda: ask(PEOPLE, f'{{"columns": {lists}, "age": [1]}}}}'.encode()), "duplicate_key", "'age'")


def test_unseen_values_and_numbers_outside_their_range_are_explained():
    body = {"record": RECORD | {"job": "pilot", "age": 1000, "since": "1900-01-01"}, "explain": True}
    answer = ask(PEOPLE, body)
    assert (answer["unseen"], answer["outside"], answer["outside_count"]) == (["job"], ["age", "since"], 2)
    assert "known_terms" not in answer
    usual = ask(PEOPLE, {"record": RECORD | {"age": None, "job": "judge"}, "explain": True})
    assert (usual["unseen"], usual["outside_count"]) == ([], 0)


def test_too_many_rows_and_parts():
    with pytest.raises(TooLarge, match="at most 1000"):
        ask(PEOPLE, {"records": [RECORD] * 1001})
    with pytest.raises(TooLarge, match="more than 1000 rows"):
        ask(PEOPLE, {"columns": columns_of(*[RECORD] * 1001)})
    with pytest.raises(TooLarge, match="far more parts"):
        ask(PEOPLE, b'{"records": [' + b"{}," * 300_000 + b"{}]}")
    with pytest.raises(TooLarge, match="far too many keys"):
        ask(PEOPLE, {"record": {f"k{i}": 1 for i in range(30_000)}})
    with pytest.raises(TooLarge, match="far too many keys"):
        ask(PEOPLE, b'{"record": {' + b'"age": 1, ' * 200_000 + b'"age": 1}}')
    with pytest.raises(TooLarge, match="far too many lists"):
        ask(PEOPLE, {"columns": {f"k{i}": 1 for i in range(30_000)}})
    unknown = refusal(
        lambda: ask(PEOPLE, {"record": {f"k{i}": 1 for i in range(2000)}}), "unknown_column", "'k0'"
    )
    assert len(unknown.faults) == 10
    # Braces and commas within texts are no parts.
    notes = served(encoder(with_note=True))
    record = RECORD | {"note": "{,[" * 20_000}
    assert len(scores(notes, {"records": [record] * 20})) == 20
    assert len(scores(notes, {"columns": columns_of(*[record] * 20)})) == 20


@pytest.mark.parametrize("name", ["age", "grade"])
def test_numbers_of_thousands_of_digits_are_too_large(name: str):
    rest = {key: value for key, value in RECORD.items() if key != name}
    body = f'{{"record": {{"{name}": {"1" * 5000}, {json.dumps(rest)[1:]}}}'.encode()
    refusal(lambda: ask(PEOPLE, body), "too_large", f"'{name}' is a number beyond the range of float64")


def test_halves_of_characters_are_no_json():
    student = served(text_encoder())
    for text in ("my card \\ud800", "my card \\ud800 " * 5000):
        for body in (
            f'{{"text": "{text}"}}',
            f'{{"record": {{"text": "{text}"}}}}',
            f'{{"texts": ["{text}"]}}',
        ):
            refusal(lambda body=body: ask(student, body.encode()), "malformed_json", "cannot be read as JSON")


def test_columns_with_names_that_no_field_could_have():
    from core.data.column_kinds import infer_schema
    from core.data.table import NumberCells, Table
    from core.encoding.fit import fit_encoder

    rng = np.random.default_rng(0)
    for names in (('a"b', "c\\d"), ("explain", "record"), tuple(f"n{i}" for i in range(600))):
        table = Table(names, tuple(NumberCells(rng.normal(size=30)) for _ in names))
        student = served(fit_encoder(table, infer_schema(table)))
        row = table.record(0)
        expected = score(student, row)
        assert scores(student, {"records": [row, row]}) == [expected] * 2
        assert ask(student, {"x": list(row.values())})["score"] == expected
