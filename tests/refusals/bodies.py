"""JSON bodies that are malformed, too deep, too long, or have wrong types."""

from __future__ import annotations

import json
from typing import Any

from tests.refusals.refusal import (
    ANY_CODE,
    CLASSES,
    JOBS,
    KEYS,
    PREDICT,
    QUERY,
    Act,
    Refusal,
    post,
    refusals,
)

_MANY = 100_000
_JSON = (b"Content-Type", b"application/json")
_LAUGHS = b'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><l>&b;</l>'


def _ask(text: str | bytes, target: str = QUERY) -> Act:
    return post(target, text.encode() if isinstance(text, str) else text, _JSON)


def _asked(document: Any, target: str = QUERY) -> Act:
    return _ask(json.dumps(document), target)


def syntax() -> list[Refusal]:
    """Malformed JSON."""
    malformed = (400, "malformed_json")
    deep = _MANY
    return refusals(
        "json",
        ("nothing", _ask(""), 400, "empty"),
        ("blanks", _ask(" " * 1000), 400, "empty"),
        ("100 000 lists in each other", _ask("[" * deep + "]" * deep), 400, "wrong_body"),
        ("100 000 lists that never end", _ask("[" * deep), 400, "wrong_body"),
        ("100 000 lists in x", _ask('{"x": ' + "[" * deep + "]" * deep + "}"), *malformed),
        ("100 000 objects in each other", _ask('{"a":' * deep + "1" + "}" * deep), 400, "wrong_body"),
        ("100 000 lists in rows", _ask('{"rows": [' + "[" * deep + "]" * deep + "]}"), *malformed),
        ("a million keys", post(QUERY, _many_keys, _JSON), 400, "wrong_body"),
        (
            "a key of 15 MB",
            post(QUERY, lambda: b'{"' + b"k" * 15_000_000 + b'": 1}', _JSON),
            400,
            "wrong_body",
        ),
        ("NaN", _ask('{"x": [NaN, 1, 2]}'), 400, "not_finite"),
        ("infinity", _ask('{"x": [1, -Infinity, 2]}'), 400, "not_finite"),
        ("1e999", _ask('{"x": [1e999, 1, 2]}'), 400, "too_large"),
        ("a number of 100 000 digits", _ask('{"x": [' + "9" * _MANY + ", 1, 2]}"), 400, "too_large"),
        ("a number beyond use", _ask('{"x": [1e101, 1, 2]}'), 400, "too_large"),
        ("a word", _ask("hello"), *malformed),
        ("a number that begins with 0", _ask('{"x": [01]}'), *malformed),
        ("hexadecimal", _ask('{"x": [0x10, 1, 2]}'), *malformed),
        ("comments", _ask('{"x": [1, 2, 3] /* a */}'), *malformed),
        ("two documents", _ask('{"x": [1, 2, 3]}{"x": [1, 2, 3]}'), *malformed),
        ("a document cut off", _ask('{"x": [1, 2,'), *malformed),
        ("bytes that are no UTF-8", _ask(b'{"\xff\xfe": 1}'), *malformed),
        ("overlong UTF-8", _ask(b'{"\xc0\xaf": 1}'), *malformed),
        ("UTF-16", _ask('{"x": [1, 2, 3]}'.encode("utf-16")), *malformed),
        ("a byte order mark", _ask(b"\xef\xbb\xbf" + b'{"x": [1, 2, 3]}'), *malformed),
        ("half a surrogate pair as a key", _ask('{"\\ud800": 1}'), *malformed),
        ("a key twice, the second broken", _ask('{"x": [1, 2, 3], "x": "a"}'), 400, "duplicate_key"),
        ("XML with entities", post(QUERY, _LAUGHS, (b"Content-Type", b"text/xml")), *malformed),
    )


