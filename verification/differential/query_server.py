"""One query process without others: ``python -m verification.differential.query_server keep|forget PORT``.

With ``forget`` no head is kept, so that every request is parsed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from app.processes.listener import ProcessContext, listen
from app.processes.scoreboard import Scoreboard
from app.query_process import run_query_process
from app.server.fast_path import FastPath
from app.settings import Settings


def main() -> int:
    """Serve until SIGTERM; returns the exit code."""
    if sys.argv[1] == "forget":
        FastPath._keep = lambda _self, _head, _prepared: None  # type: ignore[method-assign]
    settings = Settings()
    scoreboard = Scoreboard.private()
    # There is no control process to wait for; requests for it are answered with 503.
    scoreboard.has_started = True
    process = ProcessContext(listen("127.0.0.1", int(sys.argv[2])), scoreboard, scoreboard.slots[0])
    return run_query_process(settings, process, Path("absent"))


if __name__ == "__main__":
    sys.exit(main())
