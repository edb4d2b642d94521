"""The end of `stms train`: figures by class, and the next command, of a server that a test wrote down."""

from __future__ import annotations

import shlex

import pytest

from app.commands.job_result import print_result
from app.commands.remote import connect

JOB = {"id": "j1", "model": "m", "version": 2, "dataset_id": "d1", "progress": {"done": 3, "total": 3}}
STUDENTS = "/v1/training-jobs/j1/students"
ROWS = "/v1/datasets/d1/rows"
VERSION = "/v1/models/m/versions/2"
MEASURED = {"f1": 0.4, "tp": 2, "fp": 2, "tn": 12, "fn": 4}


def student(label: str, **metrics: object) -> dict[str, object]:
    return {"label": label, "metrics": metrics}


def printed(written, capsys, monkeypatch, job=JOB, url: str | None = None) -> str:
    monkeypatch.delenv("STMS_URL", raising=False)
    if url:
        monkeypatch.setenv("STMS_URL", url)
    with connect(written.address, None) as server:
        print_result(server, job)
    return capsys.readouterr().out


def test_each_class_has_its_figures_and_the_worst_is_first(written, capsys, monkeypatch):
    rows = [student("a b", **MEASURED), student("c", **MEASURED | {"f1": None, "tp": 0, "fp": 0})]
    written.on("GET", STUDENTS, {"data": rows})
    written.on("GET", ROWS, {"detail": "There is no data set.", "code": "dataset_not_found"}, 404)
    out = printed(written, capsys, monkeypatch)
    header, first, second, command = out.splitlines()
    assert header.split() == ["class", "F", "precision", "recall", "rows", "of", "it", "says", "yes", "to"]
    assert first.split() == ["a", "b", "0.4000", "0.5000", "0.3333", "30.0", "%", "20.0", "%"]
    assert second.split() == ["c", "–", "–", "0.0000", "25.0", "%", "0.0", "%"]
    assert command == f"Next:  stms query m CLASS --file FILE --server {written.address}"
    assert "sort=f1" in written.requests[0].path


def test_without_held_out_rows_it_says_how_to_get_figures(written, capsys, monkeypatch):
    written.on("GET", STUDENTS, {"data": [student("a")]})
    out = printed(written, capsys, monkeypatch, JOB | {"version": None})
    assert (
        out
        == "Nothing was measured: no rows were held out. --set evaluation.test_fraction=0.2 holds some out.\n"
    )


@pytest.mark.parametrize(
    ("x", "columns", "question"),
    [
        ([1.0, 0.5], None, ["--row", "1,0.5"]),
        ({"indices": [3], "values": [1.0]}, None, ["--row", '{"indices": [3], "values": [1.0]}']),
        ({"id": 1, "job": "it's"}, ["job", "age"], ["--record", '{"job": "it\'s"}']),
        ({"text": "win " * 100}, ["text"], ["--text", "win " * 30]),
        ({"photo": {"sha256": "c1", "bytes": 9}}, ["photo"], ["--image", "FILE"]),
        (
            {"photo": {"sha256": "c1", "bytes": 9}, "price": 2},
            ["photo", "price"],
            ["--record", '{"photo": {"b64": "…"}, "price": 2}'],
        ),
        ([0.123456] * 1000, None, ["--file", "FILE"]),
    ],
)
def test_the_next_command_asks_about_a_row_of_the_data(written, capsys, monkeypatch, x, columns, question):
    written.on("GET", STUDENTS, {"data": []})
    written.on("GET", ROWS, {"data": [{"id": 0, "label": ">50K", "x": x}]})
    written.on("GET", VERSION, {"encoder_digest": None if columns is None else "d"})
    written.on("GET", f"{VERSION}/schema", {"properties": {name: {} for name in columns or ()}})
    command = shlex.split(printed(written, capsys, monkeypatch, url=written.address).splitlines()[-1])
    label = "CLASS" if "--file" in question else ">50K"
    assert command == ["Next:", "stms", "query", "m", label, *question]
