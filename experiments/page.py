"""The report as one HTML page that refers to nothing outside of it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape

from experiments import plots, tables
from experiments.gathered import Gathered
from experiments.summary import Summary
from experiments.table import Table

_TITLE = "The paper's experiment, reproduced"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; display: block; overflow-x: auto; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right; font-size: 13px }
th:first-child, td:first-child { text-align: left } img { max-width: 100% }
figure { margin: 1.5rem 0 } figcaption { font-weight: 600 } .note { font-size: 13px; margin: .3rem 0 }
"""


def page(
    facts: Sequence[str],
    lists: Mapping[str, Sequence[str]],
    sections: Sequence[Table],
    gathered: Gathered,
) -> str:
    """facts: below the title. lists: sentences by heading. sections: tables. Then the figures."""
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>{escape(_TITLE)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(_TITLE)}</h1>",
        _list(facts),
    ]
    for title, lines in lists.items():
        parts += [f"<h2>{escape(title)}</h2>", _list(lines)]
    parts += ["<h2>Tables</h2>", *(table.html() for table in sections)]
    figures = [*_of_the_protocol(gathered.summary), *_of_the_parts(gathered)]
    if figures:
        parts += ["<h2>Figures</h2>", *figures]
    return "\n".join([*parts, "</body></html>\n"])


def _of_the_protocol(summary: Summary) -> list[str]:
    """Figure 4 for all, then Figures 2 and 3 with the table behind them for each data set and grid."""
    outcomes = [outcome for grids in summary.values() for outcome in grids.values()]
    if not outcomes:
        return []
    parts = [_image("Figure 4: inference time relative to the teacher", plots.inference_bars(outcomes))]
    for outcome in outcomes:
        name = f"{outcome.data_set}, {outcome.grid} grid"
        parts.append(
            _image(f"Figure 2: {name}, every class (axes do not start at 0)", plots.class_bars(outcome))
        )
        codes = plots.hardest_classes(outcome)
        if codes:
            title = f"Figure 3: {name}, ROC curves of the classes with the lowest AUC of gSVM"
            parts.append(_image(title, plots.roc_curves(outcome, codes)))
        parts.append(tables.per_class(outcome).html())
    return parts


def _of_the_parts(gathered: Gathered) -> list[str]:
    parts = []
    if gathered.curves:
        title = (
            "Compact students: mean F, with its interval, against the cost of a query (numbers: landmarks)"
        )
        parts.append(_image(title, plots.compact_curves(list(gathered.curves.values()))))
    parts += [
        _image(f"Reliability: {data_set}, gSVM of the open grid, test part", plots.reliability(found))
        for data_set, found in gathered.probabilities.items()
    ]
    if gathered.sparse:
        title = "One query of sparse text: time against the non-zeros of the row"
        parts.append(_image(title, plots.sparse_queries(gathered.sparse)))
    return parts


def _image(title: str, svg: bytes) -> str:
    data = base64.b64encode(svg).decode("ascii")
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<img alt="{escape(title)}" src="data:image/svg+xml;base64,{data}"></figure>'
    )


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
