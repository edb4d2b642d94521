"""What a job's hyper-parameters have beside the defaults: few that make an equal job again."""

from __future__ import annotations

from pydantic import ValidationError

from app.domain.entities import Json
from app.domain.training_spec import TrainingSpec


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


def _fewest(name: str, value: object) -> object:
    """The fields of a group that differ from its defaults, its method always; another value as it is."""
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
