"""Small problems shared by the tests of the core."""

from __future__ import annotations

import numpy as np
import pytest

from core.data.dataset import LabelledData


def blobs(n: int, K: int = 4, d: int = 5, *, seed: int = 0, spread: float = 1.3):
    """Rows around K centres, classes of very different sizes, and their labels as text."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(K, d)) * 2.0
    shares = np.arange(1, K + 1) / np.arange(1, K + 1).sum()
    codes = np.concatenate([np.arange(K).repeat(2), rng.choice(K, size=n - 2 * K, p=shares)])
    X = centres[codes] + spread * rng.normal(size=(n, d))
    return X, np.array([f"class {code}" for code in codes])


@pytest.fixture(scope="session")
def training_part() -> LabelledData:
    return LabelledData.from_arrays(*blobs(240))


@pytest.fixture(scope="session")
def test_part(training_part: LabelledData) -> LabelledData:
    X, labels = blobs(160, seed=1)
    return LabelledData.with_codes(X, labels, training_part.classes)
