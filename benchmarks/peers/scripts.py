"""Programs for the environments of other servers, as strings: our environment lacks what they import."""

from __future__ import annotations

from typing import Final

TRAIN: Final = """
import sys

import joblib
import numpy as np
from sklearn.linear_model import LogisticRegression

path, features = sys.argv[1], int(sys.argv[2])
generator = np.random.default_rng(0)
X = generator.normal(size=(500, features))
y = X @ generator.normal(size=features) > 0.0
joblib.dump(LogisticRegression().fit(X, y), path)
"""
"""Writes a classifier for MLServer's scikit-learn runtime. Arguments: PATH, FEATURES."""

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
"""Fits the same to ``X`` and ``y`` of ``rows.npz``, and writes its probabilities of the rows ``asked``."""

BENTO: Final = '''
import bentoml
import joblib
import numpy as np


@bentoml.service(workers=1)
class Peer:
    """Is it the class?"""

    def __init__(self) -> None:
        self._model = joblib.load("model.joblib")

    @bentoml.api
    def query(self, x: list[float]) -> bool:
        """One row."""
        return bool(self._model.predict(np.array([x]))[0])
'''
"""A BentoML service with that classifier."""
