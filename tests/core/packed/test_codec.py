import dataclasses
import json

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import InvalidPackage
from core.packed import FourierBasis, LinearBasis, LinearForm, PackedStudent, PackedTeacher, RbfBasis
from core.packed.codec import MAX_HEADER_BYTES, decode, encode, encode_front
from core.packed.map_packages import map_from_bytes
from core.packed.student import named_map
from tests.reference.packed_students import CASES, some_rows

MAPS = [
    LinearBasis(2),
    RbfBasis(np.zeros(2), np.ones(2), np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])),
    FourierBasis(np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]), np.arange(3.0)),
]


def student(packed_map=MAPS[1], **changes):
    p = packed_map.n_basis
    parts = {
        "map": packed_map,
        "coef": np.arange(1.0, p + 1),
        "intercept": 0.1,
        "gate_coef": np.arange(p) / 7.0,
        "gate_intercept": -1e-17,
        "threshold": 1 / 3,
        "label": "é \U0001f426",
        "metadata": {"seed": 2**62, "C": 0.1, "note": "ünï"},
    }
    parts |= changes
    linear = [parts.pop(name) for name in ("coef", "intercept", "gate_coef", "gate_intercept")]
    return PackedStudent(form=LinearForm(*linear), **parts)


def teacher(packed_map=MAPS[1]):
    return PackedTeacher(packed_map, np.ones((2, packed_map.n_basis)), np.zeros(2), ("é", "b"), {"seed": 1})


def coef_of(package):
    return package.form.coef if isinstance(package, PackedStudent) else package.coef


PACKAGES = [*(student(packed_map) for packed_map in MAPS), *(teacher(packed_map) for packed_map in MAPS)]


def rebuilt(index, body, length=None):
    """Safetensors bytes of a header written by hand."""
    text = index if isinstance(index, bytes) else json.dumps(index).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


def split(data):
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def with_header(package, **changes):
    header, arrays = decode(package.to_bytes(), package.FORMAT)
    return encode({**header, **changes}, arrays)


def with_arrays(package, **changes):
    header, arrays = decode(package.to_bytes(), package.FORMAT)
    return encode(header, {**arrays, **changes})


@pytest.mark.parametrize("package", PACKAGES)
def test_bytes_give_the_same_package_back(package):
    data = package.to_bytes()

    restored = type(package).from_bytes(data, digest=package.digest)

    assert restored.to_bytes() == data
    assert restored.digest == package.digest
    assert restored.metadata == package.metadata
    assert type(restored.map) is type(package.map)
    np.testing.assert_array_equal(restored.scores(np.eye(2)), package.scores(np.eye(2)))


@pytest.mark.parametrize("case", CASES)
def test_a_student_that_names_its_map_answers_with_the_same_bits(case):
    whole = CASES[case]
    student = dataclasses.replace(whole, shares_map=True)
    data, packed = student.to_bytes(), student.map.to_bytes()
    assert (named_map(data), named_map(whole.to_bytes())) == (student.map.digest, None)
    shared = map_from_bytes(packed, digest=student.map.digest)
    assert (shared.to_bytes(), shared.digest) == (packed, student.map.digest)
    again = PackedStudent.from_bytes(data, digest=student.digest, maps={shared.digest: shared})
    assert (again.map, again.shares_map, again.to_bytes()) == (shared, True, data)
    rows = some_rows(whole, 50)
    np.testing.assert_array_equal(again.scores(rows), whole.scores(rows))
    assert not {name for name in decode(data, PackedStudent.SHARING)[1] if name.startswith("map.")}


