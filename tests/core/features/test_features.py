import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.kernel_approximation import Nystroem
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.preprocessing import StandardScaler

from core.data.scaling import fit_standardisation
from core.data.scaling_kind import Scaling
from core.errors import InvalidPackage, InvalidProblem
from core.features.choice import FEWEST_LANDMARKS, USUAL_LANDMARKS, WIDE, choose_features
from core.features.landmarks import choose_landmarks, covering_landmarks
from core.features.maps import (
    FourierMap,
    LinearMap,
    NystroemMap,
    feature_map_from_bytes,
    fit_feature_map,
    scale_rule,
)
from core.features.spec import MAX_KERNEL_ROWS, FeatureSpec
from core.packed.codec import decode, encode

KINDS = ["linear", "nystroem", "fourier"]


def rows(n=80, d=5, seed=0):
    return np.random.default_rng(seed).normal(2.0, 3.0, (n, d))


def benchmark_set(name):
    folder = Path(os.environ.get("STMS_DATA", Path(__file__).parents[4] / "shared" / "data"))
    if not (folder / f"{name}.npz").exists():
        pytest.skip(f"the benchmark set {name} is not in {folder} (set STMS_DATA)")
    return np.load(folder / f"{name}.npz", allow_pickle=False)


class TestExactKernel:
    @pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
    def test_products_of_features_are_the_kernel_of_scikit_learn(self, make):
        X = rows(n=60)
        spec = FeatureSpec("kernel", gamma=0.05, scaling=Scaling.NONE)
        features = fit_feature_map(make(X), spec, 0).transform(make(X))[:, :-1]
        np.testing.assert_allclose(features @ features.T, rbf_kernel(X, gamma=0.05), atol=1e-8)

    def test_equal_rows_are_one_landmark(self):
        X = rows(n=20)
        fitted = fit_feature_map(np.vstack([X, X]), FeatureSpec("kernel"), 0)
        assert len(fitted.basis.landmarks) == 20

    def test_it_comes_back_from_its_bytes(self):
        fitted = fit_feature_map(rows(), FeatureSpec("kernel"), 0)
        restored = feature_map_from_bytes(fitted.to_bytes())
        np.testing.assert_array_equal(restored.transform(rows(seed=1)), fitted.transform(rows(seed=1)))

    def test_too_many_rows_are_refused(self):
        with pytest.raises(InvalidProblem) as caught:
            fit_feature_map(np.zeros((MAX_KERNEL_ROWS + 1, 1)), FeatureSpec("kernel"), 0)
        assert (caught.value.faults[0].field, caught.value.faults[0].code) == (
            "features.kind",
            "too_many_rows",
        )


class TestChoice:
    @pytest.mark.parametrize(
        ("X", "expected"),
        [
            (sp.csr_array((5000, 30_000)), {"kind": "linear"}),
            (np.empty((5000, WIDE + 1)), {"kind": "linear"}),
            (np.empty((USUAL_LANDMARKS, 3)), {"kind": "kernel"}),
            (np.empty((USUAL_LANDMARKS + 1, 3)), {"kind": "nystroem", "n_components": 1000}),
            (np.empty((50_000, 3)), {"kind": "nystroem", "n_components": 1000}),
            (np.empty((60_000, 3)), {"kind": "nystroem", "n_components": 833}),
            (np.empty((10**6, 1)), {"kind": "nystroem", "n_components": FEWEST_LANDMARKS}),
        ],
    )
    def test_auto_chooses_by_the_shape_of_the_rows_and_says_why(self, X, expected):
        chosen = choose_features(FeatureSpec("auto", gamma=0.5), X)
        values = chosen.as_dict()
        assert str(values.pop("reason")).endswith(".")
        assert values == expected
        assert chosen.spec.gamma == 0.5

    def test_a_kind_that_was_given_is_kept(self):
        spec = FeatureSpec("fourier", n_components=7)
        chosen = choose_features(spec, rows())
        assert chosen.spec is spec
        assert chosen.as_dict() == {"kind": "fourier", "n_components": 7}

    def test_sparse_rows_without_negative_values_are_weighed_by_rarity(self):
        counts, signed = sp.csr_array(np.diag([1.0, 2.0])), sp.csr_array(np.diag([1.0, -2.0]))
        for X, named, expected in (
            (counts, Scaling.ZSCORE, Scaling.IDF),
            (counts, Scaling.MINMAX, Scaling.MINMAX),
            (signed, Scaling.ZSCORE, Scaling.ZSCORE),
        ):
            assert choose_features(FeatureSpec("auto", scaling=named), X).spec.scaling is expected
        assert "(idf)" in choose_features(FeatureSpec("auto"), counts).reason
        assert choose_features(FeatureSpec("linear"), counts).spec.scaling is Scaling.ZSCORE

    def test_the_map_of_auto_is_the_map_of_the_chosen_kind(self):
        automatic, named = (fit_feature_map(rows(), FeatureSpec(kind), 3) for kind in ("auto", "kernel"))
        assert automatic.to_bytes() == named.to_bytes()


