"""Records, texts and columns that are malformed, too many, or not what the columns of a model take."""

from __future__ import annotations

import json
from typing import Any, Final

from tests.refusals.refusal import Act, Refusal, post, refusals

_MANY: Final = 100_000
_JSON: Final = (b"Content-Type", b"application/json")
_CUSTOMER: Final = "/v1/models/customers/classes/yes:query"
_CUSTOMERS: Final = "/v1/models/customers:query"
_NOTE: Final = "/v1/models/notes/classes/yes:query"
_INFER: Final = "/v2/models/customers:yes/infer"
_RECORD: Final[dict[str, Any]] = {
    "age": 39.5,
    "job": "clerk",
    "since": "2021-05-06",
    "member": True,
    "place": [0.5, 1.0],
}


def _ask(text: str | bytes, target: str = _CUSTOMER) -> Act:
    return post(target, text.encode() if isinstance(text, str) else text, _JSON)


def _asked(document: Any, target: str = _CUSTOMER) -> Act:
    return _ask(json.dumps(document), target)


def _changed(**values: Any) -> Act:
    """A good record but for some values; ``...`` leaves one out."""
    record = {name: value for name, value in (_RECORD | values).items() if value is not ...}
    return _asked({"record": record})


def records() -> list[Refusal]:
    """Single records."""
    wrong_type = (400, "wrong_type")
    good = json.dumps(_RECORD)
    return refusals(
        "records",
        ("numbers in order", _asked({"x": [1, 2, 3, 4, 5]}), 400, "needs_record"),
        ("a list", _asked({"record": [1, 2]}), *wrong_type),
        ("null", _asked({"record": None}), *wrong_type),
        ("nothing in it", _asked({"record": {}}), 400, "missing_value"),
        ("an unknown column", _changed(agee=1), 400, "unknown_column"),
        ("a column that is called __class__", _changed(__class__="os"), 400, "unknown_column"),
        ("a name of a megabyte", _changed(**{"k" * 1_000_000: 1}), 400, "unknown_column"),
        ("100 000 unknown columns", _changed(**{f"k{i}": i for i in range(_MANY)}), 413, "too_many_parts"),
        ("a text for a number", _changed(age="39"), *wrong_type),
        ("true for a number", _changed(age=True), *wrong_type),
        ("a list for a number", _changed(age=[39]), *wrong_type),
        ("an object for a category", _changed(job={"a": 1}), *wrong_type),
        ("a number for a date", _changed(since=20210506), *wrong_type),
        ("a day that there is not", _changed(since="2021-02-30"), 400, "bad_date"),
        ("a date of a megabyte", _changed(since="2021-05-06" * 100_000), 400, "bad_date"),
        ("a year beyond all", _changed(since="99999-01-01"), 400, "bad_date"),
        ("a number for truth", _changed(member=1), *wrong_type),
        ("a vector that is too short", _changed(place=[1.0]), *wrong_type),
        ("a vector of a million numbers", _changed(place=[0.0] * 1_000_000), 400, "wrong_type"),
        ("a vector with text", _changed(place=["a", 1.0]), *wrong_type),
        ("NaN", _ask('{"record": ' + good.replace("39.5", "NaN") + "}"), 400, "not_finite"),
        ("1e999", _ask('{"record": ' + good.replace("39.5", "1e999") + "}"), 400, "too_large"),
        ("a number beyond use", _changed(age=1e101), 400, "too_large"),
        (
            "a number of 100 000 digits",
            _ask('{"record": ' + good.replace("39.5", "9" * _MANY) + "}"),
            400,
            "too_large",
        ),
        ("a category of a megabyte", _changed(job="x" * 1_000_000), 400, "too_long"),
        (
            "half a surrogate pair as a category",
            _ask('{"record": ' + good.replace("clerk", "\\ud800") + "}"),
            400,
            "malformed_json",
        ),
        ("a column twice", _ask('{"record": {"age": 1, ' + good[1:] + "}"), 400, "duplicate_key"),
        ("the record twice", _ask(f'{{"record": {good}, "record": {good}}}'), 400, "duplicate_key"),
        ("100 000 lists in it", _ask('{"record": ' + "[" * _MANY + "]" * _MANY + "}"), 400, "malformed_json"),
        ("cut off", _ask('{"record": {"age": 39'), 400, "malformed_json"),
        ("two forms", _asked({"record": _RECORD, "records": [_RECORD]}), 400, "wrong_body"),
        ("another server's form", _asked({"instances": [_RECORD]}), 400, "wrong_body"),
        ("a text", _asked({"text": "a"}), 400, "wrong_body"),
        (
            "an explanation that there is not",
            _asked({"record": _RECORD, "explain": "all"}),
            400,
            "wrong_type",
        ),
    )


