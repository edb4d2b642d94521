"""The blocking client, which every build makes from the one for asyncio in `stms_client/aio`."""

from stms_client.sync.client import Client
from stms_client.sync.jobs import Job

__all__ = ["Client", "Job"]
