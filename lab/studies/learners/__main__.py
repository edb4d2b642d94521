"""Figures of the other learners: solvers against their oracles, and every family against its baselines.

    python -m lab.studies.learners [--quick] [--only PART …] [--store FILE]

A part is a module of this folder with a function ``measure(quick) -> dict``; its figures are printed when it
ends. ``--quick``: fewer rows, splits and classes. Data sets are read from $STMS_DATA or ../shared/data, of
these the training parts alone unless a part says otherwise. ``--store``: keep the figures of each part in a
JSON file, with the command, for the report (``python -m lab.experiments.families``). The last line is a JSON
object with the keys of all parts, and ``seconds`` by part.
"""

from __future__ import annotations

import argparse
import json
import pkgutil
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

PARTS = sorted(one.name for one in pkgutil.iter_modules([str(Path(__file__).parent)]) if one.name[0] != "_")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.studies.learners", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    parser.add_argument("--store", type=Path)
    options = parser.parse_args(arguments)
    figures: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    for part in options.only:
        started = time.perf_counter()
        measured = import_module(f"lab.studies.learners.{part}").measure(options.quick)
        seconds[part] = round(time.perf_counter() - started, 1)
        twice = figures.keys() & measured.keys()
        if twice:
            raise ValueError(f"{part} has keys of another part: {', '.join(sorted(twice))}")
        figures |= measured
        if options.store is not None:
            keep(options.store, part, measured, seconds[part], quick=options.quick)
        print(f"{part}, {seconds[part]} s: {json.dumps(measured)}", flush=True)
    print(json.dumps(figures | {"seconds": seconds}))
    return 0


def keep(file: Path, part: str, figures: dict[str, Any], seconds: float, *, quick: bool) -> None:
    """Put the figures of a part into a JSON file, in place of earlier ones of it."""
    stored = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    command = f"python -m lab.studies.learners{' --quick' if quick else ''} --only {part}"
    stored[part] = {"command": command, "seconds": seconds, "figures": figures}
    file.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
