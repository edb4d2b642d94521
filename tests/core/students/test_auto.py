"""The comparison of families: what is tried, what is left out and why, and what is taken."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import scipy.sparse as sp

from core.data.dataset import LabelledData
from core.errors import InvalidProblem
from core.features.spec import FeatureSpec
from core.packed import PackedStudent
from core.run import Run
from core.students.auto import CANDIDATES, FAMILIES, Auto
from core.students.base import Need, StudentSpec
from core.students.gated import GSVM
from core.students.polytope import Polytope
from core.teachers.ssvm import SSVM
from core.training.config import TrainingConfig
from core.training.pipeline import prepare
from core.training.student_training import train_student
from core.types import FloatArray
from tests.refusals import at_fault

FEATURES = FeatureSpec("nystroem", 20)


@dataclass
class Scorer:
    """Scores of a family that are its F, of which some are given; the others have 0."""

    f1_of: dict[str, float]
    offers: frozenset[Need] = frozenset({"gate_weights", "dense"})
    n_rows: int = 10
    asked: list[StudentSpec] = field(default_factory=list)

    def scores(self, spec: StudentSpec) -> FloatArray:
        self.asked.append(spec)
        return np.full(self.n_rows, self.f1_of.get(spec.name, 0.0))

    def f1(self, scores: FloatArray) -> float:
        return float(scores[0])


def test_the_family_with_the_largest_f_is_taken_and_the_first_of_equal_ones():
    scorer = Scorer({"gsvm": 0.7, "polytope": 0.9, "odm": 0.9})
    selection = Auto().select(scorer, Run())
    assert selection.spec == next(spec for spec in CANDIDATES if isinstance(spec, Polytope))
    np.testing.assert_array_equal(selection.held_out_scores, np.full(10, 0.9))
    assert selection.report.summary() == {
        "family": "polytope",
        "score": 0.9,
        "second_family": "odm",
        "second_score": 0.9,
        "points": len(CANDIDATES) - 2,
        "left_out": 2,
    }
    assert selection.report.metadata() == {"chosen_by": "auto", "chosen_f1": 0.9}


def test_what_needs_more_than_there_is_is_left_out_with_the_reason():
    scorer = Scorer({}, offers=frozenset({"dense"}))
    selection = Auto().select(scorer, Run())
    assert {spec.name for spec in scorer.asked} == {"gpc", "multiview", "compact"}
    reasons = {one["family"]: one["left_out"] for one in selection.report.trace()}
    assert reasons["gsvm"] == "it needs a teacher that is linear in the features"
    assert reasons["gpc+"] == "it needs privileged columns"


def test_nothing_further_is_begun_when_the_time_is_over():
    scorer = Scorer({})
    selection = Auto(seconds=1e-9).select(scorer, Run())
    assert scorer.asked == [CANDIDATES[0]]
    assert "time" in selection.report.trace()[1]["left_out"]


def test_only_the_families_that_are_named_are_compared():
    scorer = Scorer({})
    Auto(families=("odm",)).select(scorer, Run())
    assert {spec.name for spec in scorer.asked} == {"odm"}
    with pytest.raises(InvalidProblem, match="must be of gsvm"):
        Auto(families=("forest",))


def test_families_none_of_which_fits_are_an_error():
    with at_fault(InvalidProblem, "nothing_fits", match="no family of students fits the data: gpc: "):
        Auto(families=("gpc",)).select(Scorer({}, offers=frozenset()), Run())


def test_a_family_is_not_fitted_before_it_is_chosen():
    with at_fault(InvalidProblem, "no_held_out_rows"):
        Auto().fit(None, Run())  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize("sparse", [False, True])
def test_the_chosen_family_is_trained_and_packed(training_part, test_part, sparse: bool):
    rows = sp.csr_array(training_part.X) if sparse else training_part.X
    data = LabelledData.from_arrays(rows, np.array(training_part.classes)[training_part.y])
    features = FeatureSpec("linear") if sparse else FEATURES
    config = TrainingConfig(
        features=features,
        teacher=SSVM(C=100.0),
        students=(Auto(families=("gsvm", "polytope", "gpc")),),
        folds=2,
        threshold="f1",
    )
    prepared = prepare(data, config)
    for target in range(2):
        student = train_student(prepared, target, run=Run(n_threads=1))
        assert student.method == "auto"
        assert student.chosen is not None
        assert student.trace is not None
        assert student.chosen["family"] == student.spec.name == student.packed.metadata["method"]
        points = student.trace["points"]
        assert [point["family"] for point in points if not point["left_out"]] == [
            spec.name
            for spec in CANDIDATES
            if spec.name in ("gsvm", "polytope") or (spec.name == "gpc" and not sparse)
        ]
        assert student.chosen["score"] == max(point["f1"] or 0.0 for point in points)
        again = PackedStudent.from_bytes(student.packed.to_bytes())
        np.testing.assert_array_equal(again.scores(test_part.X), student.packed.scores(test_part.X))


def test_the_families_are_those_of_the_candidates_and_have_settings_within_bounds():
    assert FAMILIES[0] == GSVM.name
    assert len({(spec.name, str(spec)) for spec in CANDIDATES}) == len(CANDIDATES)
