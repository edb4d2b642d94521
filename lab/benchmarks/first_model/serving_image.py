"""Size of an installation for serving, and the time from its start to its first answer about a bundle."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import venv
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import numpy as np

from app.services.bundle_export import open_bundle
from app.store.engine import open_engine
from app.store.schema import create_schema
from app.store.unit_of_work import Store
from deploy.container.engines import Missing, engine_with
from deploy.container.image import base_images, build
from deploy.container.trim import trim
from tests.system.deployment import ROOT
from tests.system.processes import Process, cpu_seconds, family, free_port, proportional_bytes, wait_for
from tests.system.published import publish_linear

Json = dict[str, Any]
FIGURES: Final = (
    "serving_image_mb",
    "serving_image_of",
    "serving_cold_s",
    "serving_cold_cpu_s",
    "serving_mb",
)
_CLASSES, _COLUMNS = 26, 16
_RUNS: Final = 5
_PAUSE_SECONDS: Final = 0.002


def serving_image(folder: Path) -> Json:
    """MB of the image, or where no container engine works of the packages above the base; see `cold`."""
    folder = folder / "serving"
    folder.mkdir()
    python, packages = installed(folder)
    bundle = bundle_of(folder)
    # The first start writes byte code.
    runs = [cold(python, bundle, folder) for _ in range(_RUNS + 1)][1:]
    best = min(runs, key=lambda one: one["serving_cold_s"])
    try:
        size, of = build(engine_with(base_images()), "serving").size_mb, "image"
    except Missing:
        size, of = packages, "packages above the base"
    return {"serving_image_mb": round(size, 1), "serving_image_of": of, **best}


def installed(folder: Path) -> tuple[Path, float]:
    """The interpreter of an environment as the Dockerfile makes it, and MB of its trimmed packages."""
    environment = folder / "environment"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile"]
    lock = ROOT / "requirements" / "serving.txt"
    subprocess.run([*pip, "--require-hashes", "-r", str(lock)], check=True)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", str(ROOT)], check=True)
    [packages] = environment.glob("lib/python3*/site-packages")
    for build_tool in [*packages.glob("setuptools*"), packages / "_distutils_hack"]:
        shutil.rmtree(build_tool)
    (packages / "distutils-precedence.pth").unlink(missing_ok=True)
    trim(packages)
    return python, sum(path.lstat().st_size for path in packages.rglob("*") if path.is_file()) / 1e6


def bundle_of(folder: Path) -> Path:
    """A bundle of linear students for all letters."""
    address, path = f"sqlite:///{folder / 'letters.sqlite'}", folder / "letters.tar"
    create_schema(address)
    store = Store(open_engine(address))
    try:
        weights = np.random.default_rng(0).normal(size=(_CLASSES, _COLUMNS))
        version = publish_linear(store, "letters", weights)
        with open_bundle(store, version) as file:
            path.write_bytes(b"".join(file.pieces(store)))
    finally:
        store.dispose()
    return path


def cold(python: Path, bundle: Path, folder: Path) -> Json:
    """Seconds from the start to the first answer, of a clock and of processors, and MB after it (PSS)."""
    port = free_port()
    left_out = ("STMS_", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    command = [
        python,
        "-P",
        "-m",
        "stms.app.cli",
        "api",
        "--bundle",
        bundle,
        "--no-keys",
        "--port",
        str(port),
    ]
    process = Process("server", command, folder, environ)
    began = time.monotonic()
    process.start()
    try:
        while not _answers(port):
            if not process.is_running:
                raise RuntimeError(process.said())
            time.sleep(_PAUSE_SECONDS)
        seconds = time.monotonic() - began
        pids = family(process.pid)
        spent = cpu_seconds(pids)
        wait_for(lambda: "serves." in process.said())
        proportional = sum(map(proportional_bytes, family(process.pid)))
        return {
            "serving_cold_s": round(seconds, 2),
            "serving_cold_cpu_s": round(spent, 2),
            "serving_mb": round(proportional / 1e6),
        }
    finally:
        process.end()


def _answers(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        body = json.dumps({"x": [0.0] * _COLUMNS})
        connection.request(
            "POST", "/v1/models/letters/classes/0:query", body, {"Content-Type": "application/json"}
        )
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
