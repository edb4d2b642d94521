"""Generated from `stms_client/aio/__init__.py` by ``make client``: do not edit."""

from stms_client.sync.client import Client
from stms_client.sync.jobs import Job

__all__ = ["Client", "Job"]
