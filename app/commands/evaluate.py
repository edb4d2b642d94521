"""`stms evaluate`: a version on a labelled data set, alone or beside another version."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from app.commands.output import Answer, Column, Part, Table, error_console, field, notes
from app.commands.remote import asks_server
from app.domain.shown_figures import share
from stms_client import Client
from stms_client.documents import Evaluation


class DataPart(StrEnum):
    """A part of a data set."""

    all = "all"
    train = "train"
    test = "test"


class UnknownRows(StrEnum):
    """What becomes of rows of classes that not all versions have."""

    drop = "drop"
    keep = "keep"
    refuse = "refuse"


Dataset = Annotated[
    str, typer.Option("--dataset", help="Id of a labelled data set, from `stms datasets list`.")
]
Tolerance = Annotated[
    float, typer.Option("--tolerance", min=0.0, max=0.999, help="The loss of a share that does not matter.")
]
Alpha = Annotated[
    float,
    typer.Option("--alpha", min=1e-9, max=0.5, help="Probability that any verdict of all classes is wrong."),
]


@asks_server()
def evaluate(
    client: Client,
    version: Annotated[str, typer.Argument(help="The version: letters@5, letters@candidate or letters.")],
    dataset: Dataset,
    baseline: Annotated[
        str | None, typer.Option("--baseline", help="A version to compare with on the same rows.")
    ] = None,
    part: Annotated[DataPart, typer.Option("--part", help="Of the data set.")] = DataPart.all,
    tolerance: Tolerance = 0.01,
    alpha: Alpha = 0.05,
    unknown_classes: Annotated[
        UnknownRows,
        typer.Option(
            "--unknown-classes",
            help="Rows of classes that not all versions have: left out, kept for no class, or refused.",
        ),
    ] = UnknownRows.drop,
    gate: Annotated[
        bool, typer.Option("--gate", help="Exit with 1 if the version is worse than the baseline.")
    ] = False,
) -> Answer:
    """Measure a version on a labelled data set, and compare it with another one on the same rows.

    Rows that either version was trained on do not count, wherever they stand. A class is `worse` if the same
    rows prove it, `not worse` if they prove that it lost at most the tolerance, and otherwise undecided.

    Examples:

      stms evaluate letters@5 --dataset ds_01

      stms evaluate letters@5 --dataset ds_01 --baseline letters@production --gate
    """
    made = client.evaluate(
        version,
        dataset,
        baseline=baseline,
        part=part.value,
        tolerance=tolerance,
        alpha=alpha,
        unknown_classes=unknown_classes.value,
    )
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=error_console(), transient=True) as bar:
        task = bar.add_task("waiting", total=None)

        def show(found: Evaluation) -> None:
            total = found["progress_total"] or None
            bar.update(task, description=found["state"], completed=found["progress_done"], total=total)

        ended = client.wait_for_evaluation(made["id"], progress=show)
    failed = gate and ended["verdict"] == "worse"
    return Answer(ended, *report(ended), exit_code=1 if failed else 0)


def report(evaluation: Evaluation) -> list[Part]:
    """What people see of an evaluation."""
    parts: list[Part] = []
    against = f" against {evaluation['baseline']}" if evaluation["baseline"] else ""
    left_out = ", ".join(
        f"{count} {reason.replace('_', ' ')}" for reason, count in evaluation["rows_left_out"].items()
    )
    if evaluation["rows_used"] is not None:
        rows = f"{evaluation['rows_used']} rows" + (f" (left out: {left_out})" if left_out else "")
        parts.append(escape(f"{evaluation['id']}: {evaluation['version']}{against} on {rows}"))
    parts += notes(evaluation["warnings"])
    columns = [*_MEASURES, *(_COMPARED if evaluation["baseline"] else ())]
    parts.append(Table(columns, evaluation["classes"], empty="No class was evaluated."))
    if evaluation["not_compared"]:
        parts.append(escape(f"not compared: {', '.join(evaluation['not_compared'][:20])}"))
    if evaluation["verdict"]:
        parts.append(f"verdict: {evaluation['verdict'].replace('_', ' ')}")
    return parts


def _interval(name: str) -> Column:
    def shown(row: Mapping[str, Any]) -> str:
        found = row[name]
        if found is None:
            return "–"
        return f"{share(found['estimate'])} ({share(found['low'])} to {share(found['high'])})"

    return name.replace("_", " "), shown


def _lost(side: str, title: str) -> Column:
    """Rows that only the baseline, and that only the version answered right."""

    def shown(row: Mapping[str, Any]) -> str:
        counts = row["comparison"][side]
        return f"−{counts['only_baseline_right']} +{counts['only_candidate_right']}"

    return title, shown


def _verdict(row: Mapping[str, Any]) -> str:
    comparison = row["comparison"]
    verdict = str(comparison["verdict"]).replace("_", " ")
    sides = (comparison["recall"], comparison["false_positives"])
    needed = max((side["rows_to_decide"] or 0 for side in sides), default=0)
    return f"{verdict}, {needed} rows would decide" if verdict == "undecided" and needed else verdict


_MEASURES: list[Column] = [
    field("class"),
    field("n", "rows"),
    ("F", lambda row: share(row["f1"])),
    _interval("precision"),
    _interval("recall"),
    _interval("false_positive_rate"),
    ("AUC", lambda row: share(row["auc"])),
]
_COMPARED: list[Column] = [
    ("F before", lambda row: share(row["baseline"]["f1"])),
    _lost("recall", "own rows"),
    _lost("false_positives", "other rows"),
    ("p", lambda row: _smallest(row["comparison"])),
    ("verdict", _verdict),
]


def _smallest(comparison: Mapping[str, Any]) -> str:
    return f"{min(comparison[side]['p_adjusted'] for side in ('recall', 'false_positives')):.2g}"
