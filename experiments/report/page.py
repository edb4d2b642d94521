"""The report's three files: Markdown, JSON, and one HTML page that refers to nothing outside of it."""

from __future__ import annotations

import base64
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from experiments.paper import MEASURES, METHODS, STATISTICS
from experiments.plans import DATA_SETS, plan_for
from experiments.report import figures
from experiments.report.remarks import findings, remarks
from experiments.report.results import Results, goal_cells
from experiments.report.tables import per_class, prose, report_tables

_TITLE = "The paper's experiment, reproduced"
_LIBRARIES = ("numpy", "scipy", "scikit-learn", "numba", "matplotlib")
_SPARSE = ("label", "columns", "seconds_a_query", "seconds_a_nonzero", "groups")
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; display: block; overflow-x: auto; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right; font-size: 13px }
th:first-child, td:first-child { text-align: left } img { max-width: 100% }
figure { margin: 1.5rem 0 } figcaption { font-weight: 600 }
"""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a reader needs to repeat the run. history: the commands that made the results."""

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
            *(f"Other commands that made results: {one}" for one in others),
            f"Seed {self.seed}; {self.replicates} bootstrap replicates over test rows.",
            f"Versions: {libraries}.",
            f"Machine: {os.cpu_count()} cores ({platform.machine()}); {self.threads} fits at the same time.",
        ]


def versions() -> dict[str, str]:
    """Of this program, Python and the libraries that figures depend on."""
    own = {"stms": version("stms"), "Python": platform.python_version()}
    return own | {name: version(name) for name in _LIBRARIES}


def write_report(results: Results, facts: Facts, folder: Path) -> list[Path]:
    """``reproduction.md``, ``.json`` and ``.html`` in ``folder``; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    text = _markdown(results, facts)
    end = "Figures, and the tables of all classes, are in `reproduction.html`.\n"
    files = {
        "reproduction.md": text + end,
        "reproduction.json": json.dumps(
            numbers(results, facts), indent=2, ensure_ascii=False, allow_nan=False
        )
        + "\n",
        "reproduction.html": _page(text, results),
    }
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return [folder / name for name in files]


def numbers(results: Results, facts: Facts) -> dict[str, Any]:
    """Data set → grid → method → {mean, median} → {accuracy, f1, auc}; and, by their own names, the rest."""
    cells: dict[str, Any] = {}
    for outcome in results.outcomes:
        cells.setdefault(outcome.data_set, {})[outcome.grid] = {
            method: {
                statistic: {
                    measure: round(outcome.value(method, statistic, measure), 4) for measure in MEASURES
                }
                for statistic in STATISTICS
            }
            for method in METHODS
        }
    stored = ("key", "recipe", "code")
    return {
        **cells,
        "compact": {
            name: {key: value for key, value in curve.items() if key not in stored}
            for name, curve in results.curves.items()
        },
        "probabilities": {name: record["kinds"] for name, record in results.probabilities.items()},
        "sparse_queries": {
            name: {key: record[key] for key in _SPARSE} for name, record in results.sparse.items()
        },
        "goals": [{**asdict(cell), "reached": cell.reached} for cell in goal_cells(results)],
        "not_complete": results.missing,
        "about": {
            **asdict(facts),
            "cores": os.cpu_count(),
            "versions": versions(),
            "seconds": {part: round(value, 1) for part, value in results.seconds().items()},
        },
    }


def _markdown(results: Results, facts: Facts) -> str:
    exhaustive = [name for name in DATA_SETS if plan_for(name, "paper").strategy == "exhaustive"]
    how = [line.format(exhaustive=", ".join(exhaustive)) for line in prose()["how"]]
    sections = {"How": how, "Findings": findings(results), "Remarks": remarks(results)}
    lines = [f"# {_TITLE}", "", *(f"- {line}" for line in facts.lines()), ""]
    for title, sentences in sections.items():
        if sentences:
            lines += [f"## {title}", "", *(f"- {sentence}" for sentence in sentences), ""]
    return "\n".join([*lines, "## Tables", "", *(table.markdown() for table in report_tables(results)), ""])


def _page(text: str, results: Results) -> str:
    html = MarkdownIt("commonmark", {"html": False}).enable("table")
    pictures = "\n".join(_figures(results, html))
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>{escape(_TITLE)}</title><style>{_STYLE}</style></head><body>",
            html.render(text),
            f"<h2>Figures</h2>\n{pictures}" if pictures else "",
            "</body></html>\n",
        ]
    )


def _figures(results: Results, html: MarkdownIt) -> Iterator[str]:
    """Figure 4, then Figures 2 and 3 with the table behind them for each data set and grid, then the rest."""
    if results.outcomes:
        yield _image(
            "Figure 4: inference time relative to the teacher", figures.inference_bars(results.outcomes)
        )
    for outcome in results.outcomes:
        name = f"{outcome.data_set}, {outcome.grid} grid"
        yield _image(f"Figure 2: {name}, every class (axes do not start at 0)", figures.class_bars(outcome))
        if outcome.hardest():
            title = f"Figure 3: {name}, ROC curves of the classes with the lowest AUC of gSVM"
            yield _image(title, figures.roc_curves(outcome))
        yield html.render(per_class(outcome).markdown())
    if results.curves:
        title = (
            "Compact students: mean F, with its interval, against the cost of a query (numbers: landmarks)"
        )
        yield _image(title, figures.compact_curves(list(results.curves.values())))
    for data_set, record in results.probabilities.items():
        yield _image(
            f"Reliability: {data_set}, gSVM of the open grid, test part", figures.reliability(record)
        )
    if results.sparse:
        title = "One query of sparse text: time against the non-zeros of the row"
        yield _image(title, figures.sparse_queries(results.sparse))


def _image(title: str, svg: bytes) -> str:
    data = base64.b64encode(svg).decode("ascii")
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<img alt="{escape(title)}" src="data:image/svg+xml;base64,{data}"></figure>'
    )
