"""Requests at once from a process of its own: ``python -m lab.verification.limits.fetching``.

Each line of stdin is JSON with ``url``, ``headers`` and ``count``; each line of stdout has the bytes of the
answers. Only the standard library is imported, so that it starts quickly.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

_SECONDS: Final = 300.0
_CAPACITY: Final = 429


def fetch(url: str, headers: Mapping[str, str]) -> int:
    """Bytes of one answer. Raises HTTPError unless it is 200, or 429 for more than the server's capacity."""
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=dict(headers)), timeout=_SECONDS
        ) as answer:
            return len(answer.read())
    except urllib.error.HTTPError as error:
        if error.code != _CAPACITY:
            raise
        return len(error.read())


def main() -> None:
    """Answer each line of stdin until its end."""
    # Clients elsewhere would take no processor time from the service.
    os.nice(10)
    for line in sys.stdin:
        asked = json.loads(line)
        with ThreadPoolExecutor(asked["count"]) as threads:
            futures = [threads.submit(fetch, asked["url"], asked["headers"]) for _ in range(asked["count"])]
            print(json.dumps([future.result() for future in futures]), flush=True)


if __name__ == "__main__":
    main()
