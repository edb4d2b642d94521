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
