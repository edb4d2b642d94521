"""Ways of `lab.verification.crowds` in which many keys of one tenant ask for what takes turns.

``python -m lab.verification.tenant_ways WAY`` with a target on stdin. Each of the target's keys has one
connection, over which it asks as soon as it has an answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import grpc
import numpy as np

from app.serving.open_inference.grpc.descriptors import message_classes
from lab.verification.crowds import Crowd, Work, main

MODULE: Final = "lab.verification.tenant_ways"
MODEL: Final = "m"
COLUMNS: Final = 50
ROWS: Final = 500
"""Rows of a request; they cost some tens of milliseconds."""
_LABELS: Final = 16_000
"""Labels of a large body."""
INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
OWN_CONNECTION: Final = (("grpc.use_local_subchannel_pool", 1),)
"""Options of a channel."""
CALL_SECONDS: Final = 60.0
_JSON: Final = {"Content-Type": "application/json"}

Request: TypeAlias = tuple[str, bytes, Mapping[str, str]]
"""Path, body and headers."""


def _query(rows: int) -> Request:
    return f"/v1/models/{MODEL}/classes/cat:query", *_tensor(rows)


def _prediction(rows: int) -> Request:
    return f"/v1/models/{MODEL}:predict", *_tensor(rows)


def _tensor(rows: int) -> tuple[bytes, Mapping[str, str]]:
    headers = {"X-Tensor-Shape": f"{rows},{COLUMNS}", "X-Tensor-Dtype": "float32"}
    content = np.ones((rows, COLUMNS), np.float32).tobytes()
    return content, {"Content-Type": "application/octet-stream", **headers}


def _inference(rows: int) -> Request:
    tensor = {"name": "x", "shape": [rows, COLUMNS], "datatype": "FP64", "data": [1.0] * (rows * COLUMNS)}
    return f"/v2/models/{MODEL}:cat/infer", json.dumps({"inputs": [tensor]}).encode(), _JSON


def _large_body(rows: int) -> Request:
    """Labels of a job that does not exist, which shows only when they have been read."""
    labels = [{"row": row, "label": "cat"} for row in range(_LABELS * rows // ROWS)]
    return "/v1/training-jobs/job_none/labels", json.dumps({"corrections": labels}).encode(), _JSON


REQUESTS: Final[Mapping[str, Callable[[int], Request]]] = {
    "query": _query,
    "predict": _prediction,
    "inference": _inference,
    "large_body": _large_body,
}
"""Requests over HTTP with so many rows; the large body has something else, in proportion."""
GRPC: Final = "grpc"


def message(rows: int) -> bytes:
    """An inference as a message of gRPC."""
    request = message_classes()["ModelInferRequest"](model_name=f"{MODEL}:cat")
    request.inputs.add(name="x", datatype="FP64", shape=[rows, COLUMNS])
    request.raw_input_contents.append(np.ones((rows, COLUMNS)).tobytes())
    data: bytes = request.SerializeToString()
    return data


def metadata(key: str) -> tuple[tuple[str, str], ...]:
    """What a call over gRPC says of its caller."""
    return (("authorization", f"Bearer {key}"),)


def request_bytes(crowd: Crowd, way: str, key: str, rows: int) -> bytes:
    """A request over HTTP."""
    path, body, headers = REQUESTS[way](rows)
    return crowd.head("POST", path, key, len(body), headers) + body


def _asking(way: str) -> Callable[[Crowd], Work]:
    def work(crowd: Crowd) -> Work:
        requests = [request_bytes(crowd, way, key, ROWS) for key in crowd.target.keys]
        return [crowd.requests(1, 0.0, lambda request=request: request) for request in requests]  # type: ignore[misc]

    return work


def _calling(crowd: Crowd) -> Work:
    data = message(ROWS)
    return [_call(crowd, key, data) for key in crowd.target.keys]


async def _call(crowd: Crowd, key: str, data: bytes) -> None:
    address = f"{crowd.target.host}:{crowd.target.grpc_port}"
    async with grpc.aio.insecure_channel(address, OWN_CONNECTION) as channel:
        call = channel.unary_unary(INFER)
        while True:
            try:
                await call(data, metadata=metadata(key), timeout=CALL_SECONDS)
                crowd.responses[200] += 1
            except grpc.aio.AioRpcError:
                crowd.responses[0] += 1
                await asyncio.sleep(0.1)


WAYS: Final[Mapping[str, Callable[[Crowd], Work]]] = {
    **{way: _asking(way) for way in REQUESTS},
    GRPC: _calling,
}

if __name__ == "__main__":
    main(WAYS, niceness=10)
