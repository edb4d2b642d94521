"""Protocol 2 of ``lab/experiments/protocol_2.md``.

    python -m lab.experiments.protocol_2 --data FOLDER [--final] [--work FOLDER] [--out FOLDER]
                                         [--sets NAME …] [--rows N] [--replicates N] [--report-only]

Without ``--final`` two thirds of every training part are learnt from and the last third is measured: for
development, and no figure of it belongs into a report. ``--final`` is the one run on the test parts. Every
record is stored in ``--work`` as soon as it is made, and a stopped run goes on from there; ``--out`` gets
protocol_2.json and protocol_2.md, whose counts ``python -m lab.experiments.reproduce --report-only`` then
puts into the report of protocol 1. The last line is a JSON object with cells, differences and minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.experiments.data import DataMissing
from lab.experiments.paper import GOAL_SETS
from lab.experiments.plans import Effort
from lab.experiments.protocol_2.runs import UNSEEN_SETS, ProtocolTwo, Source, planned_runs
from lab.experiments.protocol_2.summary import markdown, summarise
from lab.experiments.report.results import cells_by_grid, read
from lab.experiments.store import Store, make_missing


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 unless a data set is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.experiments.protocol_2",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--final", action="store_true")
    parser.add_argument("--work", type=Path, default=Path("reproduction"))
    parser.add_argument("--out", type=Path, default=None, help="by default docs with --final, else --work")
    parser.add_argument("--sets", nargs="+", default=[*GOAL_SETS, *UNSEEN_SETS])
    parser.add_argument(
        "--rows", type=int, default=None, help="training rows of a set at most; not with --final"
    )
    parser.add_argument("--replicates", type=int, default=500)
    parser.add_argument("--report-only", action="store_true")
    given = parser.parse_args(arguments)
    if given.final and (given.rows is not None or given.replicates != Effort().replicates):
        parser.error("the protocol says how many rows and replicates --final has")
    folder = given.work / ("protocol_2" if given.final else "protocol_2_thirds")
    out, store = given.out or (Path("docs") if given.final else folder), Store(folder / "records.jsonl")
    source, effort = Source(given.data, given.final, given.rows), Effort(replicates=given.replicates)
    try:
        runs = [] if given.report_only else planned_runs(given.sets)
        seconds = make_missing(ProtocolTwo(run, source, folder, store, effort) for run in runs)
    except DataMissing as error:
        print(error, file=sys.stderr)
        return 1
    earlier = read(Store(Path("docs/reproduction/results.jsonl")), Effort())
    summary = summarise(store, cells_by_grid(earlier))
    summary |= {"final": given.final, "seed": effort.seed, "replicates": effort.replicates}
    out.mkdir(parents=True, exist_ok=True)
    (out / "protocol_2.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    (out / "protocol_2.md").write_text(markdown(summary), encoding="utf-8")
    print(
        json.dumps(
            {name: summary[name] for name in ("cells", "unseen")} | {"minutes": round(seconds / 60.0, 1)}
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
