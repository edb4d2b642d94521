"""Clients of the service for other programs: `Client`, and `AsyncClient` for asyncio.

    from app.client import Client

    with Client("http://127.0.0.1:8000", api_key="stms_…") as stms:
        stms.is_class("letters@production", "A", [2, 8, 3, 5])

They need httpx and no part of the server; NumPy is imported only for arrays.
"""

from app.client.aio import AsyncClient
from app.client.errors import (
    Conflict,
    InvalidRequest,
    JobNotSucceeded,
    NotAllowed,
    NotFound,
    Problem,
    ServerFault,
    StmsError,
    TooBusy,
    Unavailable,
    Unreachable,
)
from app.client.results import Decision, Decisions, JobEvent
from app.client.retries import Retry
from app.client.sync import Client

__all__ = [
    "AsyncClient",
    "Client",
    "Conflict",
    "Decision",
    "Decisions",
    "InvalidRequest",
    "JobEvent",
    "JobNotSucceeded",
    "NotAllowed",
    "NotFound",
    "Problem",
    "Retry",
    "ServerFault",
    "StmsError",
    "TooBusy",
    "Unavailable",
    "Unreachable",
]
