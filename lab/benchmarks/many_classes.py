"""Bytes of a kernel model of many classes in the database, and of what a program downloads.

    python -m lab.benchmarks.many_classes [--classes 1000] [--rows 4] [--columns 100] [--landmarks 500]

A service trains one job over HTTP. The last line is a JSON object:

map_bytes_ratio   bytes of the students and maps of the job in the database : bytes of one map and of all
                  weights, which were both counted as arrays; at most 1.2 is wanted
map_bytes         bytes of the map's arrays
weight_bytes      bytes of the arrays of all students without their map
stored_bytes      bytes of the blobs that rows of the job's students refer to, each once
inside_ratio      what map_bytes_ratio would be if every student held its map
download_bytes    what a program that evaluates all classes fetches: packages, and the map once
maps_fetched      how many times it fetched a map
train_seconds     from the submission of the job to its end
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from app.store.tables import blobs, job_students
from core.packed.map_packages import map_from_bytes
from stms_client import Client
from tests.system.deployment import job_service


def write_rows(path: Path, classes: int, rows: int, columns: int) -> None:
    """Rows around a random centre for each class, as `.npz` with labels."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(classes, columns))
    y = np.tile(np.arange(classes), rows)
    np.savez(path, X=centres[y] + 0.3 * rng.normal(size=(len(y), columns)), y=y)


def job_spec(landmarks: int) -> dict[str, Any]:
    """A job whose time is mostly that of storing: few steps of each solver, and no folds."""
    return {
        "automatic": False,
        "features": {"kind": "nystroem", "n_components": landmarks},
        "teacher": {"max_epochs": 2},
        "student": {"method": "svm", "max_epochs": 2},
        "threshold": {"rule": "zero"},
        "calibration": {"kind": "none"},
        "guard": {"kind": "off"},
        "evaluation": {"test_fraction": None},
    }


def stored_bytes(database: Path, job_id: str) -> int:
    """Bytes of the blobs of students and maps of a job, each once."""
    engine = sa.create_engine(f"sqlite:///{database}")
    columns = (job_students.c.digest, job_students.c.map_digest)
    named = sa.union(
        *(sa.select(one.label("digest")).where(job_students.c.job_id == job_id) for one in columns)
    )
    total = sa.select(sa.func.sum(blobs.c.size)).where(
        blobs.c.digest.in_(sa.select(named.subquery().c.digest))
    )
    with engine.connect() as connection:
        return int(connection.execute(total).scalar_one())


def downloaded(client: Client, model: str, labels: Sequence[str]) -> dict[str, int]:
    """What a program holds that evaluates all students, and has fetched for that."""
    with client.local(model, labels, poll=1000.0, max_stale=5000.0) as local:
        held: Any = local._held
        students = [one.student for one in held._students.values()]
    packages = [student.to_bytes() for student in students]
    return {
        "map_bytes": sum(map_from_bytes(content).nbytes for content in held.maps.values()),
        "weight_bytes": sum(student.form.nbytes for student in students),
        "download_bytes": sum(map(len, [*packages, *held.maps.values()])),
        "maps_fetched": len(held.maps),
    }


def measure(classes: int, rows: int, columns: int, landmarks: int) -> dict[str, float]:
    """All figures of one job."""
    with job_service(STMS_SOLVER_NICENESS="0") as (client, folder):
        path = folder / "rows.npz"
        write_rows(path, classes, rows, columns)
        dataset = client.upload_dataset(path)
        begun = time.monotonic()
        job = client.submit_job(dataset["id"], "many", job_spec(landmarks)).wait()
        seconds = time.monotonic() - begun
        stored = stored_bytes(next(folder.rglob("stms.sqlite")), job.id)
        found = downloaded(client, "many", [str(label) for label in range(classes)])
    arrays = found["map_bytes"] + found["weight_bytes"]
    inside = classes * found["map_bytes"] + found["weight_bytes"]
    return {
        "classes": classes,
        **found,
        "stored_bytes": stored,
        "map_bytes_ratio": round(stored / arrays, 3),
        "inside_ratio": round(inside / arrays, 1),
        "train_seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=4, help="training rows of each class")
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--landmarks", type=int, default=500)
    given = parser.parse_args()
    print(json.dumps(measure(given.classes, given.rows, given.columns, given.landmarks)))


if __name__ == "__main__":
    main()