def types() -> list[Refusal]:
    """JSON with wrong types."""
    return refusals(
        "types",
        ("a list", _asked([1, 2, 3]), 400, "wrong_body"),
        ("text", _asked("x"), 400, "wrong_body"),
        ("null", _asked(None), 400, "wrong_body"),
        ("x is text", _asked({"x": "1,2,3"}), 400, "wrong_type"),
        ("x is null", _asked({"x": None}), 400, "wrong_body"),
        ("x holds text", _asked({"x": ["1", 2, 3]}), 400, "wrong_type"),
        ("x holds true", _asked({"x": [True, 2, 3]}), 400, "wrong_type"),
        ("x holds null", _asked({"x": [None, 2, 3]}), 400, "missing_value"),
        ("x holds lists", _asked({"x": [[1, 2, 3]]}), 400, "wrong_type"),
        ("x holds an object", _asked({"x": [{"__class__": "os"}, 2, 3]}), 400, "wrong_type"),
        ("too few columns", _asked({"x": [1]}), 400, "wrong_columns"),
        ("a million columns", _asked({"x": [0] * 1_000_000}), 400, "wrong_columns"),
        ("rows and x", _asked({"x": [1, 2, 3], "rows": [[1, 2, 3]]}), 400, "wrong_body"),
        ("rows is an object", _asked({"rows": {"0": [1, 2, 3]}}), 400, "wrong_type"),
        (
            "eight million rows that are numbers",
            _ask('{"rows": [' + "1," * 8_000_000 + "1]}"),
            413,
            "too_many_parts",
        ),
        ("rows is empty", _asked({"rows": []}), 400, "empty"),
        ("rows of several lengths", _asked({"rows": [[1, 2, 3], [1]]}), 400, "wrong_columns"),
        ("100 001 rows", _asked({"rows": [[0, 0, 0]] * 100_001}), 413, "too_many_rows"),
        (
            "five million rows of nothing",
            _ask('{"rows": [' + "[]," * 5_000_000 + "[]]}"),
            413,
            "too_many_parts",
        ),
    )


def questions() -> list[Refusal]:
    """Queries with wrong numbers of columns, unknown classes and too many rows."""
    sparse = {"indices": [0], "values": [1.0]}
    return refusals(
        "types",
        ("an unknown field", _asked({"x": [1, 2, 3], "__proto__": {"admin": True}}), 400, "wrong_body"),
        ("explain is text", _asked({"x": [1, 2, 3], "explain": "yes"}), 400, "wrong_type"),
        ("a negative column", _asked({"x": sparse | {"indices": [-1]}}), 400, "wrong_columns"),
        ("a column beyond 64 bits", _asked({"x": sparse | {"indices": [10**30]}}), 400, "not_whole"),
        ("a column of 1e300", _ask('{"x": {"indices": [1e300], "values": [1]}}'), 400, "not_whole"),
        ("half a column", _asked({"x": sparse | {"indices": [0.5]}}), 400, "wrong_type"),
        ("columns without values", _asked({"x": sparse | {"indices": [0, 1]}}), 400, "wrong_length"),
        (
            "values that add up beyond use",
            _asked({"rows": [{"indices": [0, 0], "values": [9e99, 9e99]}]}),
            400,
            "too_large",
        ),
        (
            "257 classes",
            _asked({"classes": [f"c{i}" for i in range(257)], "x": [1, 2, 3]}, CLASSES),
            413,
            "too_many_classes",
        ),
        ("a class twice", _asked({"classes": ["cat", "cat"], "x": [1, 2, 3]}, CLASSES), 400, "duplicate"),
        ("no class", _asked({"x": [1, 2, 3]}, CLASSES), 400, "missing"),
        ("an empty list of classes", _asked({"classes": [], "x": [1, 2, 3]}, CLASSES), 400, "missing"),
        ("a text as classes", _asked({"classes": "cat", "x": [1, 2, 3]}, CLASSES), 400, "wrong_type"),
        ("classes without rows", _asked({"classes": ["cat"]}, CLASSES), 400, "wrong_body"),
        (
            "a row too short for several classes",
            _asked({"classes": ["cat", "dog"], "x": [1, 2]}, CLASSES),
            400,
            "wrong_columns",
        ),
        (
            "explain of several classes that is a number",
            _asked({"classes": ["cat", "dog"], "x": [1, 2, 3], "explain": 1}, CLASSES),
            400,
            "wrong_type",
        ),
        ("an empty class", _asked({"classes": [""], "x": [1, 2, 3]}, CLASSES), 404, "class_not_found"),
        ("a class with NUL", _asked({"classes": ["cat\0"], "x": [1, 2, 3]}, CLASSES), 404, "class_not_found"),
        (
            "a class that is half a pair",
            _ask('{"classes": ["\\ud800"], "x": [1, 2, 3]}', CLASSES),
            400,
            "malformed_json",
        ),
        ("more scores than an answer holds", post(CLASSES, _many_scores, _JSON), 413, "too_many_scores"),
        (
            "a target of the teacher that is none",
            _asked({"x": [1, 2, 3], "target": "\u202ecat"}, PREDICT),
            404,
            "class_not_found",
        ),
        (
            "rows for the teacher that are none",
            _asked({"rows": [[1, 2, None]]}, PREDICT),
            400,
            "missing_value",
        ),
        ("17 MB of rows", post(QUERY, lambda: b" " * 17_000_000, _JSON), 413, "body_too_large"),
        ("17 MB for the teacher", post(PREDICT, lambda: b" " * 17_000_000, _JSON), 413, "body_too_large"),
    )


