"""The report's files: Markdown and JSON, and a page with the figures as SVG files beside it."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib as mpl

from lab.experiments.paper import FIGURES, METHODS
from lab.experiments.plans import DATA_SETS, Effort, plan_for
from lab.experiments.report.figures import STYLE, all_figures
from lab.experiments.report.remarks import findings, remarks
from lab.experiments.report.results import Results, cells_by_grid, goal_cells
from lab.experiments.report.tables import per_class, prose, report_tables
from lab.experiments.store import body

_TITLE = "The paper's experiment, reproduced"
_LIBRARIES = ("numpy", "scipy", "scikit-learn", "numba", "matplotlib")


def about(results: Results, effort: Effort, command: str, history: Sequence[str]) -> dict[str, Any]:
    """What a reader needs to repeat the run. history: all commands that made the results."""
    own = {"stms": version("stms"), "Python": platform.python_version()}
    return {
        "command": command,
        "seed": effort.seed,
        "replicates": effort.replicates,
        "threads": effort.n_threads,
        "history": list(history),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "versions": own | {name: version(name) for name in _LIBRARIES},
        "seconds": {part: round(value, 1) for part, value in results.seconds().items()},
    }


def write_report(results: Results, facts: dict[str, Any], folder: Path) -> list[Path]:
    """Markdown, JSON, and ``reproduction/`` with ``figures.md`` and its SVG files; returns their paths.

    facts: see ``about``.
    """
    beside = folder / "reproduction"
    beside.mkdir(parents=True, exist_ok=True)
    cells = {"cells": reached_cells(results, folder)}
    table = json.dumps(
        numbers(results) | cells | {"about": facts}, indent=2, ensure_ascii=False, allow_nan=False
    )
    text, pictures = _markdown(results, facts, _of_second(folder)), _figures(results, beside)
    files = {"reproduction.md": text, "reproduction.json": table + "\n", "reproduction/figures.md": pictures}
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return [folder / name for name in files]


def numbers(results: Results) -> dict[str, Any]:
    """Data set → grid → method → {mean, median} → {accuracy, f1, auc}; and, by their own names, the rest."""
    figures: dict[str, Any] = {}
    for outcome in results.outcomes:
        of_grid = figures.setdefault(outcome.data_set, {}).setdefault(outcome.grid, {})
        for method, (statistic, measure) in product(METHODS, FIGURES):
            value = round(outcome.value(method, statistic, measure), 4)
            of_grid.setdefault(method, {}).setdefault(statistic, {})[measure] = value
    return {
        **figures,
        "compact": {name: body(curve) for name, curve in results.curves.items()},
        "probabilities": {name: record["kinds"] for name, record in results.probabilities.items()},
        "goals": goal_cells(results),
        "not_complete": results.missing(),
    }


def reached_cells(results: Results, folder: Path) -> dict[str, dict[str, int]]:
    """How many of the 30 cells each method reaches, by grid.

    Protocol 2 counts if its report is in the folder: its grid ``product`` takes the place of the open grid.
    """
    second = _of_second(folder)
    return cells_by_grid(results) | ({"open": second["product"], "paper": second["paper"]} if second else {})


def _of_second(folder: Path) -> dict[str, dict[str, int]]:
    """The cells that the methods reach by protocol 2, by grid; empty if it has no report in the folder."""
    report = folder / "protocol_2.json"
    if not report.is_file():
        return {}
    cells: dict[str, dict[str, int]] = json.loads(report.read_text(encoding="utf-8"))["cells"]
    return cells


def _markdown(results: Results, facts: dict[str, Any], second: dict[str, dict[str, int]]) -> str:
    text = prose()
    libraries = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    others = [one for one in facts["history"] if one != facts["command"]]
    how = [line.format(**facts, libraries=libraries) for line in text["facts"]]
    exhaustive = ", ".join(name for name in DATA_SETS if plan_for(name, "paper").strategy == "exhaustive")
    sections = {
        f"# {_TITLE}": [*how, *(f"Other commands that made results: {one}" for one in others)],
        "## How": [line.format(exhaustive=exhaustive) for line in text["how"]],
        "## Findings": [*_second_cells(second), *findings(results)],
        "## Remarks": remarks(results),
    }
    lines = list[str]()
    for title, sentences in sections.items():
        lines += [title, "", *(f"- {sentence}" for sentence in sentences), ""]
    lines += ["## Tables", "", *(table.markdown() for table in report_tables(results)), text["end"], ""]
    return "\n".join(lines)


def _second_cells(second: dict[str, dict[str, int]]) -> list[str]:
    """One sentence for each grid of protocol 2."""
    return [
        f"Protocol 2 (protocol_2.md), cells of 30 on the grid {grid}: "
        + ", ".join(f"{method} {count}" for method, count in cells.items())
        + "."
        for grid, cells in second.items()
    ]


def _figures(results: Results, folder: Path) -> str:
    lines = [f"# {_TITLE}: figures and classes", ""]
    with mpl.rc_context(STYLE):
        for title, name, figure in all_figures(results):
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
            lines += [f"### {title}", "", f"![{title}]({name}.svg)", ""]
    return "\n".join([*lines, *(per_class(outcome).markdown() for outcome in results.outcomes)])
