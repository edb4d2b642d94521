"""The options that say how a file is read, declared once for all commands that read one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from inspect import Parameter
from typing import Annotated, Any, Final

import typer

from app.commands.inspection import kinds_of, listed, names_of

_OPTIONS: Final[Mapping[str, Any]] = {
    "label_column": Annotated[
        str | None,
        typer.Option(
            "--label-column",
            help="Name of the column of labels, or its number, counted from 0, negative from the end.",
            show_default="the one with a usual name, or else the last",
        ),
    ],
    "header": Annotated[
        str | None,
        typer.Option(
            "--header", help="Whether line 1 names the columns: yes, no or auto.", show_default="auto"
        ),
    ],
    "separator": Annotated[
        str | None,
        typer.Option(
            "--separator", help="One character, or comma, semicolon, tab, pipe, space.", show_default="auto"
        ),
    ],
    "decimal": Annotated[
        str | None, typer.Option("--decimal", help="Sign of decimals: . or ,", show_default="auto")
    ],
    "index_column": Annotated[
        str | None,
        typer.Option(
            "--index-column",
            help="Column to leave out, since it numbers the rows; none: no column.",
            show_default="one without a name",
        ),
    ],
    "index_base": Annotated[
        str | None,
        typer.Option("--index-base", help="First index of svmlight rows: 0 or 1.", show_default="auto"),
    ],
    "columns": Annotated[
        list[str],
        typer.Option(
            "--column",
            metavar="NAME:KIND",
            help="Kind of a column: number, boolean, category, date, text, vector, ignore, date:PATTERN such"
            " as date:%d/%m/%Y, or number:PATTERN such as number:$1,234.5. Repeatable.",
            show_default="found",
        ),
    ],
    "null_values": Annotated[
        list[str], typer.Option("--null", metavar="TOKEN", help="A token of missing values. Repeatable.")
    ],
    "skip_lines": Annotated[
        int | None, typer.Option("--skip-lines", min=0, help="Lines above the table of a CSV file.")
    ],
    "column_names": Annotated[
        str | None,
        typer.Option("--column-names", help="Names of the columns of a CSV file without a header: a,b,c"),
    ],
    "encoding": Annotated[
        str | None, typer.Option("--encoding", help="utf-8, latin-1 or windows-1252.", show_default="utf-8")
    ],
    "rare_classes": Annotated[
        str | None,
        typer.Option(
            "--rare-classes",
            help="Classes of a single row. drop: leave them out; keep: keep them, in a file to test on or to"
            " append; refuse: name them.",
            show_default="drop at most 1 % of the rows, and say so",
        ),
    ],
    "unlabelled": Annotated[
        str | None,
        typer.Option(
            "--unlabelled",
            help="Rows without a label. accept: keep them; drop: leave them out; refuse: name them.",
            show_default="drop at most 1 % of the rows, and say so",
        ),
    ],
    "subject_column": Annotated[
        str | None,
        typer.Option(
            "--subject-column",
            help="Column that tells whom a row is about. It is no feature; rows keep a pseudonym, by which"
            " `stms datasets erase-subject` finds them.",
            show_default="none",
        ),
    ],
}
"""By the names of the fields of `app.ingest.options.ReadingOptions`."""
_LISTS: Final = frozenset({"columns", "null_values"})


@dataclass(frozen=True, slots=True)
class Reading:
    """What the options of a command say of a file, by their names in `ReadingOptions`."""

    said: Mapping[str, Any]

    def but(self, **said: str | int | None) -> Reading:
        """The same with other values of some options."""
        return replace(self, said={**self.said, **said})

    @property
    def texts(self) -> dict[str, str | None]:
        """As `ReadingOptions.parse` takes them."""
        return {
            name: listed(value) if name in _LISTS else None if value is None else str(value)
            for name, value in self.said.items()
        }

    @property
    def for_upload(self) -> dict[str, Any]:
        """As `Client.upload_dataset` takes them. Raises InvalidRequest for what cannot be said of a file."""
        # Loads the libraries of data, which takes a while.
        from app.ingest.options import ReadingOptions

        ReadingOptions.parse(**self.texts)
        columns, names = kinds_of(self.said["columns"]), names_of(self.said["column_names"])
        return {**self.said, "columns": columns, "column_names": names}


UNSAID: Final = Reading({})
"""Nothing is said; the default of the parameter that `takes_reading` replaces."""


def takes_reading(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command options in place of its parameter ``reading``, a `Reading` with what they say.

    names: which options; without any, all.
    """
    chosen = names or tuple(_OPTIONS)
    options = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=[] if name in _LISTS else None,
            annotation=_OPTIONS[name],
        )
        for name in chosen
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def call(**arguments: Any) -> None:
            said = {name: arguments.pop(name) for name in chosen}
            command(**arguments, reading=Reading(said))

        signature = inspect.signature(command, eval_str=True)
        parameters: list[Parameter] = []
        for parameter in signature.parameters.values():
            if parameter.name == "reading":
                parameters += options
            else:
                parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
        # The options of a command are those of its signature.
        call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return call

    return decorate
