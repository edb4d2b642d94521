"""Hyper-parameters, declared once: an annotated field of a frozen dataclass says all there is to know of one.

    @dataclass(frozen=True, slots=True)
    class RidgeSpec:
        alpha: Annotated[float, Gt(0), Le(1e8), Doc("Weight of the penalty.")] = 1.0
        solver: Annotated[Literal["cg", "cholesky"], Doc("How the linear system is solved.")] = "cg"

        def __post_init__(self) -> None:
            check_parameters(self, "ridge")

Every field with a ``Doc`` is a hyper-parameter. Its type is float, int, bool, str, a Literal of texts or a
StrEnum, one of these or None, or a tuple of them (``tuple[Annotated[float, Gt(0)], ...]``). Bounds are those
of ``annotated_types``: Gt, Ge, Lt and Le for numbers, MinLen and MaxLen for tuples; texts have a ``Pattern``.
The checks of ``core``, the JSON schema of the API, the help of the command line and the table in
docs/hyperparameters.md are derived from these declarations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from functools import cache
from numbers import Integral, Real
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from typing_extensions import Doc

from core.errors import Fault, InvalidProblem

__all__ = [
    "Doc",
    "Ge",
    "Gt",
    "Le",
    "Lt",
    "MaxLen",
    "MinLen",
    "Parameter",
    "Pattern",
    "check_parameters",
    "parameters_of",
]

Bound: TypeAlias = Gt | Ge | Lt | Le
Length: TypeAlias = MinLen | MaxLen


@dataclass(frozen=True, slots=True)
class Pattern:
    """Bound of a text: a regular expression, written with ``^`` and ``$``, that the whole text matches."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """One hyper-parameter as it is declared.

    kind: type of its values, or of the elements where ``is_tuple``; choices are of kind str.
    default: None where ``is_optional`` and there is no other; MISSING where a value must be given.
    choices: the texts allowed, empty where there is no such list. bounds: of each number. lengths: of the
        tuple. pattern: of each text; empty where any text is allowed.
    annotation: the annotated type it was read from.
    """

    name: str
    kind: type
    default: Any
    description: str
    annotation: Any
    choices: tuple[str, ...] = ()
    bounds: tuple[Bound, ...] = ()
    lengths: tuple[Length, ...] = ()
    pattern: str = ""
    is_optional: bool = False
    is_tuple: bool = False

    def faults(self, value: object, prefix: str) -> Iterator[Fault]:
        """What is wrong with a value; fields are named ``prefix.name``."""
        field = f"{prefix}.{self.name}" if prefix else self.name
        if value is None and self.is_optional:
            return
        if not self.is_tuple:
            yield from self._faults_of_one(field, value)
            return
        if not isinstance(value, tuple | list):
            yield Fault(field, "wrong_type", f"{field} must be a sequence of values, got {value!r}")
            return
        low, high = self._allowed_lengths()
        if not low <= len(value) <= high:
            yield Fault(field, "out_of_bounds", f"{field} must hold {low} to {high} values, got {len(value)}")
        for one in value:
            yield from self._faults_of_one(field, one)

    def interval(self) -> str:
        """The numbers allowed, ``(0, 1e+08]``; empty where there are no bounds."""
        if not self.bounds:
            return ""
        low, high = "(-inf", "inf)"
        for bound in self.bounds:
            match bound:
                case Gt(gt=number):
                    low = f"({_number(number)}"
                case Ge(ge=number):
                    low = f"[{_number(number)}"
                case Lt(lt=number):
                    high = f"{_number(number)})"
                case Le(le=number):
                    high = f"{_number(number)}]"
        return f"{low}, {high}"

    def _faults_of_one(self, field: str, value: object) -> Iterator[Fault]:
        if self.choices:
            if not isinstance(value, str) or value not in self.choices:
                message = f"{field} must be one of {', '.join(self.choices)}, got {value!r}"
                yield Fault(field, "unknown_choice", message)
        elif self.kind in (int, float):
            wanted = Integral if self.kind is int else Real
            is_number = isinstance(value, wanted) and not isinstance(value, bool)
            if not is_number or not all(_is_within(value, bound) for bound in self.bounds):
                noun = "an integer" if self.kind is int else "a number"
                where = f" in {self.interval()}" if self.bounds else ""
                yield Fault(field, "out_of_bounds", f"{field} must be {noun}{where}, got {value!r}")
        elif not isinstance(value, self.kind):
            noun = "true or false" if self.kind is bool else "a text"
            yield Fault(field, "wrong_type", f"{field} must be {noun}, got {value!r}")
        elif self.pattern and isinstance(value, str) and not re.fullmatch(self.pattern, value):
            yield Fault(field, "bad_text", f"{field} must match {self.pattern}, got {value!r:.200}")

    def _allowed_lengths(self) -> tuple[int, float]:
        shortest = max((one.min_length for one in self.lengths if isinstance(one, MinLen)), default=0)
        longest = min(
            (one.max_length for one in self.lengths if isinstance(one, MaxLen)), default=float("inf")
        )
        return shortest, longest


def check_parameters(spec: Any, prefix: str, *others: Fault | None) -> None:
    """Check every hyper-parameter of ``spec``, an instance of a dataclass that declares some.

    prefix: of the field names, ``"student"`` gives ``"student.C"``. others: Faults of rules that bind several
    fields; those that are None are left out.
    Raises InvalidProblem naming every wrong field, with code ``out_of_bounds``, ``unknown_choice``,
    ``wrong_type`` or ``bad_text``.
    """
    declared: Any = type(spec)
    faults = [
        fault
        for parameter in parameters_of(declared)
        for fault in parameter.faults(getattr(spec, parameter.name), prefix)
    ]
    faults += [fault for fault in others if fault is not None]
    if faults:
        raise InvalidProblem(*faults)


@cache
def parameters_of(spec_class: type) -> tuple[Parameter, ...]:
    """The hyper-parameters that a dataclass declares, in the order of its fields.

    Raises TypeError for a declaration that this module cannot read.
    """
    hints = get_type_hints(spec_class, include_extras=True)
    found = []
    for field in fields(spec_class):
        annotation = hints[field.name]
        text = _text_of(annotation)
        if text is not None:
            default = field.default if field.default_factory is MISSING else field.default_factory()
            found.append(_read(field.name, annotation, default, text))
    return tuple(found)


def _read(name: str, annotation: Any, default: Any, text: str) -> Parameter:
    inner, metadata = _unwrapped(annotation)
    is_optional = is_tuple = False
    if get_origin(inner) in (Union, UnionType):
        alternatives = [one for one in get_args(inner) if one is not type(None)]
        if len(alternatives) != 1:
            raise TypeError(f"{name}: a hyper-parameter has one type, or one and None, not {inner}")
        is_optional = True
        inner, more = _unwrapped(alternatives[0])
        metadata += more
    if get_origin(inner) is tuple:
        element, dots = get_args(inner)
        if dots is not ...:
            raise TypeError(f"{name}: tuples are declared as tuple[X, ...], not {inner}")
        is_tuple = True
        inner, more = _unwrapped(element)
        metadata += more
    kind, choices = _kind_of(name, inner)
    return Parameter(
        name=name,
        kind=kind,
        default=default,
        description=text,
        annotation=annotation,
        choices=choices,
        bounds=tuple(one for one in metadata if isinstance(one, Gt | Ge | Lt | Le)),
        lengths=tuple(one for one in metadata if isinstance(one, MinLen | MaxLen)),
        pattern=next((one.pattern for one in metadata if isinstance(one, Pattern)), ""),
        is_optional=is_optional,
        is_tuple=is_tuple,
    )


def _kind_of(name: str, inner: Any) -> tuple[type, tuple[str, ...]]:
    if get_origin(inner) is Literal and all(isinstance(choice, str) for choice in get_args(inner)):
        return str, get_args(inner)
    if isinstance(inner, type) and issubclass(inner, StrEnum):
        return str, tuple(inner)
    if inner in (float, int, bool, str):
        return inner, ()
    raise TypeError(f"{name}: {inner} is not a type of hyper-parameters")


def _unwrapped(annotation: Any) -> tuple[Any, list[Any]]:
    """A type without ``Annotated``, and what was annotated."""
    if get_origin(annotation) is Annotated:
        return annotation.__origin__, list(annotation.__metadata__)
    return annotation, []


def _text_of(annotation: Any) -> str | None:
    texts = [one.documentation for one in _unwrapped(annotation)[1] if isinstance(one, Doc)]
    return texts[0] if texts else None


def _is_within(value: Any, bound: Bound) -> bool:
    """Whether a number is within one bound; NaN is within none."""
    match bound:
        case Gt(gt=low):
            return bool(value > low)
        case Ge(ge=low):
            return bool(value >= low)
        case Lt(lt=high):
            return bool(value < high)
        case Le(le=high):
            return bool(value <= high)


def _number(value: Any) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"
