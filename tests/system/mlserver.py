"""MLServer with a scikit-learn classifier, in an environment of its own: a model server that is not ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.system.processes import Process, free_port

REQUIREMENTS: Final = Path(__file__).parent / "requirements" / "mlserver.txt"
"""What `tests.system.environments.environment` installs."""

FIT: Final = """
import joblib
import numpy as np
from sklearn.linear_model import LogisticRegression

with np.load("rows.npz") as file:
    fitted = LogisticRegression(max_iter=200).fit(file["X"], file["y"])
    asked = fitted.predict_proba(file["asked"])
np.savez("scores.npz", asked=asked, classes=fitted.classes_)
joblib.dump(fitted, "model.joblib")
"""
"""Fits a classifier to ``X`` and ``y`` of ``rows.npz``, and writes its probabilities of the rows ``asked``.

It runs in the environment of `REQUIREMENTS`.
"""


@contextmanager
def serve_mlserver(home: Path, folder: Path, core: int | None) -> Iterator[str]:
    """MLServer's scikit-learn runtime with ``model.joblib`` of a folder as model ``peer``; yields its origin.

    home: its environment. core: to pin it to, or None.
    """
    ports = [free_port() for _ in range(3)]
    settings: dict[str, Any] = dict(zip(("http_port", "grpc_port", "metrics_port"), ports, strict=True))
    settings |= {"host": "127.0.0.1", "parallel_workers": 0, "debug": False, "metrics_endpoint": None}
    model = {
        "name": "peer",
        "implementation": "mlserver_sklearn.SKLearnModel",
        "parameters": {"uri": "./model.joblib"},
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "model-settings.json").write_text(json.dumps(model))
    origin = f"http://127.0.0.1:{ports[0]}"
    command: list[str | Path] = [home / "bin" / "mlserver", "start", "."]
    with Process("mlserver", command, folder, cores=core, url=f"{origin}/v2/models/peer/ready"):
        yield origin
