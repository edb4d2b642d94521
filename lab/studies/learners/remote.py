"""A remote teacher against the matrix of its scores: MLServer with a classifier of letter.

The training part of letter is dealt into thirds as in `outside_scores`. MLServer's classifier learns the
first; its probabilities of the second are asked for over HTTP as a job asks for them, and also computed
beside the server; the third is measured.

``remote``: rows, the largest difference between the two matrices, seconds of asking for 1000 rows, and the
mean F over the classes in per cent of students of either.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from app.domain.origins import Origin
from app.domain.remote_teacher import RemoteScores
from app.remote.connection import RemoteConnection
from app.remote.inference import RemoteModel
from core.data.dataset import LabelledData
from core.data.extras import RawExtras
from core.features.spec import FeatureSpec
from core.run import Run
from core.teachers.outside import OutsideScores
from core.training.config import TrainingConfig
from core.training.pipeline import train
from lab.studies.learners.outside_scores import STUDENTS, thirds
from tests.system.environments import environment
from tests.system.mlserver import FIT, REQUIREMENTS, serve_mlserver


def measure(quick: bool) -> dict[str, Any]:
    """The figures above. quick: thirds of 800 rows. Raises Offline and NotInstallable."""
    first, second, third = thirds(800 if quick else 5000)
    home = environment(REQUIREMENTS)
    with tempfile.TemporaryDirectory(prefix="stms-remote-") as name:
        folder = Path(name)
        np.savez(folder / "rows.npz", X=first[0], y=first[1], asked=second[0])
        subprocess.run([home / "bin" / "python", "-c", FIT], cwd=folder, check=True, capture_output=True)
        with np.load(folder / "scores.npz", allow_pickle=False) as arrays:
            matrix, classes = arrays["asked"], arrays["classes"]
        with serve_mlserver(home, folder, None) as origin:
            began = time.perf_counter()
            asked = ask(origin, second[0], len(classes))
            seconds = time.perf_counter() - began
    features = FeatureSpec("nystroem", 150 if quick else 600)
    config = TrainingConfig(features=features, teacher=OutsideScores(), students=tuple(STUDENTS.values()))
    test = LabelledData.from_arrays(*third)

    def students(scores: Any) -> dict[str, float]:
        data = LabelledData.from_arrays(*second, extras=RawExtras(teacher_scores=scores))
        evaluation = train(data, config, test=test, run=Run(n_threads=1)).evaluation
        assert evaluation is not None
        return {spec.name: 100.0 * (evaluation.mean(spec.name).f1 or 0.0) for spec in STUDENTS.values()}

    return {
        "remote": {
            "rows": len(second[1]),
            "largest_difference": float(np.abs(asked - matrix).max()),
            "seconds_per_1000_rows": 1000.0 * seconds / len(asked),
            "students": students(asked),
            "matrix": students(matrix),
        }
    }


def ask(origin: str, rows: Any, classes: int) -> Any:
    """Probabilities (n, K) of rows (n, d), batch by batch."""
    teacher = RemoteScores(url=origin, model="peer", output_name="predict_proba")
    connection = RemoteConnection(Origin.of(origin), ["127.0.0.1"], teacher.timeout)
    model = RemoteModel(teacher, connection, classes, print)
    size = teacher.rows_of_a_request(rows.shape[1], classes)
    try:
        return np.vstack([model.scores(rows[first : first + size]) for first in range(0, len(rows), size)])
    finally:
        connection.close()