def lists() -> list[Refusal]:
    """Many records, by rows and by columns."""
    columns = {name: [value] for name, value in _RECORD.items()}
    return refusals(
        "records",
        ("no records", _asked({"records": []}), 400, "empty"),
        ("records that are an object", _asked({"records": {"0": _RECORD}}), 400, "wrong_type"),
        ("records that are numbers", _asked({"records": [1, 2]}), 400, "wrong_type"),
        ("100 001 records", _asked({"records": [{}] * 100_001}), 413, "too_many_rows"),
        ("five million objects", _ask('{"records": [' + "{}," * 5_000_000 + "{}]}"), 413, "too_many_parts"),
        ("17 MB of records", post(_CUSTOMER, lambda: b" " * 17_000_000, _JSON), 413, "body_too_large"),
        ("one bad among many", _asked({"records": [_RECORD] * 500 + [{}]}), 400, "missing_value"),
        (
            "101 that are explained",
            _asked({"records": [_RECORD] * 101, "explain": "columns"}),
            413,
            "too_many_rows",
        ),
        ("columns that are a list", _asked({"columns": [1]}), 400, "wrong_body"),
        ("columns of no values", _asked({"columns": {name: [] for name in _RECORD}}), 400, "empty"),
        ("columns of different lengths", _asked({"columns": columns | {"age": [1, 2]}}), 400, "wrong_length"),
        ("a column that is a number", _asked({"columns": columns | {"age": 1}}), 400, "wrong_type"),
        (
            "a column of 100 001 values",
            _asked({"columns": columns | {"age": [1] * 100_001}}),
            413,
            "too_many_rows",
        ),
        ("an unknown column of values", _asked({"columns": columns | {"x": [1]}}), 400, "unknown_column"),
        ("columns without any of them", _asked({"columns": {}}), 400, "empty"),
        ("no classes", _asked({"record": _RECORD}, _CUSTOMERS), 400, "missing"),
        *(
            (f"of several classes, {name}", _asked(body, _CUSTOMERS), 400, code)
            for name, body, code in (
                ("none", {"classes": [], "record": _RECORD}, "missing"),
                ("one twice", {"classes": ["yes", "yes"], "record": _RECORD}, "duplicate"),
                ("a text for a number", {"classes": ["yes"], "record": _RECORD | {"age": "x"}}, "wrong_type"),
                ("numbers in order", {"classes": ["yes"], "x": [1]}, "needs_record"),
                ("a text", {"classes": ["yes"], "text": "a"}, "wrong_body"),
                ("no records", {"classes": ["yes"], "records": []}, "empty"),
            )
        ),
        (
            "a class that there is not",
            _asked({"record": _RECORD, "classes": ["cat"]}, _CUSTOMERS),
            404,
            "class_not_found",
        ),
    )


def texts() -> list[Refusal]:
    """Texts."""
    return refusals(
        "texts",
        ("a number", _asked({"text": 1}, _NOTE), 400, "wrong_type"),
        ("a list", _asked({"text": ["a"]}, _NOTE), 400, "wrong_type"),
        ("null", _asked({"text": None}, _NOTE), 400, "missing_value"),
        ("no texts", _asked({"texts": []}, _NOTE), 400, "empty"),
        ("texts that are one", _asked({"texts": "a"}, _NOTE), 400, "wrong_type"),
        ("a number among texts", _asked({"texts": ["a", 1]}, _NOTE), 400, "wrong_type"),
        ("100 001 texts", _asked({"texts": ["a"] * 100_001}, _NOTE), 413, "too_many_rows"),
        ("half a surrogate pair", _ask('{"text": "\\ud800"}', _NOTE), 400, "malformed_json"),
        ("bytes that are no UTF-8", _ask(b'{"text": "\xff\xfe"}', _NOTE), 400, "malformed_json"),
        ("a control character", _ask(b'{"text": "a\x00b"}', _NOTE), 400, "malformed_json"),
        ("a text twice", _ask('{"text": "a", "text": "b"}', _NOTE), 400, "duplicate_key"),
    )


def tensors() -> list[Refusal]:
    """Named inputs of the Open Inference Protocol."""

    def infer(*inputs: dict[str, Any]) -> Act:
        return _asked({"inputs": list(inputs)}, _INFER)

    def one(name: str, datatype: str, *data: Any) -> dict[str, Any]:
        return {"name": name, "datatype": datatype, "shape": [len(data)], "data": list(data)}

    good = [
        one("age", "FP64", 39.5),
        one("job", "BYTES", "clerk"),
        one("since", "BYTES", "2021-05-06"),
        one("member", "BOOL", True),
        {"name": "place", "datatype": "FP64", "shape": [1, 2], "data": [0.5, 1.0]},
    ]
    return refusals(
        "records",
        ("all inputs are missing", infer(), 400, None),
        ("an input is there twice", infer(*good, good[0]), 400, None),
        ("an unknown input", infer(*good, one("agee", "FP64", 1.0)), 400, None),
        ("a number of BYTES", infer(one("age", "BYTES", "39"), *good[1:]), 400, None),
        (
            "a category of two rows",
            infer(good[0], one("job", "BYTES", "clerk", "cook"), *good[2:]),
            400,
            None,
        ),
        ("a shape that lies", infer({**good[0], "shape": [7]}, *good[1:]), 400, None),
        ("a shape beyond all", infer({**good[0], "shape": [2**62]}, *good[1:]), 400, None),
        ("a date that is none", infer(*good[:2], one("since", "BYTES", "soon"), *good[3:]), 400, None),
    )


GROUPS: Final = (records, lists, texts, tensors)
