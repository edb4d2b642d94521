"""`stms demo`: upload, training and queries on real data, with a temporary server."""

from __future__ import annotations

from app.domain.installation import require_training


def demo() -> None:
    """Train a teacher and its students on real data, then query them. Takes less than a minute.

    Starts a server and a worker in a temporary folder on a free loopback port, uploads scikit-learn's
    handwritten digits, trains, queries, measures, and removes everything again.
    """
    require_training()
    from app.commands.demo.run import run  # its libraries would slow the start of every command

    run()
