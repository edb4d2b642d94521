"""Fault injection into the whole service: ``python -m verification.chaos``; run it as root for all faults.

There are two stages. The first starts a PostgreSQL server, two API processes and three workers; the second
runs `stms serve` on SQLite. In both, clients of several tenants submit training jobs on small real data sets:
some cancel and retry, some drop the connection and send the request again. Other clients query models that
the servers hold in memory. Faults are injected at random times drawn from a seed, often several at the same
time, and a process that dies is restarted a moment later. At the end an audit reads the tables, queries every
model and compares the results with runs without faults.

The last line of the output is a JSON object:

faults, kinds, jobs   number of injected faults, of kinds of faults, and of accepted jobs
lost                  jobs that ended in the wrong state, and missing students or events
duplicated            jobs, students or events that exist twice
corrupt               damaged models or blobs, and answers that differ from the run without faults
orphans               processes that outlived their parents
takeover_p95_s        seconds from the kill, stop or disconnection of a worker until others have all its work
stages                the same figures for each stage, with further counts

The exit code is 1 if anything was lost, duplicated, corrupted or orphaned, if takeovers took too long, or if
a query of a model in memory failed because the control process was away.
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
from tests.system.postgres import NoPostgres
from verification.chaos.event_log import EventLog
from verification.chaos.stages import Outcome, Size, embedded, quantile, shared

TAKEOVER_SECONDS = 10.0
STAGES = {"shared": shared, "embedded": embedded}
_EMBEDDED_SHARE = 0.12
_QUICK_WORKLOADS = ("digits", "vowel")


def parser() -> argparse.ArgumentParser:
    """Parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m verification.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("stages", nargs="*", metavar="stage", help="shared, embedded; both if none is named")
    made.add_argument("--faults", type=int, default=280, help="number of faults in all stages [%(default)s]")
    made.add_argument("--minutes", type=float, default=13.0, help="length of the injection [%(default)s]")
    made.add_argument("--jobs", type=int, default=34, help="minimum number of jobs [%(default)s]")
    made.add_argument("--seed", type=int, default=1, help="random seed [%(default)s]")
    made.add_argument("--quick", action="store_true", help="fewer clients and only two kinds of jobs")
    made.add_argument("--timeline", type=Path, default=None, help="file for all events, as JSON lines")
    made.add_argument("--keep", action="store_true", help="keep logs and databases, and print their folder")
    return made


def sizes(options: argparse.Namespace) -> dict[str, Size]:
    """Distribute the requested faults, minutes and jobs over the stages."""
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
            clients=(3 if options.quick else 6) if name == "shared" else 2,
            drain=1200.0,
            seed=options.seed,
            workloads=_QUICK_WORKLOADS if options.quick or name == "embedded" else None,
            long_outage=not options.quick,
        )
    return found


def result_of(outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    """The JSON object of the last line."""
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
                **outcome.details,
            }
            for name, outcome in outcomes.items()
        },
    }


def failed(result: Mapping[str, Any]) -> bool:
    """Whether any check failed or takeovers took too long."""
    slow = result["takeover_p95_s"] is not None and result["takeover_p95_s"] > TAKEOVER_SECONDS
    wrong = ("broken", "query_failures_without_control")
    broken = any(stage.get(name) for stage in result["stages"].values() for name in wrong)
    return slow or broken or any(result[name] for name in ("lost", "duplicated", "corrupt", "orphans"))


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 if all checks passed, 1 if not, 2 without PostgreSQL."""
    options = parser().parse_args(arguments)
    if unknown := set(options.stages) - set(STAGES):
        parser().error(f"there is no stage {', '.join(sorted(unknown))}")
    folder = Path(tempfile.mkdtemp(prefix="stms-chaos-"))
    _allow_entry(folder)
    event_log = EventLog(options.timeline)
    outcomes = {}
    try:
        # On SIGTERM all started processes are ended and all file systems unmounted.
        with sigterm_as_exit():
            for name, size in sizes(options).items():
                outcomes[name] = _stage(name, size, folder / name, event_log)
    except NoPostgres as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        event_log.close()
        if options.keep:
            print(f"Logs and databases are kept in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    result = result_of(outcomes)
    print(json.dumps(result), flush=True)
    return 1 if failed(result) else 0


def _allow_entry(folder: Path) -> None:
    """Let the database server, which runs as another user, enter its subfolder under any umask."""
    folder.chmod(0o711)


def _stage(name: str, size: Size, folder: Path, event_log: EventLog) -> Outcome:
    folder.mkdir()
    _allow_entry(folder)
    event_log.report(f"— {name}")
    found = STAGES[name](folder, event_log, f"{os.getpid()}-{uuid.uuid4().hex}", size)
    for line in (*found.lost, *found.duplicated, *found.corrupt, *found.orphans, *found.broken):
        event_log.report(f"wrong: {line}")
    return found


if __name__ == "__main__":
    sys.exit(main())
