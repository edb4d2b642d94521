"""The same job run twice gives bit-identical students, teachers and metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

Json = dict[str, Any]

RANDOM_ALL_OVER = {
    "features": {"kind": "nystroem", "n_components": 20},
    "student": {"C": 1000},
    "threshold": {"rule": "f1", "folds": 2},
    "evaluation": {"test_fraction": 0.3, "baselines": ["gsvm0", "svm"]},
}
"""Landmarks, folds, the held-out part and the order of the solvers' steps: all drawn from the seed."""


@pytest.fixture(scope="module")
def repeat(
    http: httpx.Client, train: Callable[..., Json], upload: Callable[..., Json], csv: Any, iris: Any
) -> Callable[[int], tuple[Json, list[Json]]]:
    """Run the job with a seed; returns the job and its students without their times."""
    dataset_id = upload(csv(*iris), name="iris in cm")["id"]

    def run(seed: int) -> tuple[Json, list[Json]]:
        job = train(dataset_id, "repeated", seed=seed, **RANDOM_ALL_OVER)
        rows: list[Json] = http.get(f"/v1/training-jobs/{job['id']}/students").json()["data"]
        for row in rows:
            del row["seconds"]
        return job, rows

    return run


@pytest.mark.long
def test_the_same_seed_gives_the_same_bits_and_another_gives_others(service, repeat):
    (first, students), (second, again), (other, others) = repeat(7), repeat(7), repeat(8)
    assert first["id"] != second["id"]
    digests = [row["digest"] for row in students if row["method"] != "teacher"]
    assert len(set(digests)) == 9
    assert again == students
    for name in ("preparation_digest", "teacher_digest", "dataset_digest", "versions"):
        assert first["provenance"][name] == second["provenance"][name], name
    assert first["provenance"]["teacher_digest"] != other["provenance"]["teacher_digest"]
    assert not set(digests) & {row["digest"] for row in others}
    # What is the same is also stored once.
    listed = ", ".join(f"'{digest}'" for digest in digests)
    assert service.rows(f"SELECT count(*) FROM blobs WHERE digest IN ({listed})") == [(9,)]
