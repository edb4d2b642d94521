"""ODMC and ssODM: what they find, and what they refuse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import make_moons

from core.data.dataset import LabelledData
from core.errors import Cancelled, InvalidProblem
from core.labelling.base import Labelling
from core.labelling.choice import Candidate, held_out_errors
from core.labelling.odmc import ODMC
from core.labelling.ssodm import SsODM
from core.run import Run
from core.solvers.labels.label_set import LabelSet
from core.solvers.labels.margin_labels import LabelProblem
from core.training.pipeline import prepare


def blobs(K=3, each=30, seed=0):
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(K), each)
    X = 6.0 * np.eye(K)[y] + rng.normal(size=(len(y), K))
    return LabelledData(X, y.astype(np.int32), tuple("abcdefgh"[:K]))


def unlabelled(data: LabelledData, kept=()) -> LabelledData:
    y = np.full(data.n, -1, dtype=np.int32)
    y[list(kept)] = data.y[list(kept)]
    return replace(data, y=y, classes=data.classes if len(kept) else ())


def agreement(codes, truth) -> float:
    """The share of rows on which the clusters agree with the classes, the best naming of clusters."""
    from scipy.optimize import linear_sum_assignment

    table = np.zeros((codes.max() + 1, truth.max() + 1))
    np.add.at(table, (codes, truth), 1)
    return float(table[linear_sum_assignment(-table)].sum() / len(truth))


def test_clusters_are_the_groups_of_rows():
    data = blobs()
    found = ODMC(clusters=3).label(unlabelled(data), Run())
    assert agreement(found.codes, data.y) == 1.0
    assert found.classes == ("cluster 1", "cluster 2", "cluster 3")
    assert not np.isnan(found.certainty).any()
    assert ((found.certainty >= 0) & (found.certainty <= 1)).all()
    assert found.report()["class_counts"] == dict.fromkeys(found.classes, 30)


@pytest.mark.parametrize(
    ("space", "least"), [("auto", 0.85), ("graph", 0.85), ("both", 0.75), ("kernel", 0.75), ("linear", 0.75)]
)
def test_few_labels_are_enough_where_near_rows_are_of_one_class(space: str, least: float):
    X, y = make_moons(120, noise=0.05, random_state=0)
    data = LabelledData(X, y.astype(np.int32), ("up", "down"))
    few = [*np.flatnonzero(y == 0)[:3], *np.flatnonzero(y == 1)[:3]]
    found = SsODM(space=space).label(unlabelled(data, few), Run())
    assert (found.codes == y).mean() >= least
    assert np.isnan(found.certainty[few]).all()
    assert np.isnan(found.certainty).sum() == 6


def test_space_and_loss_weight_are_those_that_err_least_on_labels_they_did_not_learn():
    data = blobs()
    noise = np.random.default_rng(0).normal(size=data.X.shape)
    none = np.empty((0, 2), dtype=np.intp)
    labels = LabelSet(data.y, 3, np.zeros(3, dtype=np.intp), none, none)

    weights = set()

    def problem(rows, C_known):
        weights.add(C_known)
        return LabelProblem(rows, np.full(len(rows), C_known), labels, 0.2, 0.5)

    bad, good, heavy = Candidate("graph", 1.0), Candidate("kernel", 1.0), Candidate("kernel", 9.0)
    errors = held_out_errors({bad: noise, good: data.X, heavy: data.X}, data.y, problem, Run())
    assert weights == {1.0, 9.0}
    assert max(errors[good], errors[heavy]) <= 2
    assert errors[bad] >= 30
    once = held_out_errors({bad: noise[[0, 30, 60]]}, data.y[[0, 30, 60]], problem, Run())
    assert once == {bad: 0}


def test_what_is_given_of_space_and_loss_weight_is_not_searched():
    data = unlabelled(blobs(), [0, 1, 30, 31, 60, 61])
    both = SsODM().label(data, Run()).report()
    best = min(both["tried"], key=lambda one: one["errors"])
    assert (both["space"], both["C_known"]) == (best["space"], best["C_known"])
    assert len(both["tried"]) == 6
    weights = SsODM(space="both").label(data, Run()).report()
    assert {(one["space"], one["C_known"]) for one in weights["tried"]} == {("both", 100.0), ("both", 1000.0)}
    spaces = SsODM(C_known=30.0).label(data, Run()).report()
    assert {(one["space"], one["C_known"]) for one in spaces["tried"]} == {
        ("graph", 30.0),
        ("both", 30.0),
        ("kernel", 30.0),
    }
    assert "tried" not in SsODM(space="both", C_known=30.0).label(data, Run()).report()


def test_links_decide_what_a_cluster_is():
    data = unlabelled(blobs(2, 20))
    free = ODMC().label(data, Run()).codes
    inner, outer = np.flatnonzero(free == free[0])[:2], int(np.flatnonzero(free != free[0])[0])
    linked = ODMC(must_link=(f"0-{outer}",), cannot_link=(f"{inner[0]}-{inner[1]}",)).label(data, Run()).codes
    assert linked[0] == linked[outer]
    assert linked[inner[0]] != linked[inner[1]]


def test_labels_that_are_given_stay_and_balance_holds():
    data = blobs(3, 20)
    wrong = replace(data, y=np.roll(data.y, 1))
    few = unlabelled(wrong, [0, 1, 20, 21, 40, 41])
    found = SsODM(balance=1.0).label(few, Run())
    np.testing.assert_array_equal(found.codes[[0, 1, 20, 21, 40, 41]], wrong.y[[0, 1, 20, 21, 40, 41]])
    free = few.y < 0
    assert (np.bincount(found.codes[free]) == 18).all()


def test_the_same_seed_gives_the_same_bytes_and_they_can_be_read():
    data = unlabelled(blobs())
    found = ODMC(clusters=3).label(data, Run(seed=5))
    again = ODMC(clusters=3).label(data, Run(seed=5))
    assert found.to_bytes() == again.to_bytes()
    read = Labelling.from_bytes(found.to_bytes(), found.classes)
    np.testing.assert_array_equal(read.codes, found.codes)
    assert read.report() == found.report() | {"seconds": 0.0}
    labelled = read.applied_to(data)
    assert (labelled.K, labelled.unlabelled) == (3, 0)


def test_sparse_rows_are_labelled():
    data = blobs()
    sparse = replace(unlabelled(data, [0, 1, 30, 31, 60, 61]), X=sp.csr_array(data.X))
    assert (SsODM().label(sparse, Run()).codes == data.y).mean() > 0.95


def test_progress_is_reported_and_a_cancel_ends_it():
    steps = []
    ODMC(clusters=3).label(unlabelled(blobs()), Run(progress=steps.append).stage("labelling"))
    assert {step.stage for step in steps} == {"labelling"}
    assert steps[-1].done == steps[-1].total
    with pytest.raises(Cancelled):
        ODMC(clusters=3).label(unlabelled(blobs()), Run(should_cancel=lambda: True))


def test_rows_that_cannot_be_labelled_are_refused():
    data = blobs()
    for rows in (data, unlabelled(data), unlabelled(data, [0, 1, 30, 31])):
        with pytest.raises(InvalidProblem, match="some rows must have no label"):
            SsODM().label(rows, Run())
    with pytest.raises(InvalidProblem, match="cannot be divided"):
        ODMC(clusters=100).label(unlabelled(blobs(3, 5)), Run())
    with pytest.raises(InvalidProblem, match="No row has a label"):
        prepare(unlabelled(data))
