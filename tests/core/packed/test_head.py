"""Heads and tables of labels: the same answers as plain NumPy, from bytes that are looked at row by row."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from core.errors import InvalidPackage, InvalidProblem
from core.packed import PackedHead, PackedLabels, PackedStudent, PackedTeacher
from core.packed import labels as labels_module
from core.packed.codec import Reader, decode, encode, encode_front
from core.packed.head import RIVALS, Kind, head_header, head_shapes
from core.packed.maps import LinearBasis

NAMES = ["cat", "größe/1:x", "日本", "dog", "🙂" * 30]


def arrays(
    K: int = 5, d: int = 3, dtype: Any = np.float32, threshold: bool = False, rivals: int = 0
) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    made = {"weights": rng.standard_normal((K, d)).astype(dtype), "bias": rng.standard_normal(K)}
    made |= {"threshold": rng.standard_normal(K)} if threshold else {}
    # The classes after a class are its rivals.
    return made | ({"rivals": (np.arange(K)[:, None] + np.arange(1, rivals + 1)) % K} if rivals else {})


def packed(
    given: dict[str, Any], names: list[str], kind: Kind = "head", read: Reader | None = None
) -> PackedHead:
    return PackedHead.from_bytes(encode(head_header(kind), given), PackedLabels.of(names), read=read)


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [("offsets", 1, -1), ("offsets", 1, 10**6), ("offsets", 2, 2**62), ("text", 0, 0xFF)],
)
def test_a_table_whose_names_are_damaged_says_so(name: str, place: int, value: int):
    """Found by fuzzing: such a table raised ValueError or UnicodeDecodeError."""
    header, parts = decode(PackedLabels.of(NAMES).to_bytes(), PackedLabels.FORMAT)
    parts = {key: np.array(part) for key, part in parts.items()}
    parts[name][place] = value
    table = PackedLabels.from_bytes(encode(header, parts))
    with pytest.raises(InvalidPackage):
        list(table)


def test_a_hash_that_leads_to_no_row_says_so():
    header, parts = decode(PackedLabels.of(NAMES).to_bytes(), PackedLabels.FORMAT)
    parts = {key: np.array(part) for key, part in parts.items()}
    parts["rows"][:] = 5
    table = PackedLabels.from_bytes(encode(header, parts))
    with pytest.raises(InvalidPackage):
        table.find("cat")


def test_every_label_is_found_and_no_other():
    table = PackedLabels.from_bytes(PackedLabels.of(NAMES).to_bytes())
    assert [table.find(name) for name in NAMES] == list(range(5))
    assert list(table) == NAMES
    assert table[1:3] == NAMES[1:3]
    assert len(table) == 5
    for name in ("", "ca", "catt", "\udc80"):
        assert table.find(name) is None
    with pytest.raises(IndexError):
        table[5]


def test_the_table_is_a_mapping_too():
    table = PackedLabels.of(NAMES)
    assert dict(table.codes) == {name: row for row, name in enumerate(NAMES)}
    assert len(table.codes) == 5
    assert "bird" not in table.codes
    with pytest.raises(KeyError):
        table.codes["bird"]


@pytest.mark.parametrize("K", [511, 512, 513, 5000])
def test_a_search_looks_at_one_block_of_hashes_and_one_place_of_the_rest(K: int):
    names = [f"person {number}" for number in range(K)]
    data = PackedLabels.of(names).to_bytes()
    seen: list[int] = []

    def read(start: int, stop: int) -> memoryview:
        seen.append(stop - start)
        return memoryview(data)[start:stop]

    table = PackedLabels.from_bytes(data, read=read)
    for row, name in enumerate(names):
        seen.clear()
        assert table.find(name) == row
        assert sum(seen) <= 2 * 512 * 8 + 8 + 16 + 20
    assert table.find("nobody") is None


def test_names_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(labels_module, "_hash", lambda encoded: len(encoded) % 2)
    monkeypatch.setattr(labels_module, "_FENCE", 4)
    names = [f"{'x' * (k % 5)}{k}" for k in range(50)]
    table = PackedLabels.of(names)
    assert [table.find(name) for name in names] == list(range(50))
    assert table.find("y") is None
    with pytest.raises(InvalidProblem) as caught:
        PackedLabels.of([*names, names[17], names[3]])
    assert [fault.row for fault in caught.value.faults] == [50, 51]


def test_labels_that_occur_twice_are_named_by_row():
    with pytest.raises(InvalidProblem) as caught:
        PackedLabels.of(["a", "b", "a", "c", "b", "a"])
    assert {(fault.field, fault.code, fault.row) for fault in caught.value.faults} == {
        ("labels", "duplicate", 2),
        ("labels", "duplicate", 4),
        ("labels", "duplicate", 5),
    }
    assert "of row 0" in caught.value.faults[0].message
    with pytest.raises(InvalidProblem) as caught:
        PackedLabels.of(["same"] * 100)
    assert len(caught.value.faults) == 10


def test_a_table_of_no_names_finds_none():
    table = PackedLabels.from_bytes(PackedLabels.of([]).to_bytes())
    assert (len(table), table.find("a"), list(table)) == (0, None, [])


def test_a_table_whose_parts_do_not_fit_is_refused():
    _, good = decode(PackedLabels.of(NAMES).to_bytes(), PackedLabels.FORMAT)
    for name in good:
        with pytest.raises(InvalidPackage):
            PackedLabels.from_bytes(encode({"format": PackedLabels.FORMAT}, good | {name: good[name][:-1]}))
    with pytest.raises(InvalidPackage):
        PackedLabels.from_bytes(encode({"format": PackedLabels.FORMAT}, good | {"more": good["rows"]}))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("threshold", [False, True])
@pytest.mark.parametrize("rivals", [0, 2])
def test_front_and_arrays_are_what_safetensors_writes(dtype: Any, threshold: bool, rivals: int):
    given = arrays(dtype=dtype, threshold=threshold, rivals=rivals)
    front, places = encode_front(head_header("head"), head_shapes(5, 3, np.dtype(dtype), threshold, rivals))
    written = front + b"".join(given[name].tobytes() for name in places)
    assert written == encode(head_header("head"), given)
    for name, place in places.items():
        assert written[place] == given[name].tobytes()


def test_a_header_that_is_too_large_has_no_front():
    with pytest.raises(InvalidPackage):
        encode_front({"format": "x" * 2**20}, {})


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_of_a_head_is_a_student_whose_gate_is_its_score(dtype: Any):
    given = arrays(dtype=dtype, threshold=True)
    head = packed(given, NAMES)
    X = np.random.default_rng(1).standard_normal((20, 3))
    for row, name in enumerate(NAMES):
        student = head.student(row)
        expected = X @ given["weights"][row].astype(float) + given["bias"][row]
        np.testing.assert_allclose(student.scores(X), expected, rtol=1e-12)
        np.testing.assert_array_equal(student.gate(X), student.scores(X))
        assert not student.rejection(X).any()
        assert (student.label, student.threshold) == (name, given["threshold"][row])
        assert student.score(X[0]) == pytest.approx(expected[0], rel=1e-12)
        assert student.calibration is None
        assert student.map is head.map


def test_a_row_that_skips_the_checks_equals_one_that_was_checked():
    head = packed(arrays(threshold=True), NAMES)
    student = head.student(3)
    again = type(student).from_bytes(student.to_bytes())
    names = {field.name for field in dataclasses.fields(student)}
    assert names == set(vars(head.student(3))) - {"is_tame"}
    assert student.is_tame is again.is_tame is True
    assert again.digest == student.digest
    assert not student.form.coef.flags.writeable


def test_some_rows_are_given_as_numbers():
    given = arrays()
    weights, bias = packed(given, NAMES).linear([4, 0, 4])
    np.testing.assert_array_equal(weights, given["weights"][[4, 0, 4]])
    np.testing.assert_array_equal(bias, given["bias"][[4, 0, 4]])
    assert weights.dtype == np.float64


def test_a_ready_made_student_has_no_gate():
    head = packed(arrays(), NAMES, "linear")
    student = head.student(2)
    X = np.random.default_rng(1).standard_normal((4, 3))
    assert not student.gate(X).any()
    np.testing.assert_allclose(student.rejection(X), -student.scores(X))
    assert student.threshold == 0.0


def test_the_whole_head_answers_as_a_packed_teacher_does(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("core.data.validation._BLOCK_ENTRIES", 6)
    given = arrays(K=9, dtype=np.float64)
    given["weights"][6] = given["weights"][4]
    given["bias"][6] = given["bias"][4]
    names = [f"c{k}" for k in range(9)]
    head = packed(given, names)
    teacher = PackedTeacher(LinearBasis(3), given["weights"], given["bias"], tuple(names))
    X = np.random.default_rng(2).standard_normal((40, 3))
    np.testing.assert_allclose(head.scores(X), teacher.scores(X), rtol=1e-12)
    np.testing.assert_array_equal(head.predict(X), teacher.predict(X))
    assert list(head.classes) == list(teacher.classes)
    for x in X:
        for k in range(9):
            assert head.is_class(x, k) == teacher.is_class(x, k)
    with pytest.raises(InvalidProblem):
        head.is_class(X[0], 9)


def test_bytes_are_looked_at_before_they_are_used_and_no_others():
    given = arrays(K=100, d=4, threshold=True)
    names = [f"c{k}" for k in range(100)]
    seen: list[tuple[int, int]] = []
    data = encode(head_header("head"), given)

    def read(start: int, stop: int) -> memoryview:
        seen.append((start, stop))
        return memoryview(data)[start:stop]

    head = packed(given, names, read=read)
    assert max(stop for _, stop in seen) <= 8 + int.from_bytes(data[:8], "little")
    seen.clear()
    head.student(17)
    looked_at = b"".join(data[start:stop] for start, stop in seen)
    expected = [given[name][17].tobytes() for name in ("weights", "bias", "threshold")]
    assert looked_at == b"".join(expected)
    seen.clear()
    head.scores(np.ones((1, 4)))
    assert sum(stop - start for start, stop in seen) == given["weights"].nbytes + given["bias"].nbytes

    def damaged(_start: int, _stop: int) -> memoryview:
        raise InvalidPackage("damaged")

    with pytest.raises(InvalidPackage):
        packed(given, names, read=damaged)


@pytest.mark.parametrize(
    "change",
    [
        {"weights": np.ones((4, 3), np.float32)},
        {"weights": np.ones((5, 3), np.int64)},
        {"weights": np.ones(5, np.float32)},
        {"bias": np.ones(5, np.float32)},
        {"bias": np.ones(4)},
        {"threshold": np.ones(4)},
        {"more": np.ones(4)},
    ],
)
def test_a_head_whose_parts_do_not_fit_is_refused(change: dict[str, Any]):
    with pytest.raises(InvalidPackage):
        packed(arrays() | change, NAMES)


def test_a_head_of_an_unknown_kind_is_refused():
    with pytest.raises(InvalidPackage):
        PackedHead.from_bytes(
            encode({"format": PackedHead.FORMAT, "kind": "other"}, arrays()), PackedLabels.of(NAMES)
        )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("threshold", [False, True])
def test_a_student_with_rivals_must_beat_each_of_them(dtype: Any, threshold: bool):
    given = arrays(dtype=dtype, threshold=threshold, rivals=2)
    head, X = packed(given, NAMES), np.random.default_rng(3).normal(size=(200, 3))
    scores = X @ given["weights"].astype(np.float64).T + given["bias"]
    for row in range(5):
        student = head.student(row)
        rejections = [scores[:, (row + step) % 5] for step in (1, 2)]
        rejections += [np.full(len(X), given["threshold"][row])] if threshold else []
        expected = scores[:, row] - np.max(rejections, axis=0)
        np.testing.assert_allclose(student.scores(X), expected, atol=1e-12)
        np.testing.assert_allclose([student.score(x) for x in X], expected, atol=1e-12)
        np.testing.assert_allclose(student.gate(X), scores[:, row], atol=1e-12)
        np.testing.assert_array_equal(student.pieces(X), np.argmax(rejections, axis=0))
        np.testing.assert_array_equal(student.decide(X), expected >= 0)
        assert json.loads(str(student.metadata[RIVALS])) == [NAMES[(row + step) % 5] for step in (1, 2)]
        again = PackedStudent.from_bytes(student.to_bytes())
        np.testing.assert_array_equal(again.scores(X), student.scores(X))


def test_with_all_rivals_the_students_answer_like_the_head():
    head, X = packed(arrays(rivals=4), NAMES), np.random.default_rng(4).normal(size=(300, 3))
    answers = np.array([head.student(row).decide(X) for row in range(5)])
    np.testing.assert_array_equal(answers.argmax(axis=0), head.predict(X))
    assert (answers.sum(axis=0) == 1).all()


def test_rivals_that_cannot_be_are_refused():
    head = packed(arrays(rivals=2) | {"rivals": np.full((5, 2), 5)}, NAMES)
    with pytest.raises(InvalidPackage):
        head.student(0)
    for given, kind in ((arrays(rivals=2), "linear"), (arrays() | {"rivals": np.zeros((4, 2), int)}, "head")):
        with pytest.raises(InvalidPackage):
            packed(given, NAMES, kind)


def test_a_table_of_names_is_verified_whole():
    names = [f"class {number}" for number in range(2000)] + ["größe", ""]
    data = PackedLabels.of(names).to_bytes()
    PackedLabels.from_bytes(data).verify()
    for few in (["a"], ["a", "b", "c", "d"], ["cat", "größe/1:x"]):
        PackedLabels.of(few).verify()
    random = np.random.default_rng(0)
    for place in random.choice(len(data), 300, replace=False).tolist():
        changed = bytearray(data)
        changed[place] ^= 1 << int(random.integers(8))
        with pytest.raises(InvalidPackage):
            PackedLabels.from_bytes(bytes(changed)).verify()
