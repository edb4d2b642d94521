"""Sums of trees against walks node by node; what a parser refuses; effects of columns."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import InvalidPackage, InvalidProblem
from core.packed import LinearForm, PackedStudent, PackedTeacher, PolytopeForm, RbfBasis, TreesBasis
from core.packed import trees as trees_module
from core.packed.codec import decode, encode
from core.packed.forms import GaussianForm
from core.packed.leaf_index import LeafIndex, bytes_of_bits
from core.packed.student import row_scorer
from core.packed.tree_effects import score_effects
from core.packed.trees import MAX_DEPTH
from tests.compiled import compiled
from tests.reference.trees import random_trees, rows, walked
from tests.refusals import at_fault

SHAPES = [
    {},
    {"wide": False},
    {"sums": 1},
    {"trees": 1, "depth": 1},
    {"depth": 0},
    {"trees": 90, "sums": 2, "depth": 7},
]


def student(trees: TreesBasis, threshold: float = 0.1) -> PackedStudent:
    first = np.eye(trees.sums)[0]
    return PackedStudent(trees, LinearForm(first, 0.0, first, 0.0), threshold, "a")


@pytest.fixture(params=[pytest.param("compiled", marks=compiled), "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are walked by compiled code and by NumPy."""
    if request.param == "numpy":
        monkeypatch.setattr(trees_module, "IS_COMPILED", False)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(4))
def test_rows_and_blocks_are_the_sums_of_walks_bit_for_bit(shape: dict, seed: int):
    trees, X = random_trees(seed, **shape), rows(300)
    expected = np.array([walked(trees, x) for x in X])
    np.testing.assert_array_equal(trees.block(X), expected)
    np.testing.assert_array_equal([trees.row(x) for x in X], expected)


@pytest.mark.usefixtures("way")
def test_trees_that_have_answered_are_pickled_and_copied():
    trees, X = random_trees(0), rows(20)
    expected = trees.block(X)
    for other in (pickle.loads(pickle.dumps(trees)), copy.deepcopy(trees)):
        np.testing.assert_array_equal(other.block(X), expected)
        assert other.digest == trees.digest


@pytest.mark.parametrize("shape", SHAPES[:4])
def test_rows_are_the_same_without_an_index(shape: dict, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trees_module, "IS_COMPILED", False)
    trees, X = random_trees(1, **shape), rows(100)
    indexed = np.array([trees.row(x) for x in X])
    assert isinstance(trees.index, LeafIndex)
    monkeypatch.setattr(trees_module, "INDEX_BYTES", 0)
    other = random_trees(1, **shape)
    assert other.index is None
    np.testing.assert_array_equal([other.row(x) for x in X], indexed)


def test_the_index_holds_leaves_that_add_something_and_says_its_size():
    trees = random_trees(0, trees=40)
    adding = (trees.values != 0.0).any(axis=1)
    references = np.concatenate([trees.roots, trees.children.ravel()])
    index = LeafIndex.of(trees, 1 << 20)
    assert index is not None
    bits = np.unpackbits(np.bitwise_or.reduce(index.bits, axis=0).view(np.uint8))
    assert bits.sum() == adding[~references[references < 0]].sum() < (references < 0).sum()
    assert len(index.value) < bits.sum() + 8 * len(trees.roots)
    assert index.bits.nbytes == bytes_of_bits(trees)
    assert LeafIndex.of(trees, index.bits.nbytes - 1) is None
    assert index.nbytes >= index.bits.nbytes


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("sums", [1, 2, 3, 9, 16, 33])
@pytest.mark.parametrize("trees", [1, 2, 9, 127, 300])
def test_sums_of_a_row_are_in_the_order_of_the_trees(sums: int, trees: int):
    basis = random_trees(3, trees=trees, sums=sums, depth=2)
    rng = np.random.default_rng(trees)
    values = rng.normal(size=basis.values.shape) * 10.0 ** rng.integers(-8, 8, basis.values.shape)
    basis = replace(basis, values=values)
    for x in rows(20):
        np.testing.assert_array_equal(basis.row(x), walked(basis, x))


