"""The report: Markdown, JSON, and one HTML file that needs nothing else."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from experiments import part_tables, tables
from experiments.gathered import Gathered
from experiments.goals import goal_cells
from experiments.page import page
from experiments.paper import GOAL_SETS
from experiments.plans import BEYOND_THE_PAPER, DATA_SETS, GRIDS, PART_ONLY, plan_for
from experiments.remarks import findings, remarks
from experiments.summary import figures
from experiments.table import Table

_LIBRARIES = ("numpy", "scipy", "scikit-learn", "numba", "matplotlib")
_GRID_TITLES = {"paper": "the paper's grid", "open": "the open grid"}
_CLASS_BY_CLASS = ("news20_bydate",)
"""Sets whose classes stand in the Markdown file, too."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a reader needs to do it again. history: the commands that have made the results."""

    command: str
    seed: int
    replicates: int
    threads: int
    history: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """As sentences."""
        libraries = ", ".join(f"{name} {number}" for name, number in versions().items())
        others = [one for one in self.history if one != self.command]
        return [
            f"Command: {self.command}",
            *(f"Results were made by, too: {one}" for one in others),
            f"Seed {self.seed}; {self.replicates} bootstrap replicates over test rows.",
            f"Versions: {libraries}.",
            f"Machine: {os.cpu_count()} cores ({platform.machine()}); {self.threads} fits at the same time.",
        ]


def versions() -> dict[str, str]:
    """Of this program, Python and the libraries that figures depend on."""
    own = {"stms": version("stms"), "Python": platform.python_version()}
    return own | {name: version(name) for name in _LIBRARIES}


_HOW = (
    (
        "Paper's grid: C 1e-3 to 1e3 (divided by n), ε 0 to 1.5, ϵ 0.1 to 0.5, stratified folds, threshold 0,"
        " best F on held-out rows. Fixed feature map with the scale rule for γ. The paper gives no values for"
        " its teacher; its C is chosen from 1 to 1e6."
    ),
    (
        "Open grid: C 1 to 1e6; scaling, γ and the teacher's C chosen by cross-validated teachers. The"
        " students of a method share one point, chosen for all classes together on held-out rows. Both are"
        " chosen by one minus the geometric mean of the errors in accuracy, F and AUC, each a mean over"
        " classes. The students share the threshold with the best accuracy + F, too, but for a class that"
        " gains by more than a standard error from its own. Rows of one speaker (vowel) or chain (protein)"
        " share a fold, as the test parts have other ones."
    ),
    (
        "The teacher answers by its largest score; its ROC curve is that of the margin to the best other"
        " class. A measure that is undefined for a class, being absent from the test part, is left out of"
        " mean and median. Yeast is averaged over its splits, and its intervals are those of the average."
    ),
)


def how() -> list[str]:
    """What was done, in words."""
    exhaustive = [name for name in DATA_SETS if plan_for(name, "paper").strategy == "exhaustive"]
    search = (
        "On the paper's grid every point is measured on every fold where that is affordable: on split 0 of"
        f" {', '.join(exhaustive)}. Elsewhere successive halving is used; see the table of settings."
    )
    return [*_HOW, search]


def write_report(gathered: Gathered, facts: Facts, folder: Path) -> list[Path]:
    """``reproduction.md``, ``.json`` and ``.html`` in ``folder``; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    sections = report_tables(gathered)
    lists = {"How": how(), "Findings": findings(gathered), "Remarks": remarks(gathered)}
    lists = {title: lines for title, lines in lists.items() if lines}
    written = {
        "reproduction.md": _markdown(facts, lists, sections),
        "reproduction.json": _json(numbers(gathered, facts)) + "\n",
        "reproduction.html": page(facts.lines(), lists, sections, gathered),
    }
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in written]


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)


def report_tables(gathered: Gathered) -> list[Table]:
    """Tables in the order of the report, those without rows left out."""
    summary = gathered.summary
    found = []
    for grid in GRIDS:
        title = f"Table 3 on {_GRID_TITLES[grid]}"
        found.append(tables.comparison(summary, grid, GOAL_SETS, title))
    found += [tables.goals(summary), tables.leads(summary)]
    for grid in GRIDS:
        title = f"{PART_ONLY} on {_GRID_TITLES[grid]}: a part of the paper's protein, not comparable"
        found.append(tables.comparison(summary, grid, (PART_ONLY,), title))
    for grid in GRIDS:
        title = f"Beyond the paper, {_GRID_TITLES[grid]}"
        found.append(tables.comparison(summary, grid, BEYOND_THE_PAPER, title))
    found += [
        tables.class_measures(outcome, ("f1", "auc"))
        for data_set in _CLASS_BY_CLASS
        for outcome in summary.get(data_set, {}).values()
    ]
    found += [
        part_tables.compact(gathered.curves),
        part_tables.probabilities(gathered.probabilities),
        tables.inference(summary),
        part_tables.sparse(gathered.sparse),
        tables.settings(summary),
        part_tables.covered(gathered),
        part_tables.times(gathered),
    ]
    return [table for table in found if table.rows]


def numbers(gathered: Gathered, facts: Facts) -> dict[str, Any]:
    """Data set → grid → method → {mean, median} → {accuracy, f1, auc}; and, by their own names, the rest."""
    return {
        **figures(gathered.summary),
        "compact": {data_set: curve.as_dict() for data_set, curve in gathered.curves.items()},
        "probabilities": {
            data_set: {kind: one.as_dict() for kind, one in found.kinds.items()}
            for data_set, found in gathered.probabilities.items()
        },
        "sparse_queries": {
            data_set: {name: record[name] for name in _SPARSE} for data_set, record in gathered.sparse.items()
        },
        "goals": [{**asdict(cell), "reached": cell.reached} for cell in goal_cells(gathered.summary)],
        "not_complete": [asdict(one) for one in gathered.covered if not one.complete],
        "about": {
            **asdict(facts),
            "cores": os.cpu_count(),
            "versions": versions(),
            "seconds": {part: round(value, 1) for part, value in gathered.seconds().items()},
        },
    }


_SPARSE = ("label", "columns", "seconds_a_query", "seconds_a_nonzero", "groups")


def _markdown(facts: Facts, lists: dict[str, list[str]], sections: Sequence[Table]) -> str:
    lines = ["# The paper's experiment, reproduced", "", *(f"- {line}" for line in facts.lines()), ""]
    for title, sentences in lists.items():
        lines += [f"## {title}", "", *(f"- {sentence}" for sentence in sentences), ""]
    lines += ["## Tables", "", "\n".join(table.markdown() for table in sections)]
    lines += ["Figures, and the tables of all classes, are in `reproduction.html`.", ""]
    return "\n".join(lines)
