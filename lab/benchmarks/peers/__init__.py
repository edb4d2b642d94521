"""Other servers for comparison, each in its own process on loopback, pinned to one core.

    with mlserver(core=0) as url:
        measured = wrk(url, mlserver_body(row), JSON, connections=32, seconds=5, core=1)

`bare`, `raw` and `fastapi_route` run in this environment; `mlserver` and `bentoml` in environments of their
own, which are created from ``requirements/`` at the first use.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab.benchmarks.peers.scripts import BENTO, TRAIN
from tests.system import deployment
from tests.system.environments import environment
from tests.system.mlserver import REQUIREMENTS as MLSERVER
from tests.system.mlserver import serve_mlserver
from tests.system.processes import Process, free_port

FEATURES = 64
JSON = {"Content-Type": "application/json"}

HERE = Path(__file__).parent


def json_body(row: Sequence[float]) -> bytes:
    """Body of a request to `fastapi_route`, `bentoml` and our own native API."""
    return json.dumps({"x": list(row)}).encode()


def mlserver_body(row: Sequence[float]) -> bytes:
    """Body of a request for one row in the Open Inference Protocol."""
    tensor = {"name": "predict", "shape": [1, len(row)], "datatype": "FP64", "data": list(row)}
    return json.dumps({"inputs": [tensor]}).encode()


@contextmanager
def bare(core: int, *, answer_bytes: int = 100) -> Iterator[str]:
    """An ASGI handler that reads the body and answers a fixed number of bytes. Yields a URL for any POST."""
    with _own("lab.benchmarks.peers.bare", core, str(answer_bytes)) as port:
        yield f"http://127.0.0.1:{port}/"


@contextmanager
def raw(core: int, *, answer_bytes: int = 100) -> Iterator[str]:
    """uvloop and httptools alone, which answer a fixed number of bytes. Yields a URL for any POST."""
    with _own("lab.benchmarks.peers.raw", core, str(answer_bytes)) as port:
        yield f"http://127.0.0.1:{port}/"


@contextmanager
def fastapi_route(core: int, *, features: int = FEATURES) -> Iterator[str]:
    """A FastAPI route with pydantic models around a dot product. Yields a URL for POSTs of `json_body`."""
    with _own("lab.benchmarks.peers.fastapi_route", core, str(features)) as port:
        yield f"http://127.0.0.1:{port}/query"


@contextmanager
def empty_route(core: int) -> Iterator[int]:
    """A FastAPI application whose routes GET and POST /empty do nothing. Yields its port."""
    with _own("lab.benchmarks.peers.empty_route", core) as port:
        yield port


@contextmanager
def mlserver(core: int, *, features: int = FEATURES) -> Iterator[str]:
    """MLServer's scikit-learn runtime without worker processes. Yields a URL for POSTs of `mlserver_body`.

    Raises Offline and NotInstallable.
    """
    home = environment(MLSERVER)
    with tempfile.TemporaryDirectory(prefix="stms-peer-") as folder:
        _train(home, Path(folder), features)
        with serve_mlserver(home, Path(folder), core) as origin:
            yield f"{origin}/v2/models/peer/infer"


@contextmanager
def bentoml(core: int, *, features: int = FEATURES) -> Iterator[str]:
    """A BentoML service with one worker around the same classifier. Yields a URL for POSTs of `json_body`.

    Raises Offline and NotInstallable.
    """
    home = environment(HERE / "requirements" / "bentoml.txt")
    with tempfile.TemporaryDirectory(prefix="stms-peer-") as folder:
        _train(home, Path(folder), features)
        (Path(folder) / "bento_service.py").write_text(BENTO)
        port = free_port()
        command: list[str | Path] = [
            home / "bin" / "bentoml",
            "serve",
            "bento_service:Peer",
            "--host",
            "127.0.0.1",
        ]
        command += ["--port", str(port)]
        own = os.environ | {"BENTOML_HOME": folder, "BENTOML_DO_NOT_TRACK": "true", "DO_NOT_TRACK": "1"}
        url = f"http://127.0.0.1:{port}/readyz"
        with Process("bentoml", command, Path(folder), own, cores=core, url=url):
            yield f"http://127.0.0.1:{port}/query"


@contextmanager
def _own(module: str, core: int, *arguments: str) -> Iterator[int]:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="stms-peer-") as folder:
        command = [sys.executable, "-m", module, str(port), *arguments]
        url = f"http://127.0.0.1:{port}/openapi.json"
        with Process("peer", command, Path(folder), deployment.environment(), cores=core, url=url):
            yield port


def _train(home: Path, folder: Path, features: int) -> None:
    command: list[str | Path] = [home / "bin" / "python", "-c", TRAIN, folder / "model.joblib", str(features)]
    subprocess.run(command, check=True, capture_output=True)