def _wish(hyperparameters: Any = None, **more: Any) -> Act:
    """A job with these hyper-parameters."""
    given = {"dataset_id": "ds_none", "model": "evil", "hyperparameters": hyperparameters or {}} | more
    return post(JOBS, json.dumps(given).encode(), _JSON, key="train")


def _text(body: str | bytes) -> Act:
    """A job with this text as its body."""
    return post(JOBS, body.encode() if isinstance(body, str) else body, _JSON, key="train")


def jobs() -> list[Refusal]:
    """Invalid training jobs."""

    invalid = (422, "invalid_body")
    return refusals(
        "jobs",
        ("nested 100 000 deep", _text("[" * _MANY + "]" * _MANY), 400, "malformed_json"),
        ("cut off", _text('{"model": '), 400, "malformed_json"),
        ("a byte that is no UTF-8", _text(b"\xff"), 400, "malformed_json"),
        ("a list", _text("[1]"), *invalid),
        ("an unknown hyper-parameter", _wish({"students": {}}), *invalid),
        ("a method that is none", _wish({"student": {"method": "forest"}}), *invalid),
        ("NaN as gamma", _wish({"features": {"gamma": float("nan")}}), *invalid),
        ("a priority that is a number", _wish(priority=1), *invalid),
        ("12 000 keys", _text(json.dumps({f"k{i}": i for i in range(12_000)})), *invalid),
        (
            "NaN as C",
            _text('{"dataset_id": "a", "model": "m", "hyperparameters": {"student": {"C": NaN}}}'),
            *invalid,
        ),
        (
            "1e999 as C",
            _text('{"dataset_id": "a", "model": "m", "hyperparameters": {"student": {"C": 1e999}}}'),
            *invalid,
        ),
        (
            "a seed of 5000 digits",
            _text('{"dataset_id": "a", "model": "m", "hyperparameters": {"seed": ' + "9" * 5000 + "}}"),
            400,
            "malformed_json",
        ),
        (
            "the wrong types everywhere",
            _wish({"features": [], "teacher": 1, "student": "a", "seed": {}, "publish": []}),
            *invalid,
        ),
        ("a state of one's own", _wish(state="succeeded"), *invalid),
        ("a model that is a path", _wish(model="../../etc/passwd"), *invalid),
        ("a model with a zero-width space", _wish(model="pe\u200bts"), *invalid),
        ("a model of Cyrillic letters", _wish(model="реts"), *invalid),
        ("a data set that is SQL", _wish(dataset_id="x' OR '1'='1"), *invalid),
        ("a data set that is none", _wish(), 404, "dataset_not_found"),
    )


