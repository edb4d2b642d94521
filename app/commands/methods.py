"""Commands made of methods of the client: parameters become arguments and options, the docstring the help.

What the docstring says of a parameter, as ``name: text.``, is the help of its option.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Parameter
from itertools import islice
from string import Formatter
from types import NoneType
from typing import Annotated, Any, Final, get_args

import typer
from rich.markup import escape

from app.commands.output import Answer, Column, Fields, Since, listing
from app.commands.remote import AllowSchemaChange, asks_server
from stms_client import Client

_HELP: Final = re.compile(r"(?:^|(?<=[.] ))(\w+(?:, \w+)*): ([^.]+(?:[.](?! )[^.]*)*[.])")
_ARGUMENTS: Final = {
    "alias": "Name of the alias, such as production.",
    "dataset_id": "Id of the data set, from `stms datasets list`.",
    "job_id": "Id of the job, from `stms jobs list`.",
    "model": "Name of the model.",
    "webhook_id": "Id of the webhook, from `stms webhooks list`.",
}
"""Help of arguments that mean the same in every command."""
_OPTIONS: Final[dict[str, Any]] = {"since": Since, "allow_schema_change": AllowSchemaChange}


class _Sentences(Formatter):
    """Puts values into a sentence of rich markup as they are."""

    def format_field(self, value: Any, format_spec: str) -> str:
        return escape(super().format_field(value, format_spec))


def made(
    method: Callable[..., Any],
    *,
    about: str = "",
    example: str = "",
    says: str = "",
    columns: Sequence[Column] = (),
    empty: str = "",
    fields: Callable[[Any], Mapping[str, object]] = dict,
    limit: int | None = None,
    tenant: bool = True,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., None]:
    """The command that calls a method of `Client`, and prints what it returns.

    A list is printed as a table with these columns, or as the text ``empty``; a document as a sentence, in
    which braces name arguments and parts of the ``answer``, or else by its fields. limit: largest number of
    rows by default, for lists with an option for that. options: annotations of parameters, where the name
    and the docstring are not enough. about: the help, by default the first paragraph of the docstring.
    """
    _, *parameters = inspect.signature(method, eval_str=True).parameters.values()
    told, known = _told(method), {**_OPTIONS, **(options or {})}

    def call(client: Client, **given: Any) -> Answer | str:
        most = given.pop("limit", None)
        answer = getattr(client, method.__name__)(
            **{name: value for name, value in given.items() if value != []}
        )
        if isinstance(answer, Iterator):
            return listing(islice(answer, most), columns, empty)
        if says:
            return _Sentences().vformat(says, (), given | {"answer": answer})
        return Answer(answer, Fields(fields(answer)))

    own = [_option(one, known.get(one.name), told.get(one.name)) for one in parameters]
    if limit is not None:
        kind = Annotated[int, typer.Option("--limit", min=1, help="Largest number of rows.")]
        own.append(Parameter("limit", Parameter.KEYWORD_ONLY, default=limit, annotation=kind))
    client = Parameter("client", Parameter.POSITIONAL_ONLY, annotation=Client)
    returned: Any = str if says else Answer
    call.__signature__ = inspect.Signature([client, *own], return_annotation=returned)  # type: ignore[attr-defined]
    call.__doc__ = "\n\n".join(
        filter(None, [inspect.cleandoc(about) or _about(method), example and f"Example:  {example}"])
    )
    return asks_server(tenant=tenant)(call)


def _about(method: Callable[..., Any]) -> str:
    """The first paragraph of a docstring without its errors."""
    first, _, _ = (inspect.getdoc(method) or "").partition("\n\n")
    sentences = " ".join(first.split()).replace("``", "`").split(". ")
    return ". ".join(one for one in sentences if not one.startswith("Raises ")).rstrip(".") + "."


def _told(method: Callable[..., Any]) -> dict[str, str]:
    """What a docstring says of each parameter."""
    told: dict[str, str] = {}
    for names, text in _HELP.findall(" ".join((inspect.getdoc(method) or "").split())):
        told |= dict.fromkeys(names.split(", "), text[0].upper() + text[1:].replace("``", "`"))
    return told


def _option(parameter: Parameter, annotation: Any, told: str | None) -> Parameter:
    """The argument or option of a command for a parameter of a method. told: its help."""
    default, word = parameter.default, parameter.name.replace("_", "-")
    if default is Parameter.empty:
        text = told or _ARGUMENTS.get(parameter.name)
        kind = annotation or Annotated[_kind(parameter.annotation), typer.Argument(help=text)]
        return Parameter(parameter.name, Parameter.KEYWORD_ONLY, annotation=kind)
    of_option = _kind(parameter.annotation)
    if of_option == list[str]:
        default, word = list(default or ()), word.removesuffix("s")
    kind = annotation or Annotated[of_option, typer.Option(f"--{word}", help=told)]
    return Parameter(parameter.name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _kind(annotation: Any) -> Any:
    """The type of an option: texts for several types, and a list for a sequence."""
    kinds = set(get_args(annotation)) or {annotation}
    if any("Sequence" in str(kind) for kind in (annotation, *kinds)):
        return list[str]
    if str in kinds:
        return str | None if NoneType in kinds else str
    return annotation
