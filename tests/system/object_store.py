"""An object store of our own: moto's server, in an environment of its own, for tests and measurements."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from app.domain.object_address import ObjectAddress
from tests.system.environments import environment
from tests.system.processes import free_port

REQUIREMENTS: Final = Path(__file__).parents[1] / "clients" / "requirements" / "moto.txt"
BUCKET: Final = "blobs"
_START_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A running server with the bucket `BUCKET`."""

    endpoint: str

    def address(self, prefix: str) -> ObjectAddress:
        """A part of the bucket."""
        return ObjectAddress(
            BUCKET, prefix, self.endpoint, region="us-east-1", key_id="tests", secret="not-a-secret"
        )

    def settings(self, prefix: str) -> Mapping[str, str]:
        """Settings of a service that keeps its blobs in a part of the bucket."""
        return {
            "STMS_BLOBS": f"s3://{BUCKET}/{prefix}",
            "STMS_BLOBS_ENDPOINT": self.endpoint,
            "STMS_BLOBS_REGION": "us-east-1",
            "STMS_BLOBS_KEY_ID": "tests",
            "STMS_BLOBS_SECRET": "not-a-secret",
        }


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Start the server, which keeps all in memory and ends with the block.

    Raises RuntimeError, and Offline if its packages are neither here nor within reach.
    """
    port, python = free_port(), environment(REQUIREMENTS) / "bin" / "python"
    process = subprocess.Popen(
        [python, "-I", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    endpoint = f"http://127.0.0.1:{port}"
    try:
        _wait_for_bucket(process, endpoint)
        yield ObjectStore(endpoint)
    finally:
        process.kill()
        process.wait()


def _wait_for_bucket(process: subprocess.Popen[bytes], endpoint: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            answer = httpx.put(f"{endpoint}/{BUCKET}", trust_env=False, timeout=10)
        except httpx.TransportError:
            time.sleep(0.2)
            continue
        answer.raise_for_status()
        return
    raise RuntimeError(f"moto's server did not start: exit code {process.poll()}")