def test_packages_give_the_same_trees_and_bytes():
    trees, X = random_trees(), rows(50)
    packed = student(trees)
    again = PackedStudent.from_bytes(packed.to_bytes())
    assert again.to_bytes() == packed.to_bytes()
    assert again.map.digest == trees.digest
    assert not any(array.flags.writeable for array in again.map.arrays().values() if array.size > 1)
    np.testing.assert_array_equal(again.scores(X), trees.block(X)[:, 0])
    ask = row_scorer(again)
    np.testing.assert_array_equal([ask(x) for x in X.tolist()], trees.block(X)[:, 0])
    teacher = PackedTeacher(trees, np.eye(3), np.zeros(3), ("a", "b", "c"))
    again_teacher = PackedTeacher.from_bytes(teacher.to_bytes())
    np.testing.assert_array_equal(again_teacher.scores(X), trees.block(X))
    assert [again_teacher.is_class(x, 0)[0] for x in X] == (teacher.predict(X) == 0).tolist()


def test_the_digest_depends_on_every_array():
    trees = random_trees()
    changed = {
        "threshold": trees.threshold + 0.25,
        "share": trees.share / 2.0,
        "values": trees.values + 1.0,
        "divisor": 100.0,
        "children": trees.children[:, ::-1],
    }
    digests = {replace(trees, **{name: value}).digest for name, value in changed.items()}
    assert len(digests | {trees.digest}) == len(changed) + 1


def test_tidy_leaves_out_unused_tests_and_keeps_equal_values_once():
    trees, X = random_trees(0, depth=2, trees=3), rows(60)
    fat = replace(trees, values=np.concatenate([trees.values, trees.values, [[9.0] * 3]]))
    shift = np.where(fat.children < 0, fat.children - len(trees.values), fat.children)
    given_fields = {one.name: getattr(fat, one.name) for one in fields(fat)}
    tidy = TreesBasis.tidy(**{**given_fields, "children": shift})
    np.testing.assert_array_equal(tidy.block(X), trees.block(X))
    assert len(tidy.feature) == len(np.unique(trees.test)) < len(trees.feature)
    assert len(np.unique(tidy.values, axis=0)) == len(tidy.values) < len(trees.values)


def test_the_cost_of_a_row_counts_steps_and_what_leaves_add():
    assert random_trees(0, depth=0).cost == 7 * 3 + 3
    stump = random_trees(0, trees=5, depth=6, wide=False)
    assert stump.cost == sum(depth_of(stump, root) for root in stump.roots.tolist()) + 5 + 3


def depth_of(trees: TreesBasis, reference: int) -> int:
    """Most inner nodes from a reference to a leaf."""
    return 0 if reference < 0 else 1 + max(depth_of(trees, child) for child in trees.children[reference])


def test_packages_of_trees_whose_row_would_take_long_are_refused():
    many = np.full(1 << 20, -1)
    for sums, cost in ((256, r"2\.7e\+08"), (128, None)):
        trees = replace(
            random_trees(0, depth=0),
            roots=many,
            output=np.zeros_like(many),
            sums=sums,
            values=np.zeros((1, sums)),
        )
        package = student(trees).to_bytes()
        if cost is None:
            assert PackedStudent.from_bytes(package).map.digest == trees.digest
        else:
            with pytest.raises(InvalidPackage, match=cost):
                PackedStudent.from_bytes(package)


def package_with(trees: TreesBasis, **changes) -> bytes:
    header, arrays = decode(student(trees).to_bytes(), PackedStudent.FORMAT)
    changed = {
        f"map.{name}": value for name, value in changes.items() if name not in {"n_basis", "n_columns"}
    }
    sizes = {name: value for name, value in changes.items() if name in {"n_basis", "n_columns"}}
    return encode(header | sizes, arrays | changed)


