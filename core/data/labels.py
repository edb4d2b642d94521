"""Class labels of any usual type to codes and names.

A class is known by its name everywhere, and one rule makes it for labels of every type (`class_names`):
the digits of a whole number, "false" or "true", or else the text without blanks around it. So 1, 1.0, "1.0"
and "+1" are the class "1" in every format. Two names that look alike but are different Unicode sequences
would be two classes by mistake: different names with the same NFC form are refused, and `alike` finds others.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence
from datetime import date
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from core.data.cell_values import PLAIN_NUMBER, plain_digits
from core.data.frames import moment_text, moments_of
from core.data.validation import MAX_FAULTS, is_missing
from core.errors import Fault, InvalidProblem

MAX_NAME_LENGTH = 256
MAX_DESCRIBED: Final = 1000
"""Classes and columns that the summary of a data set lists one by one."""
MAX_CHARACTERS: Final = 100_000
"""Limit for the characters of the names in one such list; the list ends before it exceeds this."""
_NUMBER = re.compile(r"[+-]?[0-9]{1,15}(\.[0-9]{1,15})?")
_ANY_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_TRUTH = frozenset({"true", "false"})
_LOOK_ALIKE = str.maketrans(
    "АВЕКМНОРСТУХІЈЅЗаеорсухіјѕԁһѵԛԝΑΒΕΖΗΙΚΜΝΟΡΤΥΧονɑɡıℓ",
    "ABEKMHOPCTYXIJS3aeopcyxijsdhvqwABEZHIKMNOPTYXovagil",
)
"""Letters of other alphabets that look like Latin ones."""
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Invisible characters that are not of the category Cf."""
_EXACT_WHOLE = 2.0**53
_SPECIAL_TYPES: Final = {"decimal": Decimal, "date": date, "bytes": bytes}
_SPECIAL: Final = frozenset(_SPECIAL_TYPES)
"""Groups of labels whose texts name the classes."""

Coded = tuple[NDArray[np.int32], tuple[str, ...]]


def encode_labels(labels: Any, field: str = "y") -> Coded:
    """Codes (n,) int32 and the K class names that occur, in order: by value if all are numbers, else as text.

    labels: (n,) text, whole numbers or booleans. Raises InvalidProblem naming the rows at fault.
    """
    codes, names = _factorise(_as_list_or_array(labels, field), field)
    numeric = all(_NUMBER.fullmatch(name) for name in names)
    order = sorted(range(len(names)), key=lambda k: (float(names[k]) if numeric else 0.0, names[k]))
    rank = np.empty(len(names), dtype=np.int32)
    rank[order] = np.arange(len(names), dtype=np.int32)
    return rank[codes], tuple(names[k] for k in order)


def encode_with(labels: Any, classes: Sequence[str], field: str = "y") -> Coded:
    """Codes (n,) int32 of labels by the given ``classes``, and these as a tuple.

    Raises InvalidProblem, with code ``unknown_class`` for labels that are none of them.
    """
    known = tuple(classes)
    check_class_names(known, "classes", None)
    place = {name: code for code, name in enumerate(known)}
    if len(place) != len(known):
        raise InvalidProblem(Fault("classes", "duplicate", "Two classes have the same name."))
    codes, names = _factorise(_as_list_or_array(labels, field), field, place)
    unknown = [k for k, name in enumerate(names) if name not in place]
    if unknown:
        rows = _first_rows(codes, len(names))
        raise InvalidProblem(
            *(
                Fault(
                    field, "unknown_class", f"Row {rows[k]} has the unknown class {names[k]!r}.", int(rows[k])
                )
                for k in unknown[:MAX_FAULTS]
            )
        )
    table = np.array([place[name] for name in names], dtype=np.int32)
    return table[codes], known


def class_names(texts: Sequence[str]) -> list[str]:
    """The name of the class of each text, by the rule of all formats, which looks at all of them together.

    If all texts are plain numbers, whole ones become their digits, and others lose zeros at their ends; if
    all are true or false, they become lower case; otherwise only the blanks around them are removed. A text
    for a missing label (blank text, or nan among numbers) becomes the empty text.
    """
    trimmed = [text.strip() for text in texts]
    known = [text for text in trimmed if text]
    numbers = [text for text in known if text.lower() != "nan"]
    if numbers and all(map(PLAIN_NUMBER.fullmatch, numbers)):
        return ["" if text.lower() in ("", "nan") else plain_digits(text) for text in trimmed]
    if all(text.lower() in _TRUTH for text in known):
        return [text.lower() for text in trimmed]
    return trimmed


