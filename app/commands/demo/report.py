"""Tables that the demo prints: metrics per class, timeline and latency."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from app.commands.demo.cost import Costs
from app.domain.event_text import describe_event
from app.domain.shown_figures import share

METHODS = {"teacher": "teacher", "svm": "SVM", "gsvm0": "gSVM-0", "gsvm": "gSVM"}
MEASURES = {"accuracy": "acc.", "f1": "F", "auc": "AUC"}


def students_table(students: Sequence[Mapping[str, Any]]) -> Table:
    """One line per class with the three metrics of every method, and means in the footer."""
    table = Table(
        title="On the test part: accuracy, F, area under the ROC curve",
        title_justify="left",
        show_footer=True,
        box=SIMPLE_HEAD,
    )
    table.add_column("\nclass", footer="mean")
    metrics = {(row["label"], row["method"]): row.get("metrics") or {} for row in students}
    measures = " ".join(f"{name:>6}" for name in MEASURES.values())
    for method, title in METHODS.items():
        footer = _cell(means(students, method))
        table.add_column(f"{title}\n{measures}", justify="right", footer=footer, no_wrap=True)
    for label in dict.fromkeys(row["label"] for row in students):
        table.add_row(label, *(_cell(metrics.get((label, method), {})) for method in METHODS))
    return table


def means(students: Iterable[Mapping[str, Any]], method: str) -> dict[str, float | None]:
    """Mean of each metric over the classes where it is defined."""
    rows = [row.get("metrics") or {} for row in students if row["method"] == method]
    values = {name: [row[name] for row in rows if row.get(name) is not None] for name in MEASURES}
    return {name: statistics.fmean(defined) if defined else None for name, defined in values.items()}


def _cell(metrics: dict[str, float | None]) -> str:
    return " ".join(f"{share(metrics.get(name)):>6}" for name in MEASURES)


def print_timeline(console: Console, events: Sequence[Mapping[str, Any]]) -> None:
    """Print the stored events with seconds since the job was accepted; students are only counted."""
    start = datetime.fromisoformat(events[0]["at"])
    students = 0
    for event in events:
        if event["type"] in {"stage_progress", "student_finished"}:
            students += event["type"] == "student_finished"
            continue
        line = describe_event(event["type"], event["data"])
        if students:
            line, students = f"{line} (after {students} students)", 0
        seconds = (datetime.fromisoformat(event["at"]) - start).total_seconds()
        console.print(f"  {seconds:6.2f} s  {line}", markup=False)


def costs_table(costs: Costs) -> Table:
    """Median latency of one row, and the ratio of teacher to student."""
    table = Table(title="Median latency of one warm query", title_justify="left", box=SIMPLE_HEAD)
    for title in ("", "one student", "whole teacher", "teacher / student"):
        table.add_column(title, justify="right" if title else "left")
    for title, student, teacher in (
        ("in process", costs.student.local_seconds, costs.teacher.local_seconds),
        ("over HTTP", costs.student.http_seconds, costs.teacher.http_seconds),
    ):
        table.add_row(title, _micro(student), _micro(teacher), f"{teacher / student:.1f}")
    return table


def _micro(seconds: float) -> str:
    return f"{1e6 * seconds:.1f} µs"


def say(console: Console, text: str) -> None:
    """Print what a demonstration does next."""
    console.print(f"[bold cyan]▸[/] [bold]{text}[/]")
