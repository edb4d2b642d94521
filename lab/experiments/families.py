"""The report's part on the other families of learners: tables against their baselines, figures, commands.

    python -m lab.studies.learners --store docs/reproduction/families.json
    python -m lab.experiments.families [--results FILE] [--out FOLDER]

Nothing is computed here: the figures are those that ``python -m lab.studies.learners`` has stored, part by
part, each with the command that measured it. Written are ``families.md`` and an SVG file for each part that
is a comparison. A part that was not measured is named as missing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

from lab.experiments.report.families import FAMILIES
from lab.experiments.report.figures import STYLE

RESULTS: Final = Path("docs/reproduction/families.json")
_INTRODUCTION: Final = (
    "Made by `python -m lab.experiments.families` from the figures that `python -m lab.studies.learners"
    " --store docs/reproduction/families.json` has stored.\nNo test part is read, but that of MNIST by"
    " interpolation in full."
)


def write(results: dict[str, Any], folder: Path) -> list[str]:
    """Write ``families.md`` and its SVG files; returns the names of the parts that were not measured.

    results: by part, the object that ``python -m lab.studies.learners --store`` writes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        "# The other families of learners",
        "",
        _INTRODUCTION,
        "",
    ]
    missing = []
    for family in FAMILIES:
        lines += [f"## {family.title}", ""]
        stored = results.get(family.part)
        if stored is None:
            missing.append(family.part)
            lines += [f"Not measured. `python -m lab.studies.learners --only {family.part}` measures it.", ""]
            continue
        lines += [f"{family.text} Measured by `{stored['command']}`.", ""]
        if family.figure is not None:
            name = f"family-{family.part}.svg"
            with mpl.rc_context(STYLE):
                family.figure(stored["figures"]).savefig(folder / name, metadata={"Date": None})
            lines += [f"![{family.title}]({name})", ""]
        lines += [table.markdown() for table in family.tables(stored["figures"])]
    (folder / "families.md").write_text("\n".join(lines), encoding="utf-8")
    return missing


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0; 1 without a file of results."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.experiments.families",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=RESULTS.parent)
    given = parser.parse_args(arguments)
    if not given.results.is_file():
        command = f"python -m lab.studies.learners --store {given.results}"
        print(f"There is no {given.results}; {command} makes it.", file=sys.stderr)
        return 1
    missing = write(json.loads(given.results.read_text(encoding="utf-8")), given.out)
    print(json.dumps({"written": str(given.out / "families.md"), "not_measured": missing}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
