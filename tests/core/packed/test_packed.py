import hashlib
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics.pairwise import rbf_kernel

from core.data.scaling_kind import Scaling
from core.errors import InvalidProblem
from core.features.maps import fit_feature_map
from core.features.spec import FeatureSpec
from core.packed import (
    FourierBasis,
    LinearBasis,
    LinearForm,
    PackedMap,
    PackedStudent,
    PackedTeacher,
    PolytopeForm,
    RbfBasis,
)
from core.packed.student import sparse_scorer
from tests.refusals import at_fault

KINDS = ["linear", "nystroem", "fourier"]


def student(packed_map=None, **changes):
    packed_map = packed_map or LinearBasis(3)
    generator = np.random.default_rng(0)
    parts = {
        "map": packed_map,
        "coef": generator.normal(size=packed_map.n_basis),
        "intercept": 0.25,
        "gate_coef": generator.normal(size=packed_map.n_basis),
        "gate_intercept": -1.5,
        "threshold": 0.1,
        "label": "Gänse 鵞",
        "metadata": {"seed": 3, "C": 1e5, "version": "1.0"},
    }
    parts |= changes
    linear = [parts.pop(name) for name in ("coef", "intercept", "gate_coef", "gate_intercept")]
    return PackedStudent(form=LinearForm(*linear), **parts)


def rbf_map(p=6, d=3, seed=1):
    generator = np.random.default_rng(seed)
    return RbfBasis(generator.normal(size=d), generator.uniform(0.2, 1.0, d), generator.normal(size=(p, d)))


def fourier_map(p=6, d=3, seed=2):
    generator = np.random.default_rng(seed)
    return FourierBasis(generator.normal(size=(p, d)), generator.uniform(0, 6, p))


MAPS = {"linear": LinearBasis(3), "rbf": rbf_map(), "fourier": fourier_map()}


