"""Records, texts and gaps: public files as people bring them, from the file to the answer.

    python -m lab.benchmarks.inputs [part …] [--sets NAME …] [--rows N] [--minutes M] [--quick]

parts:
  accepted   each file is uploaded as it is, with at most its label column, separator and names of columns;
             a model is trained on it, and answers a record or text of its own test rows
  f1         jobs with default hyper-parameters against scikit-learn's pipelines on the same rows
  promises   promised against actual rates of false positives, 1 % and 0.1 %
  queries    throughput of records and texts beside vectors, see lab/benchmarks/inputs/speeds.py (needs wrk)
  reading    a CSV file of a million rows of 20 mixed columns beside one of numbers
  bad        inputs that are not as they should be: each has exactly its one answer, natively and as tensors

Sets are read from $STMS_RAW or ../shared/raw; official test parts where there are, otherwise every third row
of a class is held out, three times for small sets. F is the mean over the classes, measured on the answers of
the service to the records of the test rows. --rows: at most so many rows to learn from, 12 000 unless given.
--minutes: no further set is begun after so many. --quick: small sets, 1500 rows, and short measurements.

The last line is a JSON object: ``sets`` and how many are ``accepted``; ``mean_f1_vs_best`` and
``worst_f1_vs_best``, F of the students minus that of the best pipeline in points, over all sets that were
measured; ``text_f1_vs_best``, the same by set of texts; the figures of queries, and
``upload_mixed_vs_numeric``; ``promises`` and ``promises_kept``; ``bad_inputs`` and ``bad_inputs_exact``; and
everything ``by_set``. What was not measured is null.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import numpy as np

from lab.benchmarks.inputs import jobs, pipelines, speeds
from lab.benchmarks.inputs.sets import SETS, RawSet, splits
from lab.benchmarks.load import WrkMissing
from lab.benchmarks.serve.comparison import NORMAL, QUICK
from stms_client import Client
from tests.system.data import raw_folder
from tests.system.deployment import job_service
from tests.system.processes import two_cores

Json = dict[str, Any]
PARTS: Final = ("accepted", "f1", "promises", "queries", "reading", "bad")
PROMISED: Final = ("adult", "telco", "ramen", "sms", "ag_news", "trec6")
_QUICK_SETS: Final = ("penguins", "titanic", "sms")
_TABLE: Final = "tests/app/serving/query/test_records.py"


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m lab.benchmarks.inputs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("parts", nargs="*", metavar="part", help="what to measure; all if none is named")
    made.add_argument("--sets", nargs="+", default=None, choices=sorted(SETS), metavar="NAME")
    made.add_argument("--rows", type=int, default=None, help="most rows to learn from [12000]")
    made.add_argument("--minutes", type=float, default=float("inf"))
    made.add_argument("--raw", type=Path, default=raw_folder())
    made.add_argument("--quick", action="store_true")
    return made


class _Measurement:
    """The parts that need a server, one set after the other."""

    def __init__(self, client: Client, folder: Path, given: argparse.Namespace) -> None:
        self.client, self.folder, self.given = client, folder, given
        self.rows: int = given.rows or (1500 if given.quick else 12_000)
        self.ends = time.monotonic() + 60.0 * given.minutes

    def sets(self, names: Sequence[str]) -> Iterator[tuple[str, RawSet]]:
        """Those whose files are there, as long as there is time."""
        for name in self.given.sets or (_QUICK_SETS if self.given.quick else names):
            one = SETS[name]
            if not all((self.given.raw / file).is_file() for file in (one.file, one.test) if file):
                print(f"{name} is left out: its files are not in {self.given.raw}", file=sys.stderr)
            elif time.monotonic() > self.ends:
                print(f"{name} and what follows are left out: the time is over", file=sys.stderr)
                return
            else:
                yield name, one

    def accepted(self) -> Json:
        """Of each set why it is not accepted; null if it is."""
        found: Json = {}
        for name, one in self.sets([*SETS]):
            found[name] = jobs.accepted(self.client, name, one, self.given.raw)
            print(f"{name:14} {'accepted' if found[name] is None else found[name]}", flush=True)
        return found

    def f1(self) -> Json:
        """Of each set the figures of the students and of the pipelines, means over its draws."""
        found: Json = {}
        for name, one in self.sets([*SETS]):
            draws = [self._draw(name, one, split) for split in splits(one, self.given.raw, self.rows)]
            found[name] = {method: _mean([draw[method] for draw in draws]) for method in draws[0]}
            best = _best(found[name])
            print(
                f"{name:14} students {found[name]['students']}  best {best} {found[name][best]}", flush=True
            )
        return found

    def _draw(self, name: str, one: RawSet, split: Any) -> Json:
        students, kinds = jobs.measure(self.client, name, split, self.folder)
        return {"students": students, **pipelines.measure(split, kinds, is_text=one.is_text)}

    def promises(self) -> list[Json]:
        """Every promise that was given."""
        found: list[Json] = []
        for name, one in self.sets(PROMISED):
            found += jobs.promised(self.client, name, splits(one, self.given.raw, self.rows)[0], self.folder)
            print(*(one for one in found if one["set"] == name), sep="\n", flush=True)
        return found


def _mean(draws: Sequence[Json]) -> Json:
    f1 = [draw["f1"] for draw in draws]
    return {
        "f1": None if None in f1 else round(float(np.mean(f1)), 2),
        "seconds": round(float(np.mean([draw["seconds"] for draw in draws])), 1),
    }


def _best(methods: Json) -> str:
    """The name of the best pipeline."""
    pipelines_ = {name: one["f1"] for name, one in methods.items() if name != "students"}
    return max(pipelines_, key=lambda name: pipelines_[name])


def bad_inputs() -> Json:
    """How many rows the table of bad inputs has, and how many of them have exactly their answer."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        program = [sys.executable, "-m", "pytest", "-q", "-n0", _TABLE, f"--junitxml={report}"]
        subprocess.run([*program, "-k", "table"], check=False, stdout=sys.stderr)
        suite = next(ET.parse(report).iter("testsuite"))
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    return {
        "bad_inputs": counts["tests"] - counts["skipped"],
        "bad_inputs_exact": counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"],
    }


