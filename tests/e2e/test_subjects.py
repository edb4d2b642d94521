"""The data of a subject are deleted: no byte of its rows is left, and training goes as if they had never
been.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from stms_client import Client
from tests.system.deployment import QUICK_SOLVERS, Deployment

QUICK = {"automatic": False, "features": {"kind": "linear"}, "suspects": {"limit": 0}, "alias": None}
COLUMNS = 4


def lines(numbers: Any, person: Any) -> list[str]:
    """Rows of a file: numbers that are nowhere else, whom they are about, and a class."""
    return [
        ",".join([*(repr(float(value)) for value in row), str(whom), "yes" if row[0] > 0 else "no"])
        for row, whom in zip(numbers, person, strict=True)
    ]


def _found(folder: Path, needles: list[bytes]) -> list[tuple[str, bytes]]:
    """The files of a folder in which any of some bytes stand, with these."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [(path.name, one) for path in files for one in needles if one in path.read_bytes()]


def _student_digests(client: Client, job: dict[str, Any]) -> list[Any]:
    rows = client.students(job["id"])
    return [(row["label"], row["method"], row["digest"]) for row in rows]


def test_a_subject_is_forgotten(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(90, COLUMNS))
    person = np.array(["anna", "bob", "carla"])[np.arange(90) % 3]
    header = ",".join([*(f"x{k}" for k in range(COLUMNS)), "who", "label"])
    kept = person != "bob"
    paths = {}
    for name, rows in {"all": np.ones(90, dtype=bool), "without": kept}.items():
        paths[name] = tmp_path / f"{name}.csv"
        paths[name].write_text("\n".join([header, *lines(X[rows], person[rows])]) + "\n")
    # As the arrays of data sets and packages have them, and as texts of summaries do.
    values = X[~kept].ravel()
    needles = [value.tobytes() for value in values] + [repr(float(value)).encode() for value in values]
    needles.append(b"bob")
    data = tmp_path / "data"
    with (
        Deployment(data, serve=True, is_new=False, settings=QUICK_SOLVERS) as service,
        Client(service.url, service.first_key) as client,
    ):
        base = client.upload_dataset(paths["all"], subject_column="who", label_column="label")
        assert "who" not in [column["name"] for column in base["summary"]["features"]]
        job = client.wait_for_job(client.submit_job(base["id"], "first", QUICK)["id"])
        erased = client.erase_subject("bob")
        [one] = erased["datasets"]
        assert (one["series"], one["rows"], one["deleted"]) == (base["id"], 30, [base["id"]])
        [taught] = erased["versions"]
        assert (taught["model"], taught["trained_with"], taught["contains"]) == ("first", 30, [])
        assert client.erase_subject("bob")["datasets"] == []
        after = client.wait_for_job(client.submit_job(f"{base['id']}@latest", "after", QUICK)["id"])
        assert after["dataset_id"] == one["revision"]
        other = client.upload_dataset(paths["without"], subject_column="who", label_column="label")
        never = client.wait_for_job(client.submit_job(other["id"], "never", QUICK)["id"])
        assert _student_digests(client, after) == _student_digests(client, never)
        assert _student_digests(client, after) != _student_digests(client, job)
        for name in ("teacher_digest", "preparation_digest"):
            assert after["provenance"][name] == never["provenance"][name], name
        client.delete_version("first", 1)
        client.delete_job(job["id"])
    # The search finds what is there: rows about the others.
    assert _found(data, [X[0, 0].tobytes()])
    assert _found(data, needles) == []