class TestSpec:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("kind", "rbf"),
            ("n_components", 0),
            ("n_components", 10**9),
            ("n_components", 2.5),
            ("gamma", 0.0),
            ("gamma", float("nan")),
            ("gamma", float("inf")),
            ("scaling", "robust"),
            ("dtype", "float16"),
        ],
    )
    def test_values_out_of_bounds_are_refused_by_name(self, name, value):
        with pytest.raises(InvalidProblem) as caught:
            FeatureSpec(**{name: value})

        assert [fault.field for fault in caught.value.faults] == [f"features.{name}"]

    def test_a_scaling_given_as_text_becomes_the_scaling(self):
        assert FeatureSpec(scaling="minmax").scaling is Scaling.MINMAX


class TestMaps:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_the_constant_one_is_the_last_feature(self, kind, dtype):
        X = rows()
        feature_map = fit_feature_map(X, FeatureSpec(kind=kind, n_components=7, dtype=dtype), 0)

        features = feature_map.transform(X)

        assert features.shape == (80, feature_map.n_features_out)
        assert features.dtype == dtype
        assert features.flags.c_contiguous
        np.testing.assert_array_equal(features[:, -1], 1.0)

    def test_linear_features_are_the_scaled_columns(self):
        X = rows()

        features = fit_feature_map(X, FeatureSpec(kind="linear"), 0).transform(X)

        np.testing.assert_allclose(
            features[:, :-1], StandardScaler().fit_transform(X), rtol=1e-12, atol=1e-12
        )

    def test_linear_features_of_sparse_rows_stay_sparse(self):
        X = sp.random_array((30, 6), density=0.4, rng=np.random.default_rng(0), format="csr")
        feature_map = fit_feature_map(X, FeatureSpec(kind="linear", dtype="float32"), 0)

        features = feature_map.transform(X)

        assert isinstance(features, sp.csr_array)
        assert features.dtype == np.float32
        np.testing.assert_allclose(features.toarray(), feature_map.transform(X.toarray()), rtol=1e-6)

    def test_as_many_landmarks_as_rows_give_the_exact_kernel(self):
        X = rows(40, 2)
        spec = FeatureSpec(kind="nystroem", n_components=40, gamma=2.0, scaling=Scaling.NONE)

        features = fit_feature_map(X, spec, 0).transform(X)[:, :-1]

        np.testing.assert_allclose(features @ features.T, rbf_kernel(X, gamma=2.0), atol=1e-8)

    def test_nystroem_features_approximate_the_kernel_no_worse_than_those_of_scikit_learn(self):
        X = rows(400, 4)
        exact = rbf_kernel(X, gamma=0.02)
        spec = FeatureSpec("nystroem", n_components=40, gamma=0.02, scaling=Scaling.NONE)
        reference = Nystroem(gamma=0.02, n_components=40, random_state=0).fit_transform(X)

        features = fit_feature_map(X, spec, 0).transform(X)[:, :-1]

        error = np.linalg.norm(features @ features.T - exact)
        assert error <= np.linalg.norm(reference @ reference.T - exact)

    def test_fourier_features_approximate_the_kernel(self):
        X = rows(50, 3)
        spec = FeatureSpec(kind="fourier", n_components=20_000, gamma=0.05, scaling=Scaling.NONE)

        features = fit_feature_map(X, spec, 0).transform(X)[:, :-1]

        np.testing.assert_allclose(features @ features.T, rbf_kernel(X, gamma=0.05), atol=0.04)

    def test_the_default_gamma_is_the_scale_rule(self):
        X = rows()
        standardisation = fit_standardisation(X, Scaling.NONE)

        assert scale_rule(X, standardisation) == pytest.approx(1.0 / X.var(axis=0).sum())

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("scaling", list(Scaling))
    @pytest.mark.parametrize("convert", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
    def test_rows_that_are_all_equal_give_finite_features(self, kind, scaling, convert):
        X = convert(np.full((5, 3), 7.0))

        features = fit_feature_map(X, FeatureSpec(kind=kind, n_components=4, scaling=scaling), 0).transform(X)

        dense = features.toarray() if sp.issparse(features) else features
        assert np.isfinite(dense).all()

    @pytest.mark.parametrize("kind", ["nystroem", "fourier"])
    def test_kernel_features_of_sparse_rows_equal_those_of_dense_rows(self, kind):
        X = sp.random_array((60, 9), density=0.3, rng=np.random.default_rng(1), format="csr")
        feature_map = fit_feature_map(X, FeatureSpec(kind=kind, n_components=20), 0)

        np.testing.assert_allclose(feature_map.transform(X), feature_map.transform(X.toarray()), atol=1e-9)

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_map_fitted_on_dense_rows_takes_sparse_rows(self, kind):
        X = rows()
        feature_map = fit_feature_map(X, FeatureSpec(kind=kind, n_components=10), 0)

        np.testing.assert_allclose(
            feature_map.transform(sp.csr_array(X)), feature_map.transform(X), atol=1e-12
        )

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_rows_are_told_apart_by_number_of_columns_and_finite_values(self, kind, dtype):
        feature_map = fit_feature_map(rows().astype(dtype), FeatureSpec(kind=kind, n_components=10), 0)

        with pytest.raises(InvalidProblem, match="X has 4 columns; 5 expected"):
            feature_map.transform(np.ones((2, 4), dtype))
        with pytest.raises(InvalidProblem, match="NaN at row 1, column 4"):
            feature_map.transform(np.array([[1, 1, 1, 1, 1], [1, 1, 1, 1, np.nan]], dtype))
        with pytest.raises(InvalidProblem, match="coef is 1 × 3"):
            feature_map.fold(np.ones((1, 3)))

    def test_far_from_the_origin_no_digits_are_lost(self):
        X = rows(60, 3)
        spec = FeatureSpec("nystroem", n_components=60, gamma=0.1, scaling=Scaling.NONE)

        near = fit_feature_map(X, spec, 0).transform(X)[:, :-1]
        far = fit_feature_map(X + 1e6, spec, 0).transform(X + 1e6)[:, :-1]

        np.testing.assert_allclose(far @ far.T, near @ near.T, atol=1e-7)


class TestLandmarks:
    def test_duplicates_are_no_landmarks_twice(self):
        X = np.repeat(rows(6, 2), 10, axis=0)

        for table in (X, sp.csr_array(X)):
            for choose in (choose_landmarks, covering_landmarks):
                landmarks = choose(table, 30, np.random.default_rng(0))

                assert len(landmarks) <= 6
                assert len(np.unique(landmarks, axis=0)) == len(landmarks)

    def test_centres_find_separate_groups(self):
        generator = np.random.default_rng(0)
        groups = np.arange(5.0)[:, np.newaxis] * 100.0
        X = (groups + generator.normal(size=(5, 200))).reshape(-1, 1)

        landmarks = choose_landmarks(X, 100, np.random.default_rng(1))

        assert all(np.abs(landmarks - group).min() < 1.0 for group in groups)

    def test_few_rows_among_many_have_a_landmark(self):
        X = np.random.default_rng(0).normal(size=(20_000, 2))
        X[7] = X[11_000] = [40.0, -40.0]

        plain, covering = (
            [
                np.abs(choose(X, 40, np.random.default_rng(seed)) - X[7]).sum(axis=1).min() < 1e-9
                for seed in range(10)
            ]
            for choose in (choose_landmarks, covering_landmarks)
        )

        assert sum(plain) < 5
        assert all(covering)

    @pytest.mark.parametrize("choose", [choose_landmarks, covering_landmarks])
    def test_equal_rows_have_one_landmark(self, choose):
        assert len(choose(np.ones((50, 3)), 20, np.random.default_rng(0))) == 1

    def test_sparse_landmarks_are_rows_of_the_table(self):
        X = sp.random_array((50, 8), density=0.3, rng=np.random.default_rng(2), format="csr")

        landmarks = choose_landmarks(X, 10, np.random.default_rng(0))

        dense = X.toarray()
        assert all((dense == landmark).all(axis=1).any() for landmark in landmarks)


class TestRepeatability:
    @pytest.mark.parametrize("kind", KINDS)
    def test_bytes_give_the_same_map_back(self, kind):
        X = rows()
        feature_map = fit_feature_map(X, FeatureSpec(kind=kind, n_components=30, dtype="float32"), 5)

        restored = feature_map_from_bytes(feature_map.to_bytes())

        assert type(restored) is type(feature_map)
        assert restored.to_bytes() == feature_map.to_bytes()
        np.testing.assert_array_equal(restored.transform(X), feature_map.transform(X))

    @pytest.mark.parametrize("kind", ["nystroem", "fourier"])
    def test_the_seed_decides(self, kind):
        X = rows()
        first, again, other = (
            fit_feature_map(X, FeatureSpec(kind=kind, n_components=20), seed).to_bytes() for seed in (1, 1, 2)
        )

        assert first == again
        assert first != other

    def test_another_process_with_other_threads_gives_the_same_bits(self):
        script = (
            "import hashlib, numpy as np\n"
            "from core.features.maps import fit_feature_map\n"
            "from core.features.spec import FeatureSpec\n"
            "X = np.random.default_rng(0).normal(size=(1500, 24))\n"
            "fitted = fit_feature_map(X, FeatureSpec('nystroem', 300), 7)\n"
            "print(hashlib.sha256(fitted.to_bytes() + fitted.transform(X).tobytes()).hexdigest())\n"
        )
        digests = {
            subprocess.run(
                [sys.executable, "-c", script],
                env={**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads},
                cwd=Path(__file__).parents[3],
                check=True,
                capture_output=True,
                timeout=300,
            ).stdout
            for threads in ("1", "2")
        }

        assert len(digests) == 1
        assert len(next(iter(digests)).strip()) == 2 * hashlib.sha256().digest_size


class TestBrokenBytes:
    def parts(self, kind="nystroem"):
        fitted = fit_feature_map(rows(), FeatureSpec(kind=kind, n_components=5), 0)
        header, arrays = decode(fitted.to_bytes(), fitted.FORMAT)
        return header, dict(arrays)

    @pytest.mark.parametrize(
        ("name", "value"), [("dtype", "float16"), ("features", "poly"), ("features", "fourier")]
    )
    def test_a_header_that_does_not_fit_is_refused(self, name, value):
        header, arrays = self.parts()

        with pytest.raises(InvalidPackage):
            feature_map_from_bytes(encode({**header, name: value}, arrays))

    def test_a_whitening_of_another_size_is_refused(self):
        header, arrays = self.parts()

        with pytest.raises(InvalidPackage, match="whitening is 2 × 2"):
            feature_map_from_bytes(encode(header, {**arrays, "whitening": np.eye(2)}))

    def test_a_missing_array_is_refused(self):
        header, arrays = self.parts("linear")
        del arrays["scale"]

        with pytest.raises(InvalidPackage, match="no array 'scale'"):
            feature_map_from_bytes(encode(header, arrays))

    def test_a_map_of_each_kind_is_what_it_says(self):
        kinds = {
            kind: type(fit_feature_map(rows(), FeatureSpec(kind=kind, n_components=5), 0)) for kind in KINDS
        }

        assert kinds == {"linear": LinearMap, "nystroem": NystroemMap, "fourier": FourierMap}


@pytest.mark.data
def test_letter_with_a_thousand_landmarks_is_ready_in_seconds():
    X = benchmark_set("letter")["X_train"]
    started = time.perf_counter()

    feature_map = fit_feature_map(X, FeatureSpec("nystroem", n_components=1000, scaling=Scaling.NONE), 0)

    assert feature_map.n_features_out > 950
    assert time.perf_counter() - started < 150


@pytest.mark.data
@pytest.mark.parametrize(("name", "n_components", "least"), [("satimage", 600, 88.0), ("vowel", 300, 45.0)])
def test_ridge_classifiers_on_the_features_are_as_good_as_known(name, n_components, least):
    data = benchmark_set(name)
    spec = FeatureSpec("nystroem", n_components=n_components, scaling=Scaling.NONE)
    feature_map = fit_feature_map(data["X_train"], spec, 0)
    train, test = feature_map.transform(data["X_train"]), feature_map.transform(data["X_test"])
    classes = np.unique(data["y_train"])
    targets = 2.0 * (data["y_train"][:, np.newaxis] == classes) - 1.0

    weights = np.linalg.solve(train.T @ train + 0.01 * np.eye(train.shape[1]), train.T @ targets)

    accuracy = 100 * (classes[(test @ weights).argmax(axis=1)] == data["y_test"]).mean()
    assert accuracy >= least
