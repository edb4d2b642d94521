"""The figures of Gaussian process students on a small task, and their means, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from lab.studies.learners import gaussian
from lab.studies.learners.gaussian import Task


@pytest.mark.long
def test_every_method_is_measured_on_rows_that_it_has_not_seen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gaussian, "ROWS", 60)
    rng = np.random.default_rng(0)
    y = np.repeat([1, 2], 75)
    X = rng.normal(size=(150, 2)) + 3.0 * y[:, None]
    task = Task("toy", X, y, rng.normal(size=(150, 2)))
    data, rest = gaussian.drawn(task, 3)
    assert data.n == 60
    assert {tuple(row) for row in data.X} | {tuple(row) for row in X[rest]} == {tuple(row) for row in X}
    assert data.n + len(rest) == 150
    figures = gaussian.measure_split(task, 3)
    assert list(figures) == ["svc", "svm", "gsvm", "svm+", "gpc", "gpc+", "gpc+noise"]
    for one in figures.values():
        assert one.error < 0.1
        assert 0.0 < one.log_loss < 0.3
    assert 0.0 < gaussian.longest_fit(task) < 60.0
