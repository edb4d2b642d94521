"""The whole service under faults, and what is left of it: ``python -m benchmarks.chaos``, best as root.

Two stages. The first has a PostgreSQL of its own, two server processes and three workers; the second is
`stms serve` on SQLite. In both, clients of several tenants keep submitting training jobs on small real data,
some cancel and retry, some lose the answer and send again; others query models that the servers hold. Then
faults come at random times, drawn from a seed, often several at once; whatever dies is started again a moment
later. In the end the tables are read, every model is asked, and all of it is held against undisturbed runs.

The last line of the output is a JSON object:

faults, kinds, jobs   injected faults, how many kinds of them, accepted jobs
lost                  jobs without their right final state, students or events that are missing
duplicated            jobs, students or events that are there twice
corrupt               models or blobs that are not whole, answers that were not those of the undisturbed run
orphans               processes that outlived those they belonged to
takeover_p95_s        from the death, freeze or cut of a worker with work until that is somebody else's
stages                the same of each stage, with everything else that was counted

The exit code is 1 if anything was lost, doubled, corrupted or left behind, or takeovers took too long.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.commands.demo.temporary_server import sigterm_as_exit
from benchmarks.chaos.journal import Journal
from benchmarks.chaos.stages import Outcome, Size, embedded, quantile, shared
from benchmarks.postgres import NoPostgres

TAKEOVER_SECONDS = 10.0
STAGES = {"shared": shared, "embedded": embedded}
_EMBEDDED_SHARE = 0.12
_QUICK_RECIPES = ("digits", "vowel")


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("stages", nargs="*", metavar="stage", help="shared, embedded; both if none is named")
    made.add_argument("--faults", type=int, default=220, help="in all [%(default)s]")
    made.add_argument("--minutes", type=float, default=10.5, help="in which they come [%(default)s]")
    made.add_argument("--jobs", type=int, default=34, help="at least, in all [%(default)s]")
    made.add_argument("--seed", type=int, default=1, help="of everything that is drawn [%(default)s]")
    made.add_argument("--quick", action="store_true", help="few faults, two kinds of jobs")
    made.add_argument("--timeline", type=Path, default=None, help="file for everything that happened")
    made.add_argument("--keep", action="store_true", help="leave logs and databases, and say where")
    return made


def sizes(options: argparse.Namespace) -> dict[str, Size]:
    """What is asked for, shared out among the stages that were named."""
    wanted = [name for name in STAGES if name in options.stages] or list(STAGES)
    shares = {"shared": 1.0 - _EMBEDDED_SHARE, "embedded": _EMBEDDED_SHARE}
    total = sum(shares[name] for name in wanted)
    found = {}
    for name in wanted:
        share = shares[name] / total
        found[name] = Size(
            faults=max(1, round(options.faults * share)),
            seconds=options.minutes * 60 * share,
            jobs=max(2, round(options.jobs * share)),
            customers=(3 if options.quick else 6) if name == "shared" else 2,
            drain=400.0,
            seed=options.seed,
            recipes=_QUICK_RECIPES if options.quick or name == "embedded" else None,
            long_outage=not options.quick,
        )
    return found


def result_of(outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    """What the last line tells."""
    takeovers = [seconds for outcome in outcomes.values() for seconds in outcome.takeovers]
    kinds = {kind for outcome in outcomes.values() for kind in outcome.faults}
    return {
        "faults": sum(outcome.faults.total() for outcome in outcomes.values()),
        "kinds": len(kinds),
        "jobs": sum(outcome.jobs for outcome in outcomes.values()),
        "lost": sum(len(outcome.lost) for outcome in outcomes.values()),
        "duplicated": sum(len(outcome.duplicated) for outcome in outcomes.values()),
        "corrupt": sum(len(outcome.corrupt) for outcome in outcomes.values()),
        "orphans": sum(len(outcome.orphans) for outcome in outcomes.values()),
        "takeover_p95_s": quantile(takeovers, 0.95),
        "stages": {
            name: {
                "faults": dict(outcome.faults),
                "jobs": outcome.jobs,
                "lost": outcome.lost,
                "duplicated": outcome.duplicated,
                "corrupt": outcome.corrupt,
                "orphans": outcome.orphans,
                "broken": outcome.broken,
                **outcome.told,
            }
            for name, outcome in outcomes.items()
        },
    }


def failed(result: Mapping[str, Any]) -> bool:
    """Whether anything is not as it has to be."""
    slow = result["takeover_p95_s"] is not None and result["takeover_p95_s"] > TAKEOVER_SECONDS
    broken = any(stage["broken"] for stage in result["stages"].values())
    return slow or broken or any(result[name] for name in ("lost", "duplicated", "corrupt", "orphans"))


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 if all is as it has to be, 1 if not, 2 without PostgreSQL."""
    options = parser().parse_args(arguments)
    if unknown := set(options.stages) - set(STAGES):
        parser().error(f"there is no stage {', '.join(sorted(unknown))}")
    folder = Path(tempfile.mkdtemp(prefix="stms-chaos-"))
    # The database server, another user, has to reach its folder in this one.
    folder.chmod(0o711)
    journal = Journal(options.timeline)
    outcomes = {}
    try:
        # What was started and mounted is to be gone when this program is told to end.
        with sigterm_as_exit():
            for name, size in sizes(options).items():
                outcomes[name] = _stage(name, size, folder / name, journal)
    except NoPostgres as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        journal.close()
        if options.keep:
            print(f"Everything is left in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    result = result_of(outcomes)
    print(json.dumps(result), flush=True)
    return 1 if failed(result) else 0


def _stage(name: str, size: Size, folder: Path, journal: Journal) -> Outcome:
    folder.mkdir()
    journal.say(f"— {name}")
    found = STAGES[name](folder, journal, f"{os.getpid()}-{uuid.uuid4().hex}", size)
    for line in (*found.lost, *found.duplicated, *found.corrupt, *found.orphans, *found.broken):
        journal.say(f"wrong: {line}")
    return found


if __name__ == "__main__":
    sys.exit(main())