def chain(length: int) -> dict:
    """The arrays of one tree, each of whose nodes has a leaf and the next node below it."""
    following = np.append(np.arange(1, length), -1)
    return {
        "roots": np.zeros(1, dtype=np.int32),
        "output": np.zeros(1, dtype=np.int32),
        "test": np.zeros(length, dtype=np.int32),
        "share": np.ones(length, dtype=np.float32),
        "children": np.column_stack([np.full(length, -1), following]).astype(np.int32),
    }


def edited(array: np.ndarray, place, value) -> np.ndarray:
    changed = array.copy()
    changed[place] = value
    return changed


def broken(trees: TreesBasis) -> dict[str, dict]:
    last = len(trees.test) - 1
    return {
        "a node below itself": {"children": edited(trees.children, (last, 0), last)},
        "a node below one that comes later": {"children": edited(trees.children, (last, 0), 0)},
        "a node with two parents": {"roots": edited(trees.roots, 0, 1)},
        "a node without a parent": {"roots": edited(trees.roots, 0, -1)},
        "a node that is not there": {"children": edited(trees.children, (0, 1), last + 1)},
        "values that are not there": {"children": edited(trees.children, (last, 0), -len(trees.values) - 1)},
        "a test that is not there": {"test": edited(trees.test, 0, len(trees.feature))},
        "a negative test": {"test": edited(trees.test, 0, -1)},
        "a column that is not there": {"feature": edited(trees.feature, -1, trees.columns)},
        "a negative column": {"feature": edited(trees.feature, 0, -1)},
        "equal tests": {"threshold": edited(trees.threshold, 1, trees.threshold[0])},
        "columns out of order": {"feature": edited(trees.feature, 0, 1)},
        "a threshold that is no number": {"threshold": edited(trees.threshold, 0, np.nan)},
        "an infinite value": {"values": edited(trees.values, (0, 0), np.inf)},
        "sums beyond all bounds": {"values": edited(trees.values, (0, 0), 1e100)},
        "a share above 1": {"share": edited(trees.share, 0, 1.5)},
        "a share that is no number": {"share": edited(trees.share, 0, np.nan)},
        "a sum that is not there": {"output": edited(trees.output, 0, 1)},
        "no trees": {"roots": trees.roots[:0], "output": trees.output[:0]},
        "too few outputs": {"output": trees.output[1:]},
        "children in one column": {"children": trees.children.ravel()},
        "whole numbers as floats": {"test": trees.test.astype(np.float64)},
        "numbers beyond 32 bits": {"test": trees.test.astype(np.int64) + 2**32},
        "values of two sums": {"values": trees.values[:, :2]},
        "a divisor below 1": {"divisor": np.array([0.5])},
        "a divisor that is no number": {"divisor": np.array([np.nan])},
        "two divisors": {"divisor": np.ones(2)},
        "no columns": {"n_columns": 0},
        "a negative number of sums": {"n_basis": -3},
        "deeper than allowed": chain(MAX_DEPTH + 1),
    }


@pytest.mark.parametrize("what", list(broken(random_trees())))
def test_a_package_whose_trees_cannot_be_walked_is_refused(what: str):
    trees = random_trees()
    assert PackedStudent.from_bytes(package_with(trees)).map.digest == trees.digest
    with pytest.raises(InvalidPackage):
        PackedStudent.from_bytes(package_with(trees, **broken(trees)[what]))


