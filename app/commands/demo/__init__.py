"""`stms demo`: upload, training and queries on real data, with a temporary server."""

from __future__ import annotations

from typing import Annotated

import typer

from app.domain.installation import require_training


def demo(
    loop: Annotated[
        bool,
        typer.Option(
            "--loop", help="Show a model in production: feedback, drift, alarm, candidate, gate, new version."
        ),
    ] = False,
) -> None:
    """Train a teacher and its students on real data, then query them. Takes less than a minute.

    Starts a server and a worker in a temporary folder on a free loopback port, uploads scikit-learn's
    handwritten digits, trains, queries, measures, and removes everything again.
    """
    require_training()
    # Their libraries would slow the start of every command.
    if loop:
        from app.commands.demo.loop import run as run_loop

        run_loop()
    else:
        from app.commands.demo.run import run

        run()
