"""The asyncio client, from which every build makes the blocking one in `stms_client/sync`."""

from stms_client.aio.client import AsyncClient
from stms_client.aio.jobs import AsyncJob

__all__ = ["AsyncClient", "AsyncJob"]