def test_the_deepest_trees_allowed_are_walked():
    trees = PackedStudent.from_bytes(package_with(random_trees(), **chain(MAX_DEPTH))).map
    X = rows(9)
    np.testing.assert_array_equal(trees.block(X), [walked(trees, x) for x in X])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_bytes_changed_anywhere_are_refused_or_answer_every_row(data: st.DataObject):
    whole = bytearray(student(random_trees(0, trees=3, depth=3)).to_bytes())
    body = 8 + int.from_bytes(whole[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(body, len(whole) - 1))
        whole[place] = data.draw(st.integers(0, 255))
    try:
        changed = PackedStudent.from_bytes(bytes(whole))
    except InvalidPackage:
        return
    X = rows(20)
    np.testing.assert_array_equal(changed.map.block(X), [changed.map.row(x) for x in X])
    assert np.isfinite(changed.scores(X)).all()


def expected_value(trees: TreesBasis, reference: int) -> np.ndarray:
    if reference < 0:
        return trees.values[~reference]
    share = float(trees.share[reference])
    first, second = (expected_value(trees, int(child)) for child in trees.children[reference])
    return share * first + (1.0 - share) * second


@pytest.mark.parametrize("shape", SHAPES[:4])
def test_effects_of_columns_are_the_changes_of_the_expected_score(shape: dict):
    trees = random_trees(3, **shape)
    linear = student(trees)
    coef, intercept = linear.form.linear
    for x in rows(20):
        base, effects = walked_effects(trees, x)
        given_base, given_effects = score_effects(linear, x)
        assert given_base == pytest.approx(base @ coef + intercept, abs=1e-13)
        np.testing.assert_allclose(given_effects, effects @ coef, rtol=0.0, atol=1e-13)
        assert given_base + given_effects.sum() == pytest.approx(linear.score(x), abs=1e-12)


def walked_effects(trees: TreesBasis, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Base (q,), and the effect of each column on each sum (d, q), of a row, one node after the other."""
    base, effects = np.zeros(trees.sums), np.zeros((trees.columns, trees.sums))
    for root, first in zip(trees.roots.tolist(), trees.output.tolist(), strict=True):
        reference, width = root, slice(first, first + trees.values.shape[1])
        base[width] += expected_value(trees, root)
        while reference >= 0:
            column = trees.feature[trees.test[reference]]
            passes = x[column] <= trees.threshold[trees.test[reference]]
            child = int(trees.children[reference, 0 if passes else 1])
            effects[column, width] += expected_value(trees, child) - expected_value(trees, reference)
            reference = child
    return base / trees.divisor, effects / trees.divisor


def test_effects_on_a_score_are_those_of_the_rejection_that_decides():
    trees = random_trees(2, trees=30)
    coef = np.array([[1.0, -1.0, 0.0], [1.0, 0.0, -1.0]])
    packed = PackedStudent(trees, PolytopeForm(coef, np.array([0.1, 0.0]), np.eye(3)[0], 0.0), 0.0, "a")
    X = rows(40)
    pieces = packed.pieces(X)
    assert set(pieces) == {0, 1}
    for x, piece in zip(X, pieces, strict=True):
        base, effects = score_effects(packed, x)
        assert base + effects.sum() == pytest.approx(packed.score(x), abs=1e-13)
        np.testing.assert_allclose(effects, walked_effects(trees, x)[1] @ coef[piece], atol=1e-13)


def test_effects_of_other_maps_are_refused():
    landmarks = RbfBasis(np.zeros(2), np.ones(2), np.eye(2))
    with pytest.raises(InvalidProblem, match="trees"):
        score_effects(PackedStudent(landmarks, LinearForm(np.ones(2), 0, np.ones(2), 0), 0, "a"), np.ones(2))


def test_effects_on_a_score_that_is_not_linear_are_refused():
    trees = random_trees()
    form = GaussianForm(np.ones(trees.sums), 0.0, np.eye(trees.sums))
    with at_fault(InvalidProblem, "no_effects"):
        score_effects(PackedStudent(trees, form, 0.0, "a"), rows(1)[0])


def test_trees_that_cannot_be_walked_are_refused_by_name():
    with at_fault(InvalidProblem, "unusable_trees", match="of trees must be"):
        replace(random_trees(), columns=0)


@pytest.mark.parametrize("field", ["threshold", "share", "values"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_arrays_of_trees_have_only_finite_numbers(field: str, wrong: float):
    trees = random_trees()
    array = np.array(getattr(trees, field), dtype=np.float64)
    array.flat[-1] = wrong
    with at_fault(InvalidProblem, "unusable_trees", match=f"{field} of trees must be finite"):
        replace(trees, **{field: array})