def hyperparameters() -> list[Refusal]:
    """Invalid hyper-parameters."""

    invalid = (422, "invalid_body")
    return refusals(
        "jobs",
        ("an alias that is a path", _wish({"alias": "../latest"}), *invalid),
        ("an alias that is a number", _wish({"alias": "3"}), *invalid),
        (
            "a grid of 125 000 points",
            _wish(
                {
                    "tuning": {
                        "grid": {k: [0.01 + i / 100 for i in range(50)] for k in ("C", "margins", "floors")}
                    }
                }
            ),
            *invalid,
        ),
        ("a million components", _wish({"features": {"kind": "nystroem", "n_components": 10**6}}), *invalid),
        ("no epochs", _wish({"teacher": {"max_epochs": 0}}), *invalid),
        ("a class that is half a pair", _wish({"classes": ["\ud800"]}), 400, "malformed_json"),
        ("a class with NUL", _wish_for_class("a\0"), *invalid),
        ("a class with a line end", _wish_for_class("a\r\nSet-Cookie: b"), 400, "unknown_class"),
        ("two MB", _text(b" " * 2_000_000), 413, "body_too_large"),
        (
            "a form",
            post(
                JOBS,
                b"dataset_id=a&model=b",
                (b"Content-Type", b"application/x-www-form-urlencoded"),
                key="train",
            ),
            400,
            "malformed_json",
        ),
    )


def keys() -> list[Refusal]:
    """Invalid requests to create API keys."""

    def make(**given: Any) -> Act:
        body = {"name": "evil", "scopes": ["query"]} | given
        return post(KEYS, json.dumps(body).encode(), _JSON, key="admin")

    invalid = (400, "invalid_request")
    return refusals(
        "keys",
        ("a name that runs backwards", make(name="nimda\u202e"), *invalid),
        ("a name of nothing to see", make(name="\u200b\u2060"), *invalid),
        ("a name with a line end", make(name="a\nroot"), *invalid),
        ("a name with an escape", make(name="\x1b[31mred"), *invalid),
        ("a name with NUL", make(name="a\0"), 422, "invalid_body"),
        ("a name that is half a pair", make(name="\ud800"), 400, "malformed_json"),
        ("a name of 101 letters", make(name="a" * 101), 422, "invalid_body"),
        ("a scope of one's own", make(scopes=["root"]), *invalid),
        ("no scope", make(scopes=[]), *invalid),
        ("a model that is a path", make(models=["../pets"]), *invalid),
        ("an administrator of one model", make(scopes=["admin"], models=["pets"]), *invalid),
        ("10 000 models", make(models=["m"] * 10_000), 422, "invalid_body"),
        ("a secret of one's own", make(secret="a" * 43), 422, "invalid_body"),
    )


def _many_keys() -> bytes:
    return b"{" + b",".join(b'"k%d":1' % i for i in range(1_000_000)) + b"}"


def _many_scores() -> bytes:
    rows = b"[0,0,0]," * 50_000 + b"[0,0,0]"
    classes = json.dumps([f"c{i}" for i in range(200)]).encode()
    return b'{"classes": %s, "rows": [%s]}' % (classes, rows)


def _wish_for_class(label: str) -> Act:
    def act(server: Any) -> Any:
        wish = {"dataset_id": server.dataset, "model": "evil", "hyperparameters": {"classes": [label]}}
        return post(JOBS, json.dumps(wish).encode(), _JSON, key="train")(server)

    return act