def summary(accepted: Json | None, f1: Json | None, promises: list[Json] | None) -> Json:
    """The figures of the last line that come from sets."""
    gains = {}
    for name, methods in (f1 or {}).items():
        if methods["students"]["f1"] is None:
            print(f"{name} is left out of the means: its job has no F", file=sys.stderr)
        else:
            gains[name] = round(methods["students"]["f1"] - methods[_best(methods)]["f1"], 2)
    return {
        "sets": None if accepted is None else len(accepted),
        "accepted": None if accepted is None else sum(reason is None for reason in accepted.values()),
        "mean_f1_vs_best": round(float(np.mean([*gains.values()])), 2) if gains else None,
        "worst_f1_vs_best": min(gains.values()) if gains else None,
        "text_f1_vs_best": {name: gain for name, gain in gains.items() if SETS[name].is_text} or None,
        "promises": None if promises is None else len(promises),
        "promises_kept": None if promises is None else sum(one["kept"] for one in promises),
        "by_set": {"accepted": accepted, "f1": f1, "f1_vs_best": gains, "promises": promises},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0."""
    made = parser()
    given = made.parse_args(arguments)
    parts = given.parts or PARTS
    if unknown := set(parts) - set(PARTS):
        made.error(f"there is no part {min(unknown)!r}, only {', '.join(PARTS)}")
    found: dict[str, Any] = dict.fromkeys(("accepted", "f1", "promises"))
    with job_service() as (client, folder):
        measurement = _Measurement(client, folder, given)
        for part in found:
            if part in parts:
                found[part] = getattr(measurement, part)()
    figures: Json = dict.fromkeys(
        ("record_vs_x_throughput", "text_vs_x_throughput", "records_vs_rows", "upload_mixed_vs_numeric")
    )
    if "queries" in parts:
        try:
            figures |= speeds.queries(two_cores(), QUICK if given.quick else NORMAL)
        except WrkMissing as error:
            print(f"Queries are not measured: {error}", file=sys.stderr)
    if "reading" in parts:
        rows, rounds = (50_000, 3) if given.quick else (1_000_000, 3)
        figures["upload_mixed_vs_numeric"] = speeds.reading(rows, rounds)
    bad: Json = bad_inputs() if "bad" in parts else {"bad_inputs": None, "bad_inputs_exact": None}
    print(json.dumps({**summary(**found), **figures, **bad}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
