"""Hyper-parameters of a job that differ from the defaults: as few as possible that make an equal job again,
or a job that differs in some of them.
"""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

from app.domain.entities import Json
from app.domain.training_spec import LEARNERS, TrainingSpec

_METHOD: Final = ("method",)
_METHODS: Final = {"features": ("kind",), "teacher": ("method", "model")}
"""The fields that determine which other fields a group has."""


def changes(stored: Json) -> Json:
    """Hyper-parameters for a new job that give it the specification with which another job is stored.

    Of a group only the fields that differ from the defaults are sent, and nothing that follows from the rest.
    """
    wanted = TrainingSpec.model_validate(stored).model_dump(mode="json")
    sent: Json = {"automatic": wanted["automatic"]}
    usual = _result(sent) or {}
    sent |= {name: _fewest(name, value) for name, value in wanted.items() if value != usual.get(name)}
    for whole in ({name: wanted[name] for name in sent}, wanted):
        if _result(sent) != wanted:
            sent = whole
    for name in list(sent):
        rest = {key: value for key, value in sent.items() if key != name}
        if _result(rest) == wanted:
            sent = rest
    return sent


def merged(base: Json, given: Json) -> Json:
    """The hyper-parameters ``base``, in the form that `changes` returns, updated with the ``given`` ones.

    Within a group only the given fields change, unless the group gets another method, which has other fields.
    A job for which a learner is given is automatic only if ``given`` says so, as for a new job.
    A job that gets a learner is automatic only if ``given`` says so, as a new job.
    """
    usual = _result(base) or {}
    # Whether a job is automatic follows from the learners that it names, unless it says so.
    both = base | {"automatic": usual.get("automatic")}
    if any(given.get(name) is not None for name in LEARNERS):
        both["automatic"] = None
    for name, value in given.items():
        has_other_fields = _has_another_method(usual.get(name), value, _METHODS.get(name, _METHOD))
        both[name] = value if has_other_fields else _with_fields(both.get(name), value)
    return both


def _with_fields(before: object, given: object) -> object:
    """``given`` in place of ``before``; two groups are merged."""
    if not (isinstance(before, dict) and isinstance(given, dict)):
        return given
    return before | {name: _with_fields(before.get(name), value) for name, value in given.items()}


def _has_another_method(before: object, given: object, names: tuple[str, ...]) -> bool:
    if not (isinstance(before, dict) and isinstance(given, dict)):
        return False
    return any(name in given and given[name] != before.get(name) for name in names)


def _fewest(name: str, value: object) -> object:
    """The fields of a group that differ from its defaults, and always its method; another value unchanged."""
    if not isinstance(value, dict):
        return value
    named = {"method": value["method"]} if "method" in value else {}
    plain = (_result({"automatic": False, name: named}) or {}).get(name, {})
    return named | {key: one for key, one in value.items() if one != plain.get(key)}


def _result(values: Json) -> Json | None:
    """The specification of a job with these hyper-parameters; None if they are refused."""
    try:
        return TrainingSpec.model_validate(values).model_dump(mode="json")
    except ValidationError:
        return None