def test_a_map_that_is_missing_or_another_one_is_refused():
    named = dataclasses.replace(student(), shares_map=True)
    with pytest.raises(InvalidPackage, match="which is not there"):
        PackedStudent.from_bytes(named.to_bytes())
    with pytest.raises(InvalidPackage, match="which is not there"):
        PackedStudent.from_bytes(named.to_bytes(), maps={MAPS[0].digest: MAPS[0]})
    with pytest.raises(InvalidPackage, match="not packed as maps are"):
        PackedStudent.from_bytes(named.to_bytes(), maps={named.map.digest: MAPS[0]})
    header, arrays = decode(named.to_bytes(), PackedStudent.SHARING)
    with pytest.raises(InvalidPackage, match="no usable 'map'"):
        PackedStudent.from_bytes(encode({**header, "map": 3}, arrays))
    wider = RbfBasis(np.zeros(2), np.ones(2), np.ones((4, 2)))
    with pytest.raises(InvalidPackage, match="coef is 3"):
        PackedStudent.from_bytes(encode({**header, "map": wider.digest}, arrays), maps={wider.digest: wider})
    holding = encode({**header, "format": PackedStudent.SHARING}, arrays | MAPS[1].arrays())
    with pytest.raises(InvalidPackage, match="unknown array 'map"):
        PackedStudent.from_bytes(holding, maps={named.map.digest: named.map})


@pytest.mark.parametrize("packed_map", MAPS)
def test_a_map_in_a_package_is_that_map_and_nothing_else(packed_map):
    header, arrays = decode(packed_map.to_bytes(), "stms.map.1")
    with pytest.raises(InvalidPackage, match="unknown array"):
        map_from_bytes(encode(header, {**arrays, "coef": np.ones(2)}))
    with pytest.raises(InvalidPackage, match=r"number of columns|columns is 0|at least one column"):
        map_from_bytes(encode({**header, "n_columns": 0}, arrays))
    with pytest.raises(InvalidPackage, match=r"not 'stms\.map\.1'"):
        map_from_bytes(student(packed_map).to_bytes())
    with pytest.raises(InvalidPackage, match="digest"):
        map_from_bytes(packed_map.to_bytes(), digest="0" * 64)


def test_every_number_and_name_of_a_student_comes_back_exactly():
    packed = student()

    restored = PackedStudent.from_bytes(packed.to_bytes())

    for name in ("threshold", "label"):
        assert getattr(restored, name) == getattr(packed, name)
    for name in ("intercept", "gate_intercept"):
        assert getattr(restored.form, name) == getattr(packed.form, name)


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
        | st.integers(-(2**63) + 1, 2**63 - 1)
        | st.floats(allow_nan=False, allow_infinity=False),
        max_size=6,
    )
)
def test_metadata_come_back_with_their_types_and_in_any_order_give_the_same_bytes(metadata):
    packed = student(metadata=metadata)
    turned = student(metadata=dict(reversed(metadata.items())))

    restored = PackedStudent.from_bytes(packed.to_bytes()).metadata

    assert restored == metadata
    assert {name: type(value) for name, value in restored.items()} == {
        name: type(value) for name, value in metadata.items()
    }
    assert turned.digest == packed.digest


def test_other_programs_can_read_the_arrays():
    packed = student()

    arrays = safetensors.numpy.load(packed.to_bytes())

    assert set(arrays) == {"coef", "gate_coef", "map.landmarks", "map.scale", "map.shift"}
    np.testing.assert_array_equal(arrays["coef"], packed.form.coef)


@pytest.mark.parametrize("convert", [bytes, bytearray, memoryview])
def test_reading_makes_views_not_copies(convert):
    data = convert(student().to_bytes())

    restored = PackedStudent.from_bytes(data)

    assert np.shares_memory(restored.form.coef, np.frombuffer(data, np.uint8))
    assert not restored.form.coef.flags.writeable


def test_bytes_that_are_not_aligned_are_copied_and_read():
    data = student().to_bytes()

    restored = PackedStudent.from_bytes(memoryview(b"x" + data)[1:])

    assert restored.form.coef.flags.aligned
    assert restored.to_bytes() == data


def test_many_classes_and_long_names_do_not_fill_the_header():
    names = tuple(f"{k:0200d}" for k in range(10_000))
    packed = PackedTeacher(LinearBasis(1), np.ones((10_000, 1)), np.zeros(10_000), names)

    assert PackedTeacher.from_bytes(packed.to_bytes()).classes == names


