"""``python -m lab.verification.limits``: attacks that bypass quotas and shares; last line JSON.

connections  idle and slow connections at small limits of open files
keyless      floods of every public path without a key
stalls       costly bodies, and requests that keep places, connections or the reader of files
lists        bytes, memory and time of lists at the edge of what may be stored
growth       one tenant that fills its quotas in every way for ten minutes
folders      programs started in a folder with planted modules

Times are compared with windows without an attack in the same run, because the machine may do other work.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final

from lab.verification.fairness import pin_clients
from lab.verification.limits import connections, floods, folders, growth, lists
from lab.verification.limits.judgement import Judgement
from lab.verification.limits.stage import all_cores

MEASUREMENTS: Final[Mapping[str, Callable[..., None]]] = {
    "folders": folders.measure,
    "keyless": floods.measure_keyless,
    "stalls": floods.measure_stalls,
    "connections": connections.measure,
    "lists": lists.measure,
    "growth": growth.measure,
}


def main() -> int:
    """0 if every limit was kept."""
    parser = argparse.ArgumentParser(prog="python -m lab.verification.limits", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter, and without the cheapest floods")
    parser.add_argument(
        "--only", nargs="+", choices=MEASUREMENTS, default=list(MEASUREMENTS), help="only these"
    )
    arguments = parser.parse_args()
    # However this ends, the services and their folders end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    judgement, started = Judgement(), time.monotonic()
    cores = all_cores()
    pin_clients()
    for name in arguments.only:
        print(f"-- {name} (after {time.monotonic() - started:.0f} s)", flush=True)
        MEASUREMENTS[name](judgement, cores, quick=arguments.quick)
    judgement.note("limits_s", time.monotonic() - started)
    print(json.dumps({**judgement.figures, "limits_missed": judgement.missed}))
    return int(bool(judgement.missed))


if __name__ == "__main__":
    sys.exit(main())
