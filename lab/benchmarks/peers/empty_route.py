"""FastAPI routes that do nothing.

python -m lab.benchmarks.peers.empty_route PORT
"""

from __future__ import annotations

import sys

from fastapi import FastAPI

from lab.benchmarks.peers.bare import serve


def application() -> FastAPI:
    """GET and POST /empty."""
    app = FastAPI()

    @app.api_route("/empty", methods=["GET", "POST"])
    async def empty() -> None:
        return None

    return app


if __name__ == "__main__":
    serve(application(), int(sys.argv[1]))