def test_a_header_that_could_not_be_read_again_is_not_written():
    with pytest.raises(InvalidPackage, match="larger than"):
        student(label="x" * MAX_HEADER_BYTES).to_bytes()


def test_types_that_cannot_be_stored_are_refused_when_writing():
    with pytest.raises(TypeError, match="complex128"):
        encode({}, {"a": np.zeros(2, complex)})
    with pytest.raises(ValueError, match="JSON"):
        encode({"a": float("nan")}, {})


@pytest.mark.parametrize("package", PACKAGES)
def test_bytes_cut_anywhere_are_refused(package):
    data = package.to_bytes()
    for end in range(0, len(data), 7):
        with pytest.raises(InvalidPackage):
            type(package).from_bytes(data[:end])


@pytest.mark.parametrize("package", PACKAGES)
def test_appended_bytes_are_refused(package):
    with pytest.raises(InvalidPackage, match="after its last array"):
        type(package).from_bytes(package.to_bytes() + b"\0")


def test_a_digest_that_does_not_fit_is_refused():
    with pytest.raises(InvalidPackage, match="digest"):
        PackedStudent.from_bytes(student().to_bytes(), digest="0" * 64)


def test_a_student_is_no_teacher():
    with pytest.raises(InvalidPackage, match=r"not 'stms\.teacher\.1'"):
        PackedTeacher.from_bytes(student().to_bytes())


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data):
    with pytest.raises(InvalidPackage):
        PackedStudent.from_bytes(data)


@settings(max_examples=500, deadline=None)
@given(st.data(), st.sampled_from(PACKAGES))
def test_changed_bytes_are_refused_or_give_a_usable_package(data, package):
    original = bytearray(package.to_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        original[data.draw(st.integers(0, len(original) - 1))] = data.draw(st.integers(0, 255))
    try:
        restored = type(package).from_bytes(bytes(original))
    except InvalidPackage:
        return
    assert np.isfinite(coef_of(restored)).all()
    assert restored.map.n_basis == coef_of(restored).shape[-1]
    assert type(package).from_bytes(restored.to_bytes()).digest == restored.digest


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=4), children, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(st.data(), json_values, st.sampled_from(PACKAGES))
def test_hostile_values_anywhere_in_the_header_are_refused_or_harmless(data, value, package):
    index, body = split(package.to_bytes())
    tensors = [name for name in index if name != "__metadata__"]
    place = data.draw(st.sampled_from(["dtype", "shape", "data_offsets", "entry", "metadata", "header"]))
    tensor = index[data.draw(st.sampled_from(tensors))]
    if place == "entry":
        index[data.draw(st.sampled_from(tensors))] = value
    elif place == "metadata":
        index["__metadata__"] = value
    elif place == "header":
        header = json.loads(index["__metadata__"]["stms"])
        header[data.draw(st.sampled_from(sorted(header)))] = value
        index["__metadata__"]["stms"] = json.dumps(header)
    else:
        tensor[place] = value
    try:
        restored = type(package).from_bytes(rebuilt(index, body))
    except InvalidPackage:
        return
    assert place in ("header", "dtype", "shape", "data_offsets", "metadata", "entry")
    assert np.isfinite(restored.scores(np.zeros((1, 2)))).all()


