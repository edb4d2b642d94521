"""The figures of Gaussian process students on a small task, and their means, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.learners import gaussian
from benchmarks.learners.gaussian import Figures, Task


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


def test_differences_are_those_of_the_same_split():
    splits = [
        {"svm": Figures(0.1, 0.5), "gsvm": Figures(0.2, 0.4), "gpc": Figures(0.1 + gain, 0.3)}
        for gain in (0.01, 0.03)
    ]
    found = gaussian.summary(splits)
    assert found["gpc"]["error"] == pytest.approx([12.0, 1.96], abs=1e-4)
    assert found["gpc"]["error_less_svm"] == pytest.approx([2.0, 1.96], abs=1e-4)
    assert found["gsvm"]["error_less_gpc"] == pytest.approx([8.0, 1.96], abs=1e-4)
    assert found["gpc"]["log_loss_less_gsvm"] == pytest.approx([-0.1, 0.0], abs=1e-6)


def test_labels_with_probability_zero_cost_much_but_not_without_bound():
    yes = np.array([True, False])
    figures = gaussian._figures([yes], [np.array([0.0, 0.0])], [yes])
    assert figures.log_loss == pytest.approx(-np.log(1e-12) / 2)