def alike(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Groups of different class names that are equal as numbers or look alike.

    Case, width, blanks, invisible characters and the alphabet of letters that look the same do not count.
    """
    groups: dict[str | float, list[str]] = {}
    for name in names:
        groups.setdefault(_look(name), []).append(name)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def _look(name: str) -> str | float:
    """A key that is equal for names that people would take for the same name."""
    if name.isascii():
        text = name.casefold()
    else:
        plain = unicodedata.normalize("NFKC", name).translate(_LOOK_ALIKE)
        text = "".join(
            letter
            for letter in plain.casefold()
            if letter not in _INVISIBLE
            and unicodedata.category(letter) != "Cf"
            and not "\ufe00" <= letter <= "\ufe0f"
        )
    text = " ".join(text.split())
    return float(text) if text.isascii() and _ANY_NUMBER.fullmatch(text) else text


def labels_of_one_type(labels: Any, field: str = "y") -> NDArray[Any]:
    """Labels (n,) of any library as an array: of text as objects, of booleans or of numbers.

    Raises InvalidProblem naming rows without a label, for labels of several types and of unusable ones.
    """
    array = _as_list_or_array(labels, field)
    missing = np.flatnonzero(missing_labels(array))
    if len(missing):
        raise _missing(missing.tolist(), field)
    return _of_one_type(array, field) if array.dtype.kind == "O" else array


def missing_labels(labels: Any) -> NDArray[np.bool_]:
    """Where labels (n,) are None, NaN or blank text, (n,)."""
    array = _as_list_or_array(labels, "y")
    if array.dtype.kind == "f":
        missing: NDArray[np.bool_] = np.isnan(array)
        return missing
    if array.dtype.kind == "U":
        array = array.astype(object)
    if array.dtype.kind != "O":
        return np.zeros(len(array), dtype=bool)
    items = array.tolist()
    texts = list({item for item in items if isinstance(item, str)})
    blank = {text for text, name in zip(texts, class_names(texts), strict=True) if not name}
    gone = (is_missing(item) or (isinstance(item, str) and item in blank) for item in items)
    return np.fromiter(gone, dtype=bool, count=len(items))


def listed_names(names: Sequence[str]) -> Sequence[str]:
    """The first names, as many as the summary of a data set lists."""
    total = 0
    for place, name in enumerate(names[:MAX_DESCRIBED]):
        total += len(name)
        if total > MAX_CHARACTERS:
            return names[:place]
    return names[:MAX_DESCRIBED]


def check_class_names(
    names: Sequence[str], field: str, rows: Sequence[int] | NDArray[np.intp] | None
) -> None:
    """Raises InvalidProblem for names that are blank, too long, unprintable or equal but for NFC.

    rows: where each name first occurs, if it came from labels.
    """
    faults: list[Fault] = []
    composed: dict[str, str] = {}
    for k, name in enumerate(names):
        complaint = _complaint(name)
        if complaint is None and not name.isascii():
            twin = composed.setdefault(unicodedata.normalize("NFC", name), name)
            if twin != name:
                text = f"The class names {twin!a} and {name!a} look the same but are encoded differently."
                complaint = ("ambiguous_label", text)
        if complaint is not None:
            faults.append(_name_fault(field, *complaint, row=None if rows is None else int(rows[k])))
            if len(faults) == MAX_FAULTS:
                break
    if faults:
        raise InvalidProblem(*faults)


def _name_fault(field: str, code: str, message: str, row: int | None) -> Fault:
    place = "" if row is None else f" It stands in row {row} (counted from 0)."
    return Fault(field, code, message + place, row=row)


def _complaint(name: Any) -> tuple[str, str] | None:
    """Code and message of what is wrong with one class name, or None."""
    if not isinstance(name, str):
        return "not_text", f"A class name must be text, not {type(name).__name__}."
    if not name or name.isspace():
        return "empty_label", "A label is empty or blank."
    if len(name) > MAX_NAME_LENGTH:
        return "label_too_long", f"The label {name:.40}… is longer than {MAX_NAME_LENGTH} characters."
    if not name.isprintable() and any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name):
        return "bad_label", f"The label {name!a:.80} has control characters or broken Unicode."
    return None


def _as_list_or_array(labels: Any, field: str) -> NDArray[Any]:
    """``labels`` as an array of one axis, kind b, i, u, f, U or O; lists stay objects, so mixtures show."""
    if isinstance(labels, np.ma.MaskedArray) and labels.ndim == 1 and np.ma.is_masked(labels):
        labels = labels.tolist()
    if isinstance(labels, list | tuple):
        return np.fromiter(labels, dtype=object, count=len(labels))
    array = np.asarray(labels)
    if array.ndim != 1:
        message = f"{field} must be one list of labels; it has {array.ndim} axes."
        raise InvalidProblem(Fault(field, "wrong_shape", message))
    if array.dtype.kind == "M":
        return np.fromiter(moments_of(array), dtype=object, count=len(array))
    if array.dtype.kind not in "biufUOTS":
        message = f"Labels of type {array.dtype} cannot be used: give them as text."
        raise InvalidProblem(Fault(field, "bad_label_type", message))
    return array.astype(object) if array.dtype.kind in "TS" else array


def _factorise(
    labels: NDArray[Any], field: str, known: Collection[str] = ()
) -> tuple[NDArray[np.intp], list[str]]:
    """Codes (n,) into a list of different, checked class names. known: names that texts may keep."""
    if len(labels) == 0:
        raise InvalidProblem(Fault(field, "empty", f"{field} has no labels."))
    if labels.dtype.kind == "O":
        labels = _of_one_type(labels, field)
    if labels.dtype.kind in "UO":
        texts = labels.tolist()
        place = {name: code for code, name in enumerate(dict.fromkeys(texts))}
        codes = np.fromiter(map(place.__getitem__, texts), dtype=np.intp, count=len(texts))
        rows = _first_rows(codes, len(place))
        named = _named(list(place), known)
        missing = [
            int(rows[k])
            for k, (text, name) in enumerate(zip(place, named, strict=True))
            if text.strip() and not name
        ]
        if missing:
            raise _missing(missing[:MAX_FAULTS], field)
        check_class_names(named, field, rows)
        names = list(dict.fromkeys(named))
        at = {name: code for code, name in enumerate(names)}
        return np.array([at[name] for name in named], dtype=np.intp)[codes], names
    if labels.dtype.kind == "f":
        labels = _whole(labels, field)
    values, inverse = np.unique(labels, return_inverse=True)
    return inverse, [str(value).lower() for value in values.tolist()]


def _named(texts: list[str], known: Collection[str]) -> list[str]:
    """The class names of different texts, those of ``known`` classes as they are."""
    names = class_names(texts)
    return [
        text if text in known else (text.strip() if text.strip() in known else name)
        for text, name in zip(texts, names, strict=True)
    ]


def _of_one_type(labels: NDArray[Any], field: str) -> NDArray[Any]:
    """An object array as one of text (still objects), booleans, integers or floats."""
    items = labels.tolist()
    groups = {kind: _group(kind) for kind in set(map(type, items))}
    missing = [i for i, item in enumerate(items) if is_missing(item)] if _may_miss(groups) else []
    if missing:
        raise _missing(missing, field)
    unusable = next((i for i, item in enumerate(items) if groups[type(item)] is None), None)
    if unusable is not None:
        message = (
            f"The label in row {unusable} is a {type(items[unusable]).__name__}, which cannot be a label:"
            " give it as text."
        )
        raise InvalidProblem(Fault(field, "bad_label_type", message, unusable))
    kinds = set(groups.values())
    if len(kinds) > 1 and kinds != {"int", "float"}:
        first = groups[type(items[0])]
        row = next(i for i, item in enumerate(items) if groups[type(item)] != first)
        message = f"Labels must be all text, all numbers or all booleans; row {row} differs from row 0."
        raise InvalidProblem(Fault(field, "mixed_labels", message, row))
    if kinds == {"text"}:
        return labels
    if len(kinds) == 1 and kinds <= _SPECIAL:
        texts = [_special_text(item, row, field) for row, item in enumerate(items)]
        return np.array(class_names(texts), dtype=object)
    kind: type = np.bool_ if kinds == {"bool"} else np.int64 if kinds == {"int"} else np.float64
    try:
        return np.array(items, dtype=kind)
    except OverflowError as error:
        raise InvalidProblem(Fault(field, "label_not_whole", "A label is beyond 64-bit numbers.")) from error


def _special_text(item: Any, row: int, field: str) -> str:
    """The text of a decimal number, a day or moment, or of bytes. Raises InvalidProblem for other bytes."""
    if isinstance(item, Decimal):
        return format(item, "f")
    if isinstance(item, date):
        return moment_text(item)
    try:
        return bytes(item).decode()
    except UnicodeDecodeError as error:
        message = f"The label in row {row} is not UTF-8 text."
        raise InvalidProblem(Fault(field, "bad_label_type", message, row)) from error


def _group(kind: type) -> str | None:
    if issubclass(kind, str):
        return "text"
    if issubclass(kind, bool | np.bool_):
        return "bool"
    if issubclass(kind, Integral):
        return "int"
    special = next((name for name, types in _SPECIAL_TYPES.items() if issubclass(kind, types)), None)
    if special is not None:
        return special
    return "float" if issubclass(kind, Real) else None


def _may_miss(groups: dict[type, str | None]) -> bool:
    return not {"text", "bool", "int"}.issuperset(groups.values())


def _whole(labels: NDArray[np.floating], field: str) -> NDArray[np.int64]:
    """Floats as the whole numbers that they must be."""
    missing = np.flatnonzero(np.isnan(labels))
    if len(missing):
        raise _missing(missing.tolist(), field)
    usable = (labels == np.rint(labels)) & (np.abs(labels) < _EXACT_WHOLE)
    if not usable.all():
        raise InvalidProblem(
            *(
                Fault(
                    field,
                    "label_not_whole",
                    f"The label {labels[i]} in row {i} is not a whole number.",
                    int(i),
                )
                for i in np.flatnonzero(~usable)[:MAX_FAULTS]
            )
        )
    return labels.astype(np.int64)


def _missing(rows: Sequence[int], field: str) -> InvalidProblem:
    return InvalidProblem(
        *(Fault(field, "missing_label", f"Row {row} has no label.", row) for row in rows[:MAX_FAULTS])
    )


def _first_rows(codes: NDArray[np.intp], n_names: int) -> NDArray[np.intp]:
    """The first row of each code, (n_names,)."""
    rows = np.empty(n_names, dtype=np.intp)
    rows[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return rows
