"""Hyper-parameters on the command line: `--set student.C=1e5`, `--params FILE`, and what each one means."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import typer
from annotated_types import Ge, Gt, Le, Lt, MaxLen
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from rich.markup import escape

from app.commands.output import Json, JsonOption, print_json, say
from app.domain.training_spec import TrainingSpec

SetOption = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A hyper-parameter, e.g. student.C=1e5; see `stms hyperparameters`.",
    ),
]
TuneOption = Annotated[
    bool,
    typer.Option("--tune", help="Search for C, ε and ϵ of every student first; the same as --set tuning={}."),
]
ParamsOption = Annotated[
    Path | None,
    typer.Option(
        "--params", exists=True, dir_okay=False, help="JSON file of hyper-parameters; --set goes on top."
    ),
]


def hyperparameters(as_json: JsonOption = False) -> None:
    """All hyper-parameters of a training job: names, defaults, bounds, meaning.

    Example:  stms train digits.csv --model digits --set student.C=1e4 --set features.kind=nystroem
    """
    if as_json:
        print_json(TrainingSpec.model_json_schema())
        return
    for row in describe_fields(TrainingSpec):
        allowed = f"  ({row['allowed']})" if row["allowed"] else ""
        say(f"[bold]{row['name']}[/] = {escape(row['default'] + allowed)}")
        say(f"    {escape(row['meaning'])}")


def describe_fields(model: type[BaseModel], prefix: str = "") -> Iterator[dict[str, str]]:
    """One row a hyper-parameter, nested ones by their dotted names."""
    for name, field in model.model_fields.items():
        groups = [kind for kind in _alternatives(field.annotation) if _is_group(kind)]
        if groups != [field.annotation]:
            yield {
                "name": prefix + name,
                "default": json.dumps(field.get_default(call_default_factory=True)),
                "allowed": _allowed(field),
                "meaning": field.description or "",
            }
        for group in groups:
            yield from describe_fields(group, f"{prefix}{name}.")


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _allowed(field: FieldInfo) -> str:
    values = [value for kind in _alternatives(field.annotation) for value in _literals(kind)]
    signs = {
        Ge: ("≥", "ge"),
        Gt: (">", "gt"),
        Le: ("≤", "le"),
        Lt: ("<", "lt"),
        MaxLen: ("length ≤", "max_length"),
    }
    bounds = [
        f"{signs[type(bound)][0]} {getattr(bound, signs[type(bound)][1]):.10g}"
        for bound in field.metadata
        if type(bound) in signs
    ]
    return " | ".join(values) if values else " and ".join(bounds)


def _alternatives(kind: Any) -> Sequence[Any]:
    """The types of a union, without what is annotated to them; of another type that type alone."""
    kinds = get_args(kind) if get_origin(kind) is Union or type(kind).__name__ == "UnionType" else (kind,)
    return tuple(get_args(one)[0] if get_origin(one) is Annotated else one for one in kinds)


def _literals(kind: Any) -> list[str]:
    return [value for value in get_args(kind) if isinstance(value, str)]


def read_hyperparameters(assignments: Sequence[str], file: Path | None, *, tune: bool = False) -> Json:
    """The hyper-parameters that were given, nested as the server wants them and checked.

    tune: search for hyper-parameters, also where nothing else says so.

    Raises typer.BadParameter (exit code 2) that names what is wrong.
    """
    given = _read_file(file) if file else {}
    for assignment in assignments:
        name, sign, value = assignment.partition("=")
        if not sign or not name:
            raise typer.BadParameter(
                f"{assignment!r} is not NAME=VALUE, e.g. student.C=1e5", param_hint="--set"
            )
        _put(given, name.strip().split("."), _value(value.strip()))
    if tune and given.get("tuning") is None:
        given["tuning"] = {}
    try:
        TrainingSpec.model_validate(given)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        raise typer.BadParameter(
            "; ".join(faults) + ". `stms hyperparameters` lists them all.", param_hint="hyper-parameters"
        ) from error
    return given


def _read_file(file: Path) -> Json:
    try:
        given = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise typer.BadParameter(f"{file} is not JSON: {error}", param_hint="--params") from error
    if not isinstance(given, dict):
        raise typer.BadParameter(f"{file} does not hold a JSON object", param_hint="--params")
    return given


def _put(given: Json, path: Sequence[str], value: object) -> None:
    inner = given
    for part in path[:-1]:
        inner = inner.setdefault(part, {})
        if not isinstance(inner, dict):
            raise typer.BadParameter(f"{'.'.join(path)}: {part} is a value, not a group", param_hint="--set")
    inner[path[-1]] = value


def _value(text: str) -> object:
    """JSON where it is JSON (numbers, true, null, lists), else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
