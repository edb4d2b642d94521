"""The order in which people look at samples."""

from __future__ import annotations

import numpy as np
import pytest

from core.errors import InvalidProblem
from core.monitoring.estimates import Samples, precision, recall
from core.monitoring.review import Cell, review_order


def test_the_order_is_that_of_neyman_s_allocation():
    cells = [Cell(1000, 0, 1.0, 0.5), Cell(1000, 0, 1.0, 0.1), Cell(1000, 0, 3.0, 0.5)]
    taken = np.bincount(review_order(cells, 500), minlength=3)
    deviations = np.array([0.5, 0.3, 1.5])
    np.testing.assert_allclose(taken / 500, deviations / deviations.sum(), atol=0.01)


def test_an_empty_cell_is_left_out_and_a_small_one_ends():
    cells = [Cell(0, 0, 5.0, 0.5), Cell(2, 0, 5.0, 0.5), Cell(3, 50, 1.0, 0.5)]
    assert sorted(review_order(cells, 100)) == [1, 1, 2, 2, 2]
    assert review_order(cells, 1) == [1]
    assert review_order([], 5) == []


@pytest.mark.parametrize(
    "values", [(-1, 0, 1.0, 0.5), (1, -1, 1.0, 0.5), (1, 0, -1.0, 0.5), (1, 0, 1.0, 1.5)]
)
def test_impossible_cells_are_refused(values: tuple[int, int, float, float]):
    with pytest.raises(InvalidProblem):
        Cell(*values)


def test_rates_stay_right_where_people_stop_in_the_order():
    """Recall is 80 % and precision 75 %; people answer 150 of some 3000 samples, in the order of use."""
    rng = np.random.default_rng(3)
    recalls, precisions = [], []
    for _ in range(60):
        n = 20_000
        p = np.where(rng.random(n) < 0.9, rng.beta(0.3, 12.0, n), rng.beta(4.0, 2.0, n))
        truth, accepted = rng.random(n) < p, p >= 0.6
        q = np.where(accepted, 0.5, 0.1)
        sampled = rng.random(n) < q
        p, truth, accepted, q = p[sampled], truth[sampled], accepted[sampled], q[sampled]
        place = np.where(accepted, 0, 1 + np.minimum((5 * p).astype(int), 4))
        expected = (p / q).sum()
        cells = [
            Cell(
                int((place == k).sum()),
                0,
                float((1 / q[place == k]).sum() / expected),
                float(p[place == k].mean()) if (place == k).any() else 0.0,
            )
            for k in range(6)
        ]
        left = [list(rng.permutation(np.flatnonzero(place == k))) for k in range(6)]
        known = np.zeros(len(p), dtype=bool)
        for k in review_order(cells, 150):
            known[left[k].pop()] = True
        samples = Samples(accepted, truth, known, q, p)
        population = np.where(truth, 1 / q, 0.0)
        recalls.append(recall(samples).interval.estimate - (population * accepted).sum() / population.sum())
        precisions.append(precision(samples).interval.estimate - truth[accepted].mean())
    assert abs(np.mean(recalls)) < 3 * np.std(recalls) / np.sqrt(60) + 0.01
    assert abs(np.mean(precisions)) < 3 * np.std(precisions) / np.sqrt(60) + 0.01
