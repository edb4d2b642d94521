"""Clients of the service for other programs: `Client`, and `AsyncClient` for asyncio.

    from stms_client import Client

    with Client("http://127.0.0.1:8000", api_key="stms_…") as stms:
        stms.is_class("letters@production", "A", [2, 8, 3, 5])

They need httpx and msgspec, and no part of the server. NumPy is imported only for arrays, matplotlib for
figures.
"""

from stms_client.aio import AsyncClient, AsyncJob
from stms_client.curves import Curve
from stms_client.errors import (
    Conflict,
    EvaluationNotSucceeded,
    InvalidInput,
    InvalidRequest,
    JobNotSucceeded,
    MissingPackage,
    NotAllowed,
    NotFound,
    Problem,
    ServerFault,
    Stale,
    StmsError,
    TooBusy,
    Unavailable,
    UnprovenServer,
    Unreachable,
)
from stms_client.results import Decision, Decisions, JobEvent
from stms_client.retries import Retry
from stms_client.sync import Client, Job

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "Client",
    "Conflict",
    "Curve",
    "Decision",
    "Decisions",
    "EvaluationNotSucceeded",
    "InvalidInput",
    "InvalidRequest",
    "Job",
    "JobEvent",
    "JobNotSucceeded",
    "MissingPackage",
    "NotAllowed",
    "NotFound",
    "Problem",
    "Retry",
    "ServerFault",
    "Stale",
    "StmsError",
    "TooBusy",
    "Unavailable",
    "UnprovenServer",
    "Unreachable",
]
