"""What other requests cost beside a native query of one row, and clients that send head and body apart.

v2_vs_native          time of an inference in JSON : of a native query, 32 connections
v2_binary_vs_native   the same of an inference with a binary row and a binary answer
record_vs_native      the same of a record of 14 mixed columns
predict_vs_query      the same of a prediction by a teacher of ten classes
two_pieces_vs_bare    p50 of a query whose body follows its head after 150 µs : the same of the bare handler

The time of a request is the inverse of the throughput; a figure is the median of the ratios of the rounds.
"""

from __future__ import annotations

import json
import re
import socket
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np

from app.store.unit_of_work import Store
from lab.benchmarks import peers
from lab.benchmarks.load import request_head, wrk
from lab.benchmarks.mixed_models import MixedModels
from lab.benchmarks.serve.comparison import Pace, interleaved, print_figures, ratio, require_success
from tests.system.query_service import FEATURES, Service, digits, row

CONNECTIONS: Final = 32
PAUSE: Final = 150e-6
"""Seconds between head and body."""
_PIECES_PER_SECOND: Final = 400

Request = tuple[str, bytes, dict[str, str]]
"""Address, body and headers."""


def measure(cores: tuple[int, int], pace: Pace) -> dict[str, Any]:
    """Measure the figures of this module."""
    server_core, client_core = cores
    mixed = MixedModels()

    def models(store: Store) -> None:
        digits(store)
        mixed.publish(store)

    with ExitStack() as stack:
        ours = stack.enter_context(Service(prepare=models, cores=server_core))
        x, headers = row(), ours.headers()
        tensor = {"name": "x", "shape": [1, FEATURES], "datatype": "FP64"}
        size = {"parameters": {"binary_data_size": 8 * FEATURES}}
        front = json.dumps({"inputs": [tensor | size], "parameters": {"binary_data_output": True}}).encode()
        v2 = f"{ours.url}/v2/models/digits:3/infer"
        requests: dict[str, Request] = {
            "native": (ours.query("digits", "3"), peers.json_body(x), headers),
            "v2": (v2, json.dumps({"inputs": [tensor | {"data": x}]}).encode(), headers),
            "v2 binary": (
                v2,
                front + np.array(x).tobytes(),
                headers | {"Inference-Header-Content-Length": str(len(front))},
            ),
            "record": (
                ours.query("records", "a"),
                json.dumps({"record": mixed.records[0]}).encode(),
                headers,
            ),
            "predict": (ours.query("digits", "", action=":predict"), peers.json_body(x), headers),
        }
        answers = {name: len(ours.ask(*request)) for name, request in requests.items()}

        def seconds_each(name: str) -> Callable[[], float]:
            url, body, of_request = requests[name]
            load = partial(wrk, url, body, of_request, connections=CONNECTIONS, core=client_core)
            # The first of 32 predictions at once find no teacher in the query process, and some are refused.
            load(seconds=1)
            return lambda: 1e6 / require_success(load(seconds=pace.seconds)).rate

        times = interleaved({name: seconds_each(name) for name in requests}, pace.rounds)
        print_figures(f"time of a request, {CONNECTIONS} connections", "µs", times)
        bare = stack.enter_context(peers.bare(server_core, answer_bytes=answers["native"]))
        contestants = {"bare": (bare, *requests["native"][1:]), "ours": requests["native"]}
        number = _PIECES_PER_SECOND * pace.seconds
        apart = interleaved(
            {name: partial(two_pieces, request, number) for name, request in contestants.items()},
            pace.rounds,
        )
    print_figures("p50, head and body apart", "µs", apart)
    return {
        "v2_vs_native": ratio(times, "v2", "native"),
        "v2_binary_vs_native": ratio(times, "v2 binary", "native"),
        "record_vs_native": ratio(times, "record", "native"),
        "predict_vs_query": ratio(times, "predict", "native"),
        "two_pieces_vs_bare": ratio(apart, "ours", "bare"),
    }


def two_pieces(request: Request, number: int) -> float:
    """The median time in µs of ``number`` requests whose body follows `PAUSE` after the head."""
    address, body, headers = request
    parts = urlsplit(address)
    head = request_head(address, body, headers)
    times = []
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(number):
            started = time.perf_counter()
            connection.sendall(head)
            while time.perf_counter() - started < PAUSE:
                pass
            connection.sendall(body)
            answer = connection.recv(65536)
            while not _is_complete(answer):
                answer += connection.recv(65536)
            times.append(time.perf_counter() - started)
    return 1e6 * statistics.median(times)


def _is_complete(answer: bytes) -> bool:
    """Whether a response has arrived. Raises RuntimeError unless its status is 200."""
    head, end, body = answer.partition(b"\r\n\r\n")
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"an unexpected answer: {answer[:100]!r}")
    length = re.search(rb"content-length: (\d+)", head)
    return bool(end) and length is not None and len(body) >= int(length[1])