ENTRY = {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}
META = {"stms": '{"format":"stms.student.1"}'}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 7,
        rebuilt({}, b"", length=2**63),
        rebuilt({}, b"", length=MAX_HEADER_BYTES + 1),
        rebuilt(b"[1]", b""),
        rebuilt(b"[" * 100_000, b""),
        rebuilt(b"\xff\xfe", b""),
        rebuilt(b'{"a":1,"a":2}', b""),
        rebuilt({"__metadata__": {"stms": "[]"}}, b""),
        rebuilt({"__metadata__": {"stms": '{"format":["stms.student.1"]}'}}, b""),
        rebuilt({"__metadata__": {"other": "{}"}}, b""),
        rebuilt({"__metadata__": META, "a": {**ENTRY, "dtype": "BF16"}}, b"\0" * 8),
        rebuilt({"__metadata__": META, "a": {**ENTRY, "dtype": ["F64"]}}, b"\0" * 8),
        rebuilt({"__metadata__": META, "a": {**ENTRY, "shape": [2]}}, b"\0" * 8),
        rebuilt({"__metadata__": META, "a": {**ENTRY, "shape": [-1]}}, b"\0" * 8),
        rebuilt({"__metadata__": META, "a": {**ENTRY, "shape": [True]}}, b"\0" * 8),
        rebuilt({"__metadata__": META, "a": {**ENTRY, "shape": [1, 1, 1]}}, b"\0" * 8),
        rebuilt({"__metadata__": META, "a": {**ENTRY, "shape": [2**62, 8]}}, b"\0" * 8),
        rebuilt({"__metadata__": META, "a": {**ENTRY, "data_offsets": [8, 0]}}, b"\0" * 8),
        rebuilt({"__metadata__": META, "a": {**ENTRY, "data_offsets": [0, 8, 8]}}, b"\0" * 8),
        rebuilt({"__metadata__": META, "a": {**ENTRY, "data_offsets": [1, 9]}}, b"\0" * 9),
        rebuilt({"__metadata__": META, "a": ENTRY, "b": ENTRY}, b"\0" * 8),
        rebuilt({"__metadata__": META, "a": {**ENTRY, "extra": 1}}, b"\0" * 8),
    ],
)
def test_hostile_headers_are_refused(data):
    with pytest.raises(InvalidPackage):
        PackedStudent.from_bytes(data)


@pytest.mark.parametrize(
    "changes",
    [
        {"intercept": "0"},
        {"intercept": True},
        {"intercept": 0},
        {"intercept": 10**400},
        {"threshold": None},
        {"label": 5},
        {"metadata": {"a": [1]}},
        {"metadata": []},
        {"kind": "poly"},
        {"kind": "linear"},
        {"kind": "fourier"},
        {"n_columns": 3},
        {"n_columns": 2.5},
        {"n_columns": -1},
        {"format": "stms.student.2"},
    ],
)
def test_headers_that_do_not_fit_the_arrays_are_refused(changes):
    with pytest.raises(InvalidPackage):
        PackedStudent.from_bytes(with_header(student(), **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"coef": np.ones(4)},
        {"coef": np.ones((3, 1))},
        {"coef": np.array([1.0, np.nan, 1.0])},
        {"coef": np.array([1.0, np.inf, 1.0])},
        {"map.landmarks": np.ones((3, 3))},
        {"map.landmarks": np.zeros((0, 2))},
        {"map.landmarks": np.full((3, 2), 1e200)},
        {"extra": np.ones(1)},
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes):
    with pytest.raises(InvalidPackage):
        PackedStudent.from_bytes(with_arrays(student(), **changes))


@pytest.mark.parametrize("names", [b"{}", b"[1,2]", b'["a"]', b'["a","a"]', b"\xff", b"[" * 100_000])
def test_class_names_that_do_not_fit_are_refused(names):
    with pytest.raises(InvalidPackage):
        PackedTeacher.from_bytes(with_arrays(teacher(), classes=np.frombuffer(names, np.uint8)))


def test_the_front_of_arrays_of_all_types_is_that_of_the_whole():
    arrays = {kind: np.zeros(3, dtype=kind) for kind in ("u1", "<i4", "<f4", "<f8", "<i8")}
    whole = encode({"format": "x"}, arrays)
    front, places = encode_front(
        {"format": "x"}, {name: (one.dtype, one.shape) for name, one in arrays.items()}
    )
    assert whole.startswith(front)
    assert max(place.stop for place in places.values()) == len(whole)
    assert decode(whole, "x")[1]["<i4"].dtype == np.int32