def retraining() -> list[Refusal]:
    """Versions that are trained again, with names, data sets and hyper-parameters that cannot be."""

    def again(key: str = "train", model: str = "pets", **said: Any) -> Act:
        def act(server: Any) -> Any:
            body = {"from": 1, "dataset_id": server.dataset} | said
            return post(f"/v1/models/{model}/retrain", json.dumps(body).encode(), key=key)(server)

        return act

    invalid = (422, "invalid_body")
    return refusals(
        "retraining",
        ("by a key that may only ask", again("query"), 403, "scope_required"),
        ("a version of another tenant", again("rival"), 404, "version_not_found"),
        ("a version that is none", again(**{"from": 77}), 404, "version_not_found"),
        ("an alias that is none", again(**{"from": "other"}), 404, "alias_not_found"),
        ("a version that is true", again(**{"from": True}), *invalid),
        ("a version of 10 ** 30", again(**{"from": 10**30}), *invalid),
        ("a version up", again(**{"from": "../1"}), *invalid),
        ("a data set that is none", again(dataset_id="ds_none"), 404, "dataset_not_found"),
        ("a data set that is SQL", again(dataset_id="' OR 1=1--"), *invalid),
        ("an alias with a slash", again(alias="a/b"), *invalid),
        ("an alias in two places", again(hyperparameters={"alias": "a"}), *invalid),
        ("a hyper-parameter that there is not", again(hyperparameters={"sudo": 1}), *invalid),
        ("a hyper-parameter out of bounds", again(hyperparameters={"student": {"C": -1}}), *invalid),
        ("a group that is a text", again(hyperparameters={"student": "svm"}), *invalid),
        ("a NUL in a hyper-parameter", again(hyperparameters={"classes": ["a\0b"]}), *invalid),
        ("101 hyper-parameters", again(hyperparameters={str(k): 1 for k in range(101)}), *invalid),
        (
            "100 000 classes",
            again(hyperparameters={"classes": [str(k) for k in range(100_000)]}),
            413,
            "body_too_large",
        ),
        (
            "a class that the data set does not have",
            again(hyperparameters={"classes": ["a", "@"]}),
            400,
            ANY_CODE,
        ),
        ("a field that there is not", again(only="changed"), *invalid),
    )


def class_changes() -> list[Refusal]:
    """Classes that are added, renamed and taken away with names, rows and numbers that cannot be."""
    rows = [[0.0, 0.0, 0.0]] * 5
    path = "/v1/models/pets/classes"

    def add(**said: Any) -> Act:
        return post(path, json.dumps({"name": "cow", "rows": rows} | said).encode(), key="train")

    def change(**said: Any) -> Act:
        return post(path, json.dumps(said).encode(), key="train", method="PATCH")

    invalid = (422, "invalid_body")
    return refusals(
        "class changes",
        ("a name with NUL", add(name="a\0b"), *invalid),
        ("a name of 10 000 letters", add(name="a" * 10_000), *invalid),
        ("a class that is there", add(name="cat"), 400, "class_exists"),
        ("four examples", add(rows=rows[:4]), 400, "too_few_examples"),
        ("10 001 examples", add(rows=rows * 2001), *invalid),
        ("examples that are texts", add(rows=["a"] * 5), 400, ANY_CODE),
        ("examples of another width", add(rows=[[0.0]] * 5), 400, "wrong_columns"),
        ("examples beyond all numbers", add(rows=[[1e200, 0.0, 0.0]] * 5), 400, "too_large"),
        ("examples in two forms", add(texts=["a"] * 5), *invalid),
        ("a budget of nothing", add(max_false_positive_rate=0.0), *invalid),
        ("what there is not", add(protect=True), *invalid),
        ("by a key that may only ask", post(path, b"{}"), 403, "scope_required"),
        ("a new name with NUL", change(rename={"cat": "a\0b"}), *invalid),
        ("a new name that another class has", change(rename={"cat": "dog"}), 400, "class_exists"),
        ("a new name of no class", change(rename={"cow": "bull"}), 404, "class_not_found"),
        ("nothing to change", change(), *invalid),
        ("1001 classes taken away", change(remove=[str(k) for k in range(1001)]), *invalid),
    )
