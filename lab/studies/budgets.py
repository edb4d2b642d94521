"""Whether jobs keep a budget of wall seconds: ``automatic.seconds``, over HTTP, run after run.

    python -m lab.studies.budgets [--data DIR] [--set NAME] [--seconds S] [--runs R]

Two thirds of the training part of a set (letter unless given) are learnt from by jobs that name nothing but
the budget, 20 seconds unless given, one after the other with a seed each, and the last third is measured.
Time is that of the job from the request to its end, which includes the start of its process and the reading
of the rows. Only figures of a quiet machine count. Each run prints its seconds and mean F. The last line is a
JSON object: ``runs``; ``kept``, the number of runs that took at most 1.2 times the budget; ``longest``, the
largest time over the budget; ``worst_f1``, in percent; and ``by_run``. Exit code 0 when all runs kept it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from app.commands.datasets import send_file
from lab.studies.defaults import job, read
from tests.system.data import data_folder
from tests.system.deployment import job_service

Json = dict[str, Any]
ALLOWED: Final = 1.2


def summary(found: Sequence[Json], budget: float) -> Json:
    """The content of the last line. A run that failed has not kept the budget."""
    over = [one["seconds"] / budget for one in found]
    succeeded = [one["state"] == "succeeded" for one in found]
    f1 = [one["f1"] for one in found]
    return {
        "runs": len(found),
        "kept": sum(ok and share <= ALLOWED for ok, share in zip(succeeded, over, strict=True)),
        "longest": round(max(over), 3),
        "worst_f1": None if None in f1 else min(f1),
        "by_run": list(found),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m lab.studies.budgets", description=__doc__)
    parser.add_argument("--data", type=Path, default=data_folder())
    parser.add_argument("--set", default="letter")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--runs", type=int, default=10)
    given = parser.parse_args(arguments)
    split = read(given.set, given.data, None, final=False)
    if split is None:
        parser.error(f"there is no set {given.set} in {given.data}")
    found: list[Json] = []
    with job_service(STMS_SOLVER_NICENESS="0") as (client, folder):
        path = folder / f"{given.set}.npz"
        split.write(path)
        dataset, classes = send_file(client, path)["id"], [str(label) for label in split.classes]
        for seed in range(given.runs):
            options = {"automatic": {"seconds": given.seconds}, "seed": seed}
            one = job(client, dataset, f"{given.set}-{seed}", options, classes)
            found.append(one)
            print(f"run {seed}: {one['seconds']} s, F {one['f1']}, {one['state']}", flush=True)
    figures = summary(found, given.seconds)
    print(json.dumps(figures))
    return 0 if figures["kept"] == given.runs else 1


if __name__ == "__main__":
    sys.exit(main())
