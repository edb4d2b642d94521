"""A plain FastAPI route with pydantic models.

python -m lab.benchmarks.peers.fastapi_route PORT FEATURES
"""

from __future__ import annotations

import sys

import numpy as np
from fastapi import FastAPI
from pydantic import BaseModel

from lab.benchmarks.peers.bare import serve


class Query(BaseModel):
    """One row."""

    x: list[float]


class Decision(BaseModel):
    """Whether the row is of the class."""

    match: bool
    score: float
    threshold: float
    model: str
    version: int


def application(features: int) -> FastAPI:
    """POST /query decides one row by a dot product."""
    app = FastAPI()
    coef = np.random.default_rng(0).normal(size=features)

    @app.post("/query")
    async def query(body: Query) -> Decision:
        score = float(coef.dot(np.array(body.x)))
        return Decision(match=score >= 0.0, score=score, threshold=0.0, model="peer", version=1)

    return app


if __name__ == "__main__":
    serve(application(int(sys.argv[2])), int(sys.argv[1]))