@st.composite
def fitted(draw):
    """Raw rows of very different column sizes, a fitted map on them and two weight vectors."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, d = draw(st.integers(3, 60)), draw(st.integers(1, 6))
    X = generator.normal(draw(st.floats(-10, 10)), 1.0, (n, d)) * 10.0 ** generator.uniform(-3, 3, d)
    if draw(st.booleans()):
        X[:, 0] = X[0, 0]
    sparse = draw(st.booleans())
    X = sp.csr_array(np.where(generator.random((n, d)) < 0.5, 0.0, X)) if sparse else X
    spec = FeatureSpec(
        kind=draw(st.sampled_from(KINDS)),
        n_components=draw(st.integers(1, 40)),
        gamma=draw(st.none() | st.floats(1e-3, 10.0)),
        scaling=draw(st.sampled_from(list(Scaling))),
    )
    feature_map = fit_feature_map(X, spec, draw(st.integers(0, 99)))
    weights = generator.normal(size=(2, feature_map.n_features_out))
    return X, feature_map, weights


@settings(max_examples=150, deadline=None)
@given(fitted())
def test_packed_scores_equal_scores_on_the_features_for_every_map_and_scaling(case):
    X, feature_map, weights = case
    features = feature_map.transform(X)
    dense = X.toarray() if sp.issparse(X) else X
    packed_map, coef, intercept = feature_map.fold(weights)

    packed = student(
        packed_map, coef=coef[0], intercept=intercept[0], gate_coef=coef[1], gate_intercept=intercept[1]
    )

    expected = features @ weights.T
    # Of the sizes of the summed terms, as a sum may cancel. A distance that is small beside the norms loses
    # digits, and a nearly singular kernel matrix magnifies that.
    atol = 1e-6 * (abs(features) @ np.abs(weights.T)).max()
    np.testing.assert_allclose(packed.scores(dense), expected[:, 0], rtol=1e-9, atol=atol)
    np.testing.assert_allclose(packed.gate(dense), expected[:, 1], rtol=1e-9, atol=atol)
    np.testing.assert_allclose(
        packed.rejection(dense), expected[:, 1] - expected[:, 0], rtol=1e-9, atol=2 * atol
    )
    one_by_one = [packed.score(row) for row in dense]
    np.testing.assert_allclose(one_by_one, expected[:, 0], rtol=1e-9, atol=atol)
    if sp.issparse(X):
        from_sparse = packed.scores_sparse(X.indices, X.data, X.indptr)
        np.testing.assert_allclose(from_sparse, expected[:, 0], rtol=1e-9, atol=atol)


class TestMaps:
    def test_rbf_values_equal_those_of_scikit_learn(self):
        basis = rbf_map()
        X = np.random.default_rng(3).normal(size=(20, 3))

        expected = rbf_kernel((X - basis.shift) * basis.scale, basis.landmarks, gamma=1.0)

        np.testing.assert_allclose(basis.basis(X), expected, rtol=1e-12)

    def test_fourier_values_are_cosines(self):
        basis = fourier_map()
        X = np.random.default_rng(3).normal(size=(20, 3))

        expected = [
            [np.cos(w @ x + b) for w, b in zip(basis.projections, basis.phases, strict=True)] for x in X
        ]

        np.testing.assert_allclose(basis.basis(X), expected, atol=1e-12)

    @pytest.mark.parametrize("kind", list(MAPS))
    @pytest.mark.parametrize("size", [1e16, 1e60, 9e99])
    def test_far_rows_give_finite_values_without_a_warning(self, kind, size):
        x = np.array([size, -size, size])

        for values in (MAPS[kind].row(x), MAPS[kind].basis(x[np.newaxis])[0]):
            assert np.isfinite(values).all()
            if kind == "rbf":
                np.testing.assert_array_equal(values, 0.0)

    @pytest.mark.parametrize(
        "build",
        [
            lambda: LinearBasis(0),
            lambda: RbfBasis(np.zeros(2), np.ones(3), np.ones((4, 3))),
            lambda: RbfBasis(np.zeros(3), np.ones(3), np.ones((0, 3))),
            lambda: RbfBasis(np.zeros(3), np.full(3, np.nan), np.ones((4, 3))),
            lambda: RbfBasis(np.zeros(3), np.ones(3), np.full((4, 3), 1e200)),
            lambda: FourierBasis(np.ones((4, 3)), np.zeros(3)),
            lambda: FourierBasis(np.ones(4), np.zeros(4)),
        ],
    )
    def test_parts_that_do_not_fit_are_refused(self, build):
        with pytest.raises(InvalidProblem):
            build()

    def test_every_map_is_a_packed_map(self):
        assert all(isinstance(packed_map, PackedMap) for packed_map in MAPS.values())


class TestStudent:
    def test_the_decision_is_the_score_against_the_threshold(self):
        packed = student(coef=[1.0, 0.0, 0.0], intercept=0.0, threshold=2.0)

        decisions = packed.decide([[1.9, 5, 5], [2.0, 5, 5], [2.1, 5, 5]])

        np.testing.assert_array_equal(decisions, [False, True, True])

    @pytest.mark.parametrize("kind", list(MAPS))
    def test_a_row_of_any_number_type_has_the_same_score(self, kind):
        packed = student(MAPS[kind])

        scores = {packed.score(x) for x in ([1, 2, 3], (1.0, 2.0, 3.0), np.array([1, 2, 3], np.float32))}

        assert len(scores) == 1

    @pytest.mark.parametrize("kind", list(MAPS))
    @pytest.mark.parametrize(
        ("x", "code", "column"),
        [
            ([1.0, np.nan, 0.0], "not_finite", 1),
            ([1.0, 0.0, np.inf], "not_finite", 2),
            ([-np.inf, 0.0, np.inf], "not_finite", 0),
            ([1e200, 0.0, 0.0], "too_large", 0),
            ([1e120, 0.0, 0.0], "too_large", 0),
            ([1.0, None, 0.0], "not_finite", 1),
            ([1.0, 2.0], "wrong_columns", None),
            ([], "wrong_columns", None),
            ([[1.0, 2.0, 3.0]], "wrong_shape", None),
            (3.0, "wrong_shape", None),
            (["a", "b", "c"], "not_numeric", None),
            ([1.0, [2.0], 3.0], "ragged", None),
        ],
    )
    def test_an_unusable_row_is_refused_with_its_column(self, kind, x, code, column):
        with pytest.raises(InvalidProblem) as caught:
            student(MAPS[kind]).score(x)

        fault = caught.value.faults[0]
        assert (fault.field, fault.code, fault.column) == ("x", code, column)

    @pytest.mark.parametrize("method", ["scores", "gate", "rejection", "decide"])
    def test_unusable_rows_are_refused_with_row_and_column(self, method):
        X = np.ones((4, 3))
        X[2, 1] = np.inf

        with pytest.raises(InvalidProblem) as caught:
            getattr(student(rbf_map()), method)(X)

        fault = caught.value.faults[0]
        assert (fault.field, fault.row, fault.column) == ("X", 2, 1)

    def test_a_row_close_to_the_largest_magnitude_is_looked_at_and_accepted(self):
        packed = student(coef=[1.0, 1.0, 1.0], intercept=0.0)

        assert packed.score([9e99, 9e99, 9e99]) == pytest.approx(2.7e100)

    def test_a_score_beyond_floating_point_is_an_error_not_infinity(self):
        packed = student(coef=[1e300, 0.0, 0.0])

        with pytest.raises(InvalidProblem, match="so large that no finite score"):
            packed.score([1e50, 0.0, 0.0])
        with pytest.raises(InvalidProblem, match="Row 1"):
            packed.scores([[1.0, 0.0, 0.0], [1e50, 0.0, 0.0]])

    def test_no_rows_have_no_scores(self):
        assert student().scores(np.zeros((0, 3))).shape == (0,)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("coef", [1.0, 2.0]),
            ("gate_coef", [1.0, np.nan, 2.0]),
            ("intercept", float("inf")),
            ("gate_intercept", "0"),
            ("threshold", True),
            ("label", 3),
            ("metadata", {"a": [1]}),
            ("metadata", {"a": float("nan")}),
            ("metadata", {"a": True}),
            ("metadata", {"a": 2**70}),
            ("metadata", {1: "a"}),
            ("metadata", "text"),
        ],
    )
    def test_parts_that_cannot_be_used_are_refused_by_name(self, name, value):
        with at_fault(InvalidProblem, field=name) as caught:
            student(**{name: value})

        if name == "metadata":
            assert caught.value.faults[0].code == ("not_a_mapping" if value == "text" else "bad_value")

    def test_its_arrays_cannot_be_written_to(self):
        with pytest.raises(ValueError, match="read-only"):
            student().form.coef[0] = 1.0

    def test_threads_that_share_a_student_get_the_scores_of_one_thread(self):
        packed = student(rbf_map(p=500))
        X = np.random.default_rng(5).normal(size=(300, 3))
        expected = [packed.score(x) for x in X]
        results = [None] * 4

        def work(slot):
            results[slot] = [packed.score(x) for x in X]

        threads = [threading.Thread(target=work, args=(slot,)) for slot in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert results == [expected] * 4


class TestSparseRows:
    @pytest.mark.parametrize("kind", list(MAPS))
    def test_sparse_rows_have_the_scores_of_dense_rows(self, kind):
        packed = student(MAPS[kind])
        X = np.array([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, -3.0]])
        table = sp.csr_array(X)

        scores = packed.scores_sparse(table.indices, table.data, table.indptr)

        np.testing.assert_allclose(scores, packed.scores(X), rtol=1e-12)

    @pytest.mark.parametrize("kind", list(MAPS))
    def test_one_row_needs_no_indptr_and_repeated_places_add_up(self, kind):
        packed = student(MAPS[kind])

        (score,) = packed.scores_sparse([2, 0, 2], [1.0, 5.0, 2.0])

        assert score == pytest.approx(packed.score([5.0, 0.0, 3.0]))

    def test_a_sparse_row_on_linear_features_reads_the_coefficients_of_its_columns_only(self):
        coef = np.full(500, np.nan)
        columns, values = np.array([3, 77, 410]), np.array([1.0, -2.0, 0.5])
        coef[columns] = [0.5, 1.0, 4.0]
        packed = PackedStudent(
            LinearBasis(500), LinearForm(np.zeros(500), 0.25, np.zeros(500), 0.0), 0.0, "a"
        )
        object.__setattr__(packed.form, "coef", coef)

        (score,) = packed.scores_sparse(columns, values)

        assert score == 0.5 - 2.0 + 2.0 + 0.25
        # The row written out does reach the others, as 0 times NaN is NaN: the check is effective.
        assert np.isnan(np.bincount(columns, values, 500) @ coef)

    @pytest.mark.parametrize("kind", list(MAPS))
    def test_empty_rows_and_no_rows_are_fine(self, kind):
        packed = student(MAPS[kind])

        (score,) = packed.scores_sparse([], [])

        assert score == pytest.approx(packed.score([0.0, 0.0, 0.0]))
        assert packed.scores_sparse([], [], [0]).shape == (0,)

    @pytest.mark.parametrize(
        ("arguments", "field"),
        [
            (([3], [1.0]), "indices"),
            (([-1], [1.0]), "indices"),
            (([0.5], [1.0]), "indices"),
            (([[0]], [1.0]), "indices"),
            (([0, 1], [1.0]), "values"),
            (([0], [np.nan]), "values"),
            (([0], [1.0], [0, 2]), "indptr"),
            (([0], [1.0], [1, 1]), "indptr"),
            (([0, 1], [1.0, 1.0], [0, 2, 1, 2]), "indptr"),
            (([], [], []), "indptr"),
        ],
    )
    def test_unusable_triples_are_refused_by_name(self, arguments, field):
        with at_fault(InvalidProblem, field=field):
            student().scores_sparse(*arguments)

    @pytest.mark.parametrize("indices", [[0.5], [[0]], ["0"]])
    def test_places_that_are_no_whole_numbers_are_refused(self, indices):
        with at_fault(InvalidProblem, "not_whole"):
            student().scores_sparse(indices, [1.0])

    @pytest.mark.parametrize("form", ["linear", "polytope"])
    def test_the_scorer_of_one_row_of_stored_values_is_the_student(self, form):
        rng = np.random.default_rng(5)
        coef = rng.normal(size=(1 if form == "linear" else 3, 400))
        both = {
            "linear": LinearForm(coef[0], 0.5, coef[0], 0.0),
            "polytope": PolytopeForm(coef, np.arange(len(coef)), coef[0], 0.0),
        }
        packed = PackedStudent(LinearBasis(400), both[form], 0.0, "a")
        ask = sparse_scorer(packed)
        for columns in ([], [7], [3, 399, 3], list(range(300))):
            values = rng.normal(size=len(columns)).tolist()
            (expected,) = packed.scores_sparse(columns, values)
            assert ask(columns, values) == pytest.approx(expected, rel=1e-12)
        for columns, values in (
            ([400], [1.0]),
            ([-1], [1.0]),
            ([10**30], [1.0]),
            ([0, 1], [1.0]),
            ([0], [1e300]),
        ):
            with pytest.raises(InvalidProblem) as slow:
                packed.scores_sparse(columns, values)
            with pytest.raises(InvalidProblem) as quick:
                ask(columns, values)
            assert quick.value.faults == slow.value.faults

    def test_only_linear_maps_have_a_scorer_of_stored_values(self):
        assert [sparse_scorer(student(MAPS[kind])) is None for kind in MAPS] == [
            kind != "linear" for kind in MAPS
        ]


class TestTeacher:
    def teacher(self, K=7, seed=0):
        generator = np.random.default_rng(seed)
        return PackedTeacher(
            rbf_map(),
            generator.normal(size=(K, 6)),
            generator.normal(size=K),
            tuple(f"c{k}" for k in range(K)),
        )

    def test_it_predicts_the_class_of_the_largest_score(self):
        teacher = self.teacher()
        X = np.random.default_rng(1).normal(size=(30, 3))

        scores = teacher.scores(X)

        assert scores.shape == (30, 7)
        np.testing.assert_allclose(scores, teacher.map.basis(X) @ teacher.coef.T + teacher.intercept)
        np.testing.assert_array_equal(teacher.predict(X), scores.argmax(axis=1))
        np.testing.assert_allclose(teacher.class_score(X, 4), scores[:, 4], rtol=1e-12, atol=1e-12)

    def test_the_traversal_agrees_with_the_prediction_and_stops_at_the_first_better_class(self):
        teacher = self.teacher()
        for x in np.random.default_rng(2).normal(size=(30, 3)):
            scores = teacher.scores(x[np.newaxis])[0]
            for y in range(7):
                decision, evaluated = teacher.is_class(x, y)

                others = [k for k in range(7) if k != y]
                better = [place for place, k in enumerate(others) if scores[k] > scores[y]]
                assert decision == (scores.argmax() == y)
                assert evaluated == (7 if decision else better[0] + 2)

    def test_equal_scores_go_to_the_first_class_in_both_ways(self):
        teacher = PackedTeacher(LinearBasis(1), np.ones((3, 1)), np.zeros(3), ("a", "b", "c"))

        assert teacher.predict([[2.0]])[0] == 0
        assert [teacher.is_class([2.0], y)[0] for y in range(3)] == [True, False, False]

    @pytest.mark.parametrize("y", [-1, 7])
    def test_a_class_code_outside_is_refused(self, y):
        with pytest.raises(InvalidProblem, match="outside 0 to 6"):
            self.teacher().class_score(np.ones((1, 3)), y)
        with pytest.raises(InvalidProblem, match="outside 0 to 6"):
            self.teacher().is_class(np.ones(3), y)

    def test_rows_are_checked(self):
        with pytest.raises(InvalidProblem, match="X has 2 columns; 3 expected"):
            self.teacher().predict([[1.0, 2.0]])
        with pytest.raises(InvalidProblem, match="x has NaN at row 0, column 1"):
            self.teacher().is_class([1.0, np.nan, 0.0], 0)

    def test_a_score_beyond_floating_point_is_an_error(self):
        teacher = PackedTeacher(LinearBasis(1), np.full((2, 1), 1e300), np.zeros(2), ("a", "b"))

        for call in (lambda: teacher.scores([[1e50]]), lambda: teacher.is_class([1e50], 0)):
            with pytest.raises(InvalidProblem, match="so large"):
                call()

    @pytest.mark.parametrize("classes", [(), ("a",), ("a", "a"), ("a", 2)])
    def test_class_names_that_do_not_fit_are_refused(self, classes):
        with pytest.raises(InvalidProblem):
            PackedTeacher(LinearBasis(1), np.ones((2, 1)), np.zeros(2), classes)


def test_the_query_part_imports_no_training_code():
    script = (
        "import sys, core.packed\n"
        "heavy = {'scipy', 'sklearn', 'numba', 'joblib', 'pandas', 'threadpoolctl'}\n"
        "print(sorted(heavy & {name.partition('.')[0] for name in sys.modules}))"
    )

    output = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[3],
        check=True,
        capture_output=True,
        timeout=300,
    ).stdout

    assert output.strip() == b"[]"


def test_a_digest_is_the_sha256_of_the_bytes():
    packed = student()

    assert packed.digest == hashlib.sha256(packed.to_bytes()).hexdigest()


def test_a_student_survives_the_way_to_a_joblib_worker():
    packed = student(rbf_map())

    assert pickle.loads(pickle.dumps(packed)).to_bytes() == packed.to_bytes()
